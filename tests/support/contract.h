/*
 * contract.h - the contract of src/store/store.h, clause by clause.
 */
#ifndef TESTS_CONTRACT_H
#define TESTS_CONTRACT_H

/* Run every clause on the store that the URL names; the number of failures.
 * Other records may be there: the suite uses scopes of its own. */
int run_contract(const char *url);

#endif
