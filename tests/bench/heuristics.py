#!/usr/bin/env python3
"""What each heuristic of the pool gives: one process for each that is switched off, all told the same
in turn, against the pool as it is, twice, so that the noise is seen.

usage: heuristics.py OUTPUT_DIR [--preload FILE] [--rounds N] [--ms N] [--seconds N]
  --preload FILE   the pool whose heuristics can be switched off (make HEURISTICS=1 library builds
                   it: build-heuristics/libcudapool_preload.so)
  --rounds N       turns of each row (default 7)
  --ms N           milliseconds of each row of pairs (default 40)
  --seconds N      start no row after that many (default 120)

environment: BUILD (default: build), where the worker is; LD_LIBRARY_PATH may name a driver.

A row is printed as the medians' ratio, in percent, of the pool without the heuristic to the pool as it
is: 20 is a fifth slower without. "noise" is the second process of the pool as it is; and behind
each row stands the widest span of a single process's turns. heuristics.json has every value. Exits 1 where
nothing could be measured; never because something was slow.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from workers import Crew

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MIB = 1 << 20
AS_IT_IS, NOISE = "pool", "noise"


def rows(ms, most):
    """(name, command, parameters, the answer's key, allocator)."""
    some = min(4, most)

    def pairs(name, threads, **more):
        return (name, "pairs", {"threads": threads, "ms": ms, **more}, "ns", "driver")

    traces = os.path.join(HERE, "traces")
    found = [
        pairs("pairs small 1", 1, sizes="small"),
        pairs(f"pairs small {most}", most, sizes="small"),
        pairs("pairs small 1 after many", 1, sizes="small"),
        pairs(f"pairs fixed {most}", most, sizes=MIB),
        pairs("pairs mixed 1", 1, sizes="mixed"),
        pairs(f"pairs mixed {some}", some, sizes="mixed"),
        pairs(f"pairs kernel {most}", most, sizes="mixed", work="kernel", streams=16),
        ("cross", "cross", {"threads": most, "sizes": "small", "ms": ms}, "ns", "driver"),
    ]
    for threads, us in ((1, 200), (most, 200), (most, 20)):
        parameters = {"threads": threads, "us": us, "rounds": 100}
        found.append((f"overlap {threads}, {us} us", "overlap", parameters, "ms", "driver"))
    for trace in ("torch_training", "cupy"):
        parameters = {"file": os.path.join(traces, trace + ".trace"), "ms": 100, "passes": 2}
        found.append((f"replay {trace}", "replay", parameters, "pass_ns", "driver"))
    asynchronous = {"threads": most, "sizes": "mixed", "ms": ms, "work": "kernel", "streams": 16}
    found.append((f"async kernel {most}", "pairs", asynchronous, "ns", "async"))
    for streams in (16, 1000):
        parameters = {"streams": streams, "threads": 1, "sizes": "mixed", "ms": ms}
        found.append((f"async streams {streams}", "pairs", parameters, "ns", "async"))
    return found


def heuristics():
    """By allocator, the names of those that concern it, in the order of the entries: what was made for
    rows of stream-ordered memory is in that memory's way only."""
    listed = subprocess.run(
        [os.path.join(ROOT, "tests", "mutations", "apply.py"), "list", os.path.join(HERE, "heuristics")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = {"driver": [], "async": []}
    for line in listed.stdout.splitlines():
        name, made_for = line.split("|")[:2]
        found["async" if "async" in made_for else "driver"].append(name)
    return found


def start(crew, preload, allocator, names):
    """A worker for the pool as it is, another one, and one without each heuristic."""
    for name in [AS_IT_IS, NOISE, *names]:
        environment = {"LD_PRELOAD": preload, "CUDAPOOL_REPORT": "none", "CUDAPOOL_MUTATION": name}
        crew.start(f"{name} {allocator}", allocator, environment)


def span(values):
    return 100 * (max(values) - min(values)) / min(values)


def percents(found, key, allocator, names):
    base = found[f"{AS_IT_IS} {allocator}"][key]
    return {
        name: 100 * (found[f"{name} {allocator}"][key] / base - 1)
        for name in names
        if f"{name} {allocator}" in found and name != AS_IT_IS
    }


def print_row(name, unit, found, key, allocator, names):
    answers = {n: found[f"{n} {allocator}"] for n in names if f"{n} {allocator}" in found}
    widest = max(span(answer["values"][key]) for answer in answers.values())
    base = answers[AS_IT_IS][key]
    cells = percents(found, key, allocator, names)
    noise = cells.pop(NOISE, float("nan"))
    text = "  ".join(f"{n} {p:+.1f}" for n, p in sorted(cells.items(), key=lambda c: -c[1]))
    print(f"{name}: {base:.4g} {unit}, noise {noise:+.1f}, widest span {widest:.0f}: {text}", flush=True)


def measure(arguments, crew, names):
    measured, began = [], time.monotonic()
    for name, command, parameters, key, allocator in rows(arguments.ms, os.cpu_count()):
        if time.monotonic() - began > arguments.seconds:
            print(f"{name}: not started, the time is up")
            continue
        everyone = [AS_IT_IS, NOISE, *names[allocator]]
        workers = [f"{n} {allocator}" for n in everyone]
        found = crew.measure(command, parameters, workers, arguments.rounds)
        if f"{AS_IT_IS} {allocator}" not in found:
            print(f"{name}: could not be measured")
            continue
        unit = {"ms": "ms", "pass_ns": "ns a pass"}.get(key, key)
        print_row(name, unit, found, key, allocator, everyone)
        measured.append({"row": name, "key": key, "workers": found})
    return measured


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("output")
    parser.add_argument("--preload", default=os.path.join(ROOT, "build-heuristics", "libcudapool_preload.so"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ms", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=120)
    arguments = parser.parse_args()
    os.makedirs(arguments.output, exist_ok=True)
    build = os.path.realpath(os.environ.get("BUILD", os.path.join(ROOT, "build")))
    crew = Crew(os.path.join(build, "tests", "bench", "worker", "worker"), arguments.output)
    names = heuristics()
    preload = os.path.realpath(arguments.preload)
    for allocator in names:
        start(crew, preload, allocator, names[allocator])
    measured = measure(arguments, crew, names)
    crew.end()
    for name, why in crew.failures.items():
        print(f"{name}: {why}")
    with open(os.path.join(arguments.output, "heuristics.json"), "w", encoding="utf-8") as file:
        json.dump(measured, file, indent=1)
    return 0 if measured else 1


if __name__ == "__main__":
    sys.exit(main())
