"""Makes reports for terminal.sh: terminal_reports.py DIRECTORY writes many.json and other.json there, two
runs with 128 and 40 buckets of which the smallest are the busiest, and failed.json, with a request that failed
in the bucket that was used least.
"""

import json
import sys

MIB = 1 << 20
GROUPS = {"hits": ["clean", "queried", "barrier", "waited"], "failures": ["memory", "limit", "group", "other"],
          "peak": ["live_bytes", "reserved_bytes"], "evictions": ["cap", "idle", "memory", "free", "context"],
          "driver": ["calls", "nanoseconds"], "waits": ["nanoseconds", "frees"]}
PLAIN = ["requests", "misses", "frees", "requested_bytes", "rounded_bytes", "live_blocks", "live_bytes", "cached_bytes",
         "pending_bytes", "saved_at_least_nanoseconds"]


def counters(requests, misses, failures=0):
    result = {name: 0 for name in PLAIN} | {group: {name: 0 for name in names} for group, names in GROUPS.items()}
    result.update(requests=requests, misses=misses, frees=requests - failures, saved_at_least_nanoseconds=requests * 10**6)
    result["hits"]["clean"] = requests - misses - failures
    result["failures"]["limit"] = failures
    result["driver"]["nanoseconds"] = 100 * 10**9
    result["peak"]["reserved_bytes"] = 4 * MIB
    return result


def report(pid, sizes, command, failing=False):
    rows = [dict(counters(1000 * (sizes - i), 100, 1 if failing and i == sizes - 1 else 0), bytes=MIB * (i + 1)) for i in range(sizes)]
    totals = counters(sum(row["requests"] for row in rows), sum(row["misses"] for row in rows), 1 if failing else 0)
    return {"cudapool_report": 1,
            "process": {"pid": pid, "host": "node1", "rank": "", "command": command, "wall_seconds": 93784.5},
            "settings": {},
            "devices": [{"ordinal": 0, "name": "Test GPU", "uuid": "GPU-1", "total_bytes": 80 << 30, "fences": 1,
                         "fence_queries": 2, "barriers": 3, "captured": 0, "kinds": [{"kind": "device", "totals": totals, "buckets": rows}]}]}


for name, content in (("many", report(1, 128, "./train --config " + "x" * 300)), ("other", report(2, 40, "./train")),
                      ("failed", report(3, 20, "./train", failing=True))):
    with open(f"{sys.argv[1]}/{name}.json", "w", encoding="utf-8") as file:
        json.dump(content, file)
