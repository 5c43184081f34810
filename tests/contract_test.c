/*
 * contract_test.c - one contract suite, run unchanged on every store.
 *
 *   build/tests/contract_test                                what is local
 *   IDEM_TEST_STORE=redis://127.0.0.1:6379 build/tests/contract_test
 */
#include "contract.h"
#include "stores.h"

int
main(void)
{
    return for_each_store(run_contract) ? 1 : 0;
}
