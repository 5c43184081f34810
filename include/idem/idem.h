/*
 * idem.h - include this to run work at most once.
 *
 *   struct idem_engine *engine;
 *   idem_open("journal:/var/lib/shop/idem", NULL, &engine, &err);
 *   idem_run(engine, &(struct idem_op){.scope = idem_text("shop"),
 *                                      .id = idem_text("order-7")},
 *            place_order, order, &answer, &err);
 *
 * A complete program is examples/once.c.
 */
#ifndef IDEM_IDEM_H
#define IDEM_IDEM_H

#include <idem/engine.h>
#include <idem/record.h>

#define IDEM_VERSION "0.9.0"
#define IDEM_VERSION_NUMBER 900 /* 0.9.1 is 901, 1.2.3 is 10203 */

#endif
