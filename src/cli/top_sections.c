/*
 * top_sections.c - two parts of idem top: a gateway's routes, and the figures
 * of the store.
 *
 * INFO has one line per route: "route_0:/orders started=7 replay=2 ...".
 */
#include "top.h"

#include "../base/figures.h"

#include <stdlib.h>
#include <string.h>

/* The number after " word=" in the line; 0 if there is none. */
static double
number_of(const char *line, const char *word)
{
    const char *end = line + strcspn(line, "\r\n");
    size_t len = strlen(word);

    for (const char *at = line; at < end; at++) {
        at += strcspn(at, " \r\n");
        if (*at == ' ' && strncmp(at + 1, word, len) == 0 && at[1 + len] == '=')
            return strtod(at + len + 2, NULL);
    }
    return 0;
}

/* One route in both samples. */
struct route {
    const char *now, *then; /* their lines; `then` NULL: the route is new */
    int name_len;
    double seconds;
};

static bool
read_route(const struct top_look *then, const struct top_look *now, size_t i,
           struct route *route)
{
    char name[32];

    snprintf(name, sizeof(name), "route_%zu", i);
    route->now = top_find(now, name);
    if (!route->now)
        return false;
    route->name_len = (int)strcspn(route->now, " \r\n");
    route->seconds = (double)(now->at_us - then->at_us) / 1e6;
    route->then = top_find(then, name);
    if (route->then &&
        strncmp(route->then, route->now, (size_t)route->name_len + 1) != 0)
        route->then = NULL; /* of an earlier gateway process */
    return true;
}

/* The increase between the samples. */
static double
added(const struct route *route, const char *word)
{
    double before = route->then ? number_of(route->then, word) : 0;
    double after = number_of(route->now, word);

    return after >= before ? after - before : after;
}

static double
per_second(const struct route *route, const char *word)
{
    return route->seconds > 0 ? added(route, word) / route->seconds : 0;
}

static double
requests_per_second(const struct route *route)
{
    double sum = 0;

    for (size_t i = 0; i < IDEM__FIGURES_VERDICTS; i++)
        sum += per_second(route, idem__figures_verdicts[i]);
    return sum;
}

/* The service's average response time; 0: it got no requests. */
static double
upstream_ms(const struct route *route)
{
    double answers = added(route, "upstream");

    return answers > 0 ? added(route, "upstream_ms") / answers : 0;
}

void
top_show_routes(const struct top_look *then, const struct top_look *now)
{
    struct route route;

    for (size_t i = 0; read_route(then, now, i, &route); i++) {
        double all = requests_per_second(&route);
        double started = per_second(&route, "started");
        double replay = per_second(&route, "replay");
        double doubt =
            per_second(&route, "doubt") + per_second(&route, "outcome-unknown");

        if (i == 0)
            printf("\n%-22s %8s %9s %9s %8s %8s %9s\n", "route", "all/s",
                   "started/s", "replays/s", "doubts/s", "others/s", "service");
        printf("%-22.*s %8.1f %9.1f %9.1f %8.1f %8.1f %6.1f ms\n",
               route.name_len, route.now, all, started, replay, doubt,
               all - started - replay - doubt, upstream_ms(&route));
    }
}

json_t *
top_routes_json(const struct top_look *then, const struct top_look *now)
{
    json_t *routes = json_object();
    struct route route;

    for (size_t i = 0; read_route(then, now, i, &route); i++) {
        json_t *verdicts = json_object();
        char name[IDEM__FIGURES_NAME_MAX + 1];

        for (size_t v = 0; v < IDEM__FIGURES_VERDICTS; v++)
            json_object_set_new(
                verdicts, idem__figures_verdicts[v],
                json_real(per_second(&route, idem__figures_verdicts[v])));
        snprintf(name, sizeof(name), "%.*s", route.name_len, route.now);
        json_object_set_new(routes, name,
                            json_pack("{s:f, s:o, s:f}", "requests_per_second",
                                      requests_per_second(&route),
                                      "verdicts_per_second", verdicts,
                                      "upstream_ms", upstream_ms(&route)));
    }
    return routes;
}

/* ---- the store --------------------------------------------------------- */

/* The next "name:number" after "# Store"; false at the end. `at` begins as
 * NULL. */
static bool
next_figure(const struct top_look *look, const char **at, char name[64],
            double *value)
{
    const char *line =
        *at ? strchr(*at, '\n') : strstr(look->text, "# Store\r\n");
    size_t len;

    if (line && !*at)
        line = strchr(line, '\n');
    if (!line)
        return false;
    line++;
    len = strcspn(line, ":\r\n");
    if (line[len] != ':' || len >= 64)
        return false;
    memcpy(name, line, len);
    name[len] = 0;
    *value = strtod(line + len + 1, NULL);
    *at = line;
    return true;
}

void
top_show_store(const struct top_look *now)
{
    const char *at = NULL;
    char name[64];
    double value;

    for (bool first = true; next_figure(now, &at, name, &value); first = false)
        printf("%s%-28s %.0f\n", first ? "\nstore\n" : "", name, value);
}

json_t *
top_store_json(const struct top_look *now)
{
    json_t *store = json_object();
    const char *at = NULL;
    char name[64];
    double value;

    while (next_figure(now, &at, name, &value))
        json_object_set_new(store, name, json_real(value));
    return store;
}
