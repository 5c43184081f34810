"""What a benchmark found, kept for bench/plot: one JSON line a figure in the file that IDEM_BENCH_RESULTS names.

bench/run sets that variable. A benchmark that is started by hand prints for people only.
"""
import json
import os
import statistics
import sys


def note(what, at, who, value, unit, **more):
    """`who` did `value` of `unit` in the row `what`, at this many connections, records or callers.

    more: low and high (of the rounds), p50_ms, p99_ms, cpu_us; to, ratio and goal against a peer of the same run.
    """
    path = os.environ.get("IDEM_BENCH_RESULTS")
    if not path:
        return
    row = {"bench": os.path.basename(sys.argv[0]), "what": what, "at": at, "who": who, "value": value, "unit": unit,
           **{key: kept for key, kept in more.items() if kept is not None}}
    with open(path, "a") as f:
        f.write(json.dumps({key: round(kept, 4) if isinstance(kept, float) else kept for key, kept in row.items()}) + "\n")


def spread(values):
    """The middle one, and how far the rounds were apart."""
    return statistics.median(values), {"low": min(values), "high": max(values)}
