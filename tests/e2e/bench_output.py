"""Checks what tests/bench/bench.py --quick has written into a directory: every section, numbers that
are numbers, charts that are well-formed and need nothing else.

usage: bench_output.py DIRECTORY
"""

import json
import math
import os
import sys
import xml.etree.ElementTree as xml

KEYS = {
    "pairs": {"ns", "pairs_per_second"},
    "cross": {"ns", "pairs_per_second"},
    "short_threads": {"ns_a_thread", "threads_per_second"},
    "launch": {"launch_ns", "with_pair_ns", "added_ns"},
    "overlap": {"ms"},
    "replay": {"pass_ns", "passes", "allocations", "ns_an_allocation"},
    "calls": {"calls_per_1000_pairs", "entering_the_driver"},
    "start": {"added_us", "median_us"},
    "live": {"ns", "pairs_per_second", "blocks"},
    "live_ratio": {"ns", "pairs_per_second"},
    "streams": {"ns", "pairs_per_second"},
}
MAY_BE_NEGATIVE = {"added_ns", "added_us"}


def check_numbers(where, value):
    if isinstance(value, dict):
        for key, inside in value.items():
            check_numbers(f"{where}.{key}", inside)
    elif isinstance(value, list):
        for inside in value:
            check_numbers(where, inside)
    elif isinstance(value, float):
        assert math.isfinite(value), f"{where} is {value}"
    if isinstance(value, (int, float)) and where.split(".")[-1] not in MAY_BE_NEGATIVE:
        assert value >= 0, f"{where} is {value}"


def check_measures(measures):
    seen = {}
    for measure in measures:
        section = measure["section"]
        assert section in KEYS, f"{section}: an unknown section"
        allocators = seen.setdefault(section, set())
        for name, numbers in measure["allocators"].items():
            missing = KEYS[section] - set(numbers)
            assert not missing, f"{section}, {name}: without {missing}"
            check_numbers(f"{section}.{name}", numbers)
            allocators.add(name)
    for section in KEYS:
        expected = {"few", "most"} if section == "live_ratio" else {"pool"}
        assert expected <= seen.get(section, set()), f"{section}: {expected} not measured"
    assert {"pool", "driver", "async"} <= seen["pairs"], f"pairs: only {seen['pairs']}"
    # The pool was there: only a program without it calls the driver for every pair.
    calls = next(m["allocators"] for m in measures if m["section"] == "calls")
    assert calls["driver"]["entering_the_driver"] >= 2000, calls["driver"]
    assert 3 * calls["pool"]["entering_the_driver"] < 2 * calls["driver"]["entering_the_driver"], calls


def check_chart(path):
    root = xml.parse(path).getroot()
    assert root.tag.endswith("svg"), f"{path}: no SVG"
    text = open(path).read()
    assert "prefers-color-scheme:dark" in text, f"{path}: for light only"
    assert "href" not in text and "url(" not in text, f"{path}: needs something else"
    lines = [e for e in root.iter() if e.tag.endswith("path")]
    assert len(lines) >= 3, f"{path}: {len(lines)} lines"


def main():
    directory = sys.argv[1]
    with open(os.path.join(directory, "bench.json")) as file:
        result = json.load(file)
    for key in ("cudapool_bench", "date", "machine", "plan", "seconds", "without", "skipped", "goals"):
        assert key in result, f"without {key}"
    assert result["machine"]["simulated"] is True
    assert not result["skipped"], result["skipped"]
    check_measures(result["measures"])
    for goal in result["goals"]:
        assert {"measure", "value", "goal", "reached"} <= set(goal), goal
    assert result["pools"]["pool"][0]["requests"] > 0, "the pool has served nothing"
    for chart in ("scaling.svg", "blocks_and_streams.svg"):
        check_chart(os.path.join(directory, chart))
    with open(os.path.join(directory, "table.txt")) as file:
        assert "In short" in file.read()


main()
