/*
 * problem_page.h - the HTML page that the `type` of a problem leads to, in
 * English or Chinese. The server and the nginx module serve the same page.
 */
#ifndef IDEM__PROBLEM_PAGE_H
#define IDEM__PROBLEM_PAGE_H

#include "../../base/problem.h"

#include <idem/idem.h>
#include <stdbool.h>

#define PROBLEM_PAGE_MAX 8192
#define PROBLEM_PAGE_TYPE "text/html; charset=utf-8"

/* Finds the problem of this name; false: there is none. */
bool problem_page_find(struct idem_bytes name, enum idem__problem *problem);

/* Write the page into `page` and return its length. `languages` is the value of
 * Accept-Language, empty if the request has none. */
size_t problem_page(enum idem__problem problem, struct idem_bytes languages,
                    char page[PROBLEM_PAGE_MAX]);

/* May problem types begin with this text? It becomes part of JSON and of a
 * header, and clients take what follows the last / or # as the problem's
 * name. */
bool problem_base_ok(struct idem_bytes base);

#endif
