#!/usr/bin/env python3
"""Compares two builds of the preload object by programs that use stream-ordered memory: runs of both and,
in every third turn, of the plain driver, in random order.

usage: builds.py OLD NEW [--programs DIR] [--turns N] [--seconds N] [ROW...]
  OLD, NEW         two files libcudapool_preload.so
  --programs DIR   where between_streams and async_threads are (default: build/tests/gpu)
  --turns N        pairs of each row (default 15)
  --seconds N      start no turn after that many (default 500)
  ROW              only rows whose name has this

Prints the medians in ms, and the ratio of new to old: the mean of the turns' logarithms, with a 95 %
interval by Student's t. Exits 1 where a program failed, 2 where it was called wrongly; never because
something was slow.
"""

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "programs"))
import compare  # noqa: E402


def rows(programs):
    between = os.path.join(programs, "between_streams")
    threads = os.path.join(programs, "async_threads")
    apps = [sys.executable, os.path.join(HERE, "apps.py")]
    return {
        "handed_back": [between, "handed_back", "4000"],
        "handed_back, long kernels": [between, "handed_back", "2000", "1048576", "2000"],
        "ring": [between, "ring", "4000"],
        "ring, 64 KiB": [between, "ring", "4000", "65536"],
        "never_waited": [between, "never_waited", "4000"],
        "synchronised": [between, "synchronised", "4000"],
        "noted": [between, "noted", "10000"],
        "requests": [between, "requests", "2000"],
        "thousand, 64 KiB": [between, "thousand", "8000", "65536"],
        "async_threads, 1": [threads, "1"],
        "async_threads, 16": [threads, "16"],
        "cupy, MemoryAsyncPool": [*apps, "cupy_async"],
        "jax, cuda_async": ["env", "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", *apps, "jax"],
        "torch, cudaMallocAsync": ["env", "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", *apps, "torch"],
    }


def milliseconds(command, preload):
    environment = dict(os.environ, CUDAPOOL_REPORT="none")
    if preload:
        environment["LD_PRELOAD"] = os.path.abspath(preload)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    told = re.findall(r": ([0-9.]+) ms", done.stdout)
    if done.returncode != 0 or not told:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
    return float(told[-1])


def measure(command, builds, turns, ends):
    found = {"plain": [], "old": [], "new": []}
    for turn in range(turns):
        if time.monotonic() > ends:
            break
        runs = [build for build in builds if builds[build] or turn % 3 == 0]
        random.shuffle(runs)
        for build in runs:
            found[build].append(milliseconds(command, builds[build]))
    return found


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("only", nargs="*")
    parser.add_argument("--programs", default="build/tests/gpu")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=500)
    options = parser.parse_intermixed_args()
    ends = time.monotonic() + options.seconds
    builds = {"plain": None, "old": options.old, "new": options.new}
    print("| row | plain, ms | old | new | new/old | turns |\n|---|---|---|---|---|---|")
    for name, command in rows(options.programs).items():
        if options.only and not any(part in name for part in options.only):
            continue
        found = measure(command, builds, options.turns, ends)
        if not found["new"]:
            print(f"{name}, and what follows: not started, the time is up")
            break
        middle = [f"{statistics.median(found[build]):.2f}" for build in builds]
        ratio = compare.shown(compare.paired_ratio(found["new"], found["old"]))
        print(f"| {name} | {' | '.join(middle)} | {ratio} | {len(found['new'])} |", flush=True)


if __name__ == "__main__":
    main()
