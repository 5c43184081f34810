/*
 * contract_test.c - one contract suite, run unchanged on every store.
 *
 *   build/tests/c/contract_test                                what is local
 *   IDEM_TEST_STORE=redis://127.0.0.1:6379 build/tests/c/contract_test
 */
#include "../support/contract.h"
#include "../support/stores.h"

int
main(void)
{
    return for_each_store(run_contract) ? 1 : 0;
}
