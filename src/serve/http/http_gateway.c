/*
 * http_gateway.c - the counters of a gateway on this machine, by route
 * (base/figures.h), for Prometheus and the console.
 */
#include "../core/gateway_figures.h"
#include "http_inner.h"

#include <inttypes.h>
#include <stdlib.h>

static const struct {
    const char *name, *help;
} times[IDEM__FIGURES_TIMES] = {
    [IDEM__FIGURES_UPSTREAM] = {"idem_gateway_upstream_seconds",
                                "How long the service took, by route."},
    [IDEM__FIGURES_HOLD] = {"idem_gateway_hold_seconds",
                            "How long requests that did not start waited for "
                            "their verdict, by route."},
    [IDEM__FIGURES_CLAIM] = {"idem_gateway_claim_seconds",
                             "From BEGIN to FINISH, by route."},
};

static void
add_requests(struct idem_buf *out, const struct idem__figures *figures,
             size_t used)
{
    static const char name[] = "idem_gateway_requests_total";

    http_put_head(out, name, "counter",
                  "Requests at the gateway, by route and verdict.");
    for (size_t i = 0; i < used; i++) {
        const struct idem__figures_route *route = &figures->routes[i];

        for (size_t v = 0; v < IDEM__FIGURES_VERDICTS; v++)
            idem_buf_printf(
                out, "%s{route=\"%s\",verdict=\"%s\"} %" PRIu64 "\n", name,
                route->name, idem__figures_verdicts[v], route->verdicts[v]);
    }
}

static void
add_times(struct idem_buf *out, const struct idem__figures *figures,
          size_t used, size_t which)
{
    char label[IDEM__FIGURES_NAME_MAX + 16];

    http_put_head(out, times[which].name, "histogram", times[which].help);
    for (size_t i = 0; i < used; i++) {
        const struct idem__figures_route *route = &figures->routes[i];

        snprintf(label, sizeof(label), "route=\"%s\"", route->name);
        http_put_histogram(out, times[which].name, label,
                           route->times[which].bucket, IDEM__FIGURES_BUCKETS,
                           1e-3, (double)route->times[which].sum_ms / 1e3);
    }
}

void
http_put_gateway(struct idem_buf *out, const char *path)
{
    struct idem__figures *figures = malloc(sizeof(*figures));
    size_t used = figures ? gateway_figures_read(path, figures) : 0;

    out->lacks |= !figures;
    if (!figures)
        return;
    add_requests(out, figures, used);
    for (size_t i = 0; i < IDEM__FIGURES_TIMES; i++)
        add_times(out, figures, used, i);
    free(figures);
}

/* The counters of each route, by verdict. NULL: out of memory. */
static json_t *
figures_json(const char *path)
{
    struct idem__figures *figures = malloc(sizeof(*figures));
    size_t used = figures ? gateway_figures_read(path, figures) : 0;
    json_t *all = figures ? json_array() : NULL;

    for (size_t i = 0; i < used; i++) {
        const struct idem__figures_route *route = &figures->routes[i];
        json_t *counts = json_object();

        for (size_t v = 0; v < IDEM__FIGURES_VERDICTS; v++)
            json_object_set_new(counts, idem__figures_verdicts[v],
                                json_integer((json_int_t)route->verdicts[v]));
        json_array_append_new(all, json_pack("{s:s, s:o}", "route", route->name,
                                             "verdicts", counts));
    }
    free(figures);
    return all;
}

json_t *
http_gateway_routes(const struct server_config *config)
{
    json_t *routes = config->gateway_routes
                         ? json_load_file(config->gateway_routes, 0, NULL)
                         : NULL;

    if (!json_is_array(routes)) {
        json_decref(routes);
        routes = json_array();
    }
    return json_pack("{s:s, s:o, s:o}", "verdict", "routes", "routes", routes,
                     "figures", figures_json(config->gateway_figures));
}
