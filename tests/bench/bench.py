#!/usr/bin/env python3
"""Compares the pool with other allocators, all in one run: a worker process for each, told the same
in turn, medians, ratios. NOTES.md says what is measured and how to read it.

usage: bench.py OUTPUT_DIR [--quick] [--section NAME]... [--preload NAME=FILE]... [--seconds N]
  --quick           a few milliseconds of everything, to see that it works
  --section NAME    only these: pairs cross short_threads launch overlap replay calls start live
                    streams
  --preload N=FILE  another build of the preload object, compared under that name
  --seconds N       start no measurement after that many (default 230 on a GPU, 110 without)

environment: BUILD (default: build), PYTHON; SIM=DIR takes the simulated driver there although there
is a GPU; PRELOAD is what LD_PRELOAD must be to run a program on the pool (default: the build's).

Writes bench.json, scaling.svg, blocks_and_streams.svg and table.txt into OUTPUT_DIR. Exits 1 where
nothing could be measured, 2 where it was called wrongly; never because something was slow.
"""

import argparse
import datetime
import glob
import json
import os
import subprocess
import sys
import threading
import time

import charts
from workers import Crew, WorkerFailed, counted_calls, file_of_driver

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SECTIONS = (
    "pairs cross short_threads launch overlap replay calls start live streams".split()
)
MIB = 1 << 20


class Plan:
    """How long and how much, for a GPU, for the simulated driver, and to try everything once."""

    def __init__(self, kind, processors):
        gpu, quick = kind == "gpu", kind == "quick"
        self.ms = 40 if gpu else 2 if quick else 25
        self.rounds = 5 if gpu else 1 if quick else 3
        self.threads = powers_of_two(2 if quick else processors)
        self.live = [1000, 10000, 100000, 1000000] if gpu else [10, 100] if quick else [1000, 100000]
        self.live_ms = 60000 if gpu else 200 if quick else 5000
        self.others_live_ms = 2500 if gpu else 200
        self.streams = [1, 16, 128, 1000] if gpu else [1, 4] if quick else [1, 16, 1000]
        self.launch = (
            {"rounds": 100, "batches": 20} if gpu else {"rounds": 10, "batches": 2 if quick else 20}
        )
        self.overlap_threads = [1, 4, 16] if gpu else [2] if quick else [1, 4]
        self.overlap_us = [200, 20] if gpu else [20] if quick else [200, 20]
        self.overlap_rounds = 100 if gpu else 3 if quick else 40
        self.replay = (
            {"ms": 200, "passes": 3} if gpu else {"ms": 1, "passes": 1} if quick else {"ms": 50, "passes": 2}
        )
        self.traces = 1 if quick else None  # all
        self.calls = 2000 if gpu else 200 if quick else 1000
        self.starts = 400 if gpu else 5 if quick else 100
        self.seconds = 230 if gpu else 110


def powers_of_two(most):
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else counts + [most]


def ratio(one, other):
    return one / other if one is not None and other else None


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.output = arguments.output
        self.build = os.path.realpath(os.environ.get("BUILD", os.path.join(ROOT, "build")))
        self.programs = os.path.join(self.build, "tests", "bench")
        self.worker = os.path.join(self.programs, "worker", "worker")
        self.preload = os.environ.get("PRELOAD") or os.path.join(
            self.build, "libcudapool_preload.so"
        )
        self.crew = Crew(self.worker, self.output)
        self.environment = {}
        self.measures = []
        self.skipped = []
        self.lines = []
        self.machine = {}
        self.start_time = time.monotonic()

    # --- who takes part -------------------------------------------------------------------------

    def open_device(self):
        """Finds out whether there is a GPU, with the allocator that needs nothing; or takes the
        simulated driver."""
        introduced = None
        if "SIM" not in os.environ:
            introduced = self.crew.start("once", "once")
        self.simulated = introduced is None
        if self.simulated:
            directory = os.environ.get("SIM") or os.path.join(self.build, "sim")
            paths = [directory] + [p for p in [os.environ.get("LD_LIBRARY_PATH")] if p]
            os.environ["LD_LIBRARY_PATH"] = ":".join(paths)
            os.environ.setdefault("SIMCUDA_MEMORY", "64GiB")
            introduced = self.crew.start("once", "once")
        if introduced is None:
            sys.exit(f"bench.py: there is no driver to measure: {self.crew.failures['once']}")
        self.crew.failures.clear()
        self.machine = {
            "device": introduced["device"],
            "driver_version": introduced["driver_version"],
            "processors": os.cpu_count(),
            "simulated": self.simulated,
        }
        kind = "quick" if self.arguments.quick else "sim" if self.simulated else "gpu"
        self.plan = Plan(kind, os.cpu_count())

    def pool_environment(self, name, preload):
        return {
            "LD_PRELOAD": preload,
            "CUDAPOOL_REPORT": os.path.join(self.output, f"report_{name}.json"),
        }

    def start_pools(self):
        """The pool is the driver's allocator in a process with the preload; where it serves
        stream-ordered memory too, there is NAME_async."""
        self.pools = {}
        for name, preload in {"pool": self.preload, **dict(self.arguments.preload)}.items():
            self.pools[name] = ("driver", preload)
            if self.serves_stream_ordered_memory(preload):
                self.pools[name + "_async"] = ("async", preload)
        for name, (allocator, preload) in self.pools.items():
            self.crew.start(name, allocator, self.pool_environment(name, preload))
        self.crew.start("driver", "driver")
        self.crew.start("async", "async")
        self.crew.start("mimalloc", "mimalloc")

    def serves_stream_ordered_memory(self, preload):
        calls = self.count_calls("async", preload, 200).get("calls_per_1000_pairs", {})
        return bool(calls) and calls.get("cuMemAllocAsync", 0) < 500

    def count_calls(self, allocator, preload, pairs):
        environment = {"LD_PRELOAD": preload, "CUDAPOOL_REPORT": "none"} if preload else {}
        return counted_calls(
            self.worker, allocator, os.path.join(self.programs, "libcounting.so"),
            file_of_driver(self.crew.workers["once"]), {"pairs": pairs, "bytes": MIB}, environment,
        )  # fmt: skip

    def start_peers(self):
        """Those from elsewhere need a real driver."""
        if self.simulated:
            return
        peers = os.path.join(self.programs, "peers")
        built = subprocess.run(
            [os.path.join(HERE, "peers", "build.sh"), peers], capture_output=True, text=True, check=False
        )
        reasons = dict(line.split(": ", 1) for line in built.stdout.splitlines() if ": " in line)
        for name in ("cub", "torch"):
            library = os.path.join(peers, name + ".so")
            if os.path.exists(library):
                self.crew.start(name, "library:" + library)
            else:
                self.crew.failures[name] = reasons.get(name, "could not be built")

    def all(self, *without):
        return [name for name in self.crew.workers if name not in without]

    # --- measuring ------------------------------------------------------------------------------

    def is_late(self, what):
        limit = self.arguments.seconds or self.plan.seconds
        if time.monotonic() - self.start_time < limit:
            return False
        self.skipped.append(what)
        return True

    def record(self, section, parameters, allocators):
        self.measures.append(
            {"section": section, "parameters": parameters, "allocators": allocators}
        )
        return allocators

    def measure(self, section, command, parameters, allocators, rounds=None):
        """Measures, and keeps it. An empty dict where there is no time left."""
        if self.is_late(f"{section}: {parameters}"):
            return {}
        rounds = self.plan.rounds if rounds is None else rounds
        return self.record(
            section, parameters, self.crew.measure(command, parameters, allocators, rounds)
        )

    def value(self, section, allocator, key, **parameters):
        """What was measured; None where it was not."""
        for measure in self.measures:
            if measure["section"] == section and parameters.items() <= measure["parameters"].items():
                return measure["allocators"].get(allocator, {}).get(key)
        return None

    # --- printing -------------------------------------------------------------------------------

    def say(self, text=""):
        print(text, flush=True)
        self.lines.append(text)

    def table(self, title, first, rows, names, form="{:.1f}"):
        """rows: (label, {name: value}); after each value of the others, how many times the pool's
        it is."""
        names = [n for n in names if any(n in values for _, values in rows)]
        if not names:
            return
        self.say(f"\n{title}")
        self.say(f"  {first:<22}" + "".join(f"{name:>20}" for name in names))
        for label, values in rows:
            cells = ""
            for name in names:
                cell = "-"
                if values.get(name) is not None:
                    cell = form.format(values[name])
                    if name != "pool" and values.get("pool"):
                        cell += f" ({values[name] / values['pool']:.2f}x)"
                cells += f"{cell:>20}"
            self.say(f"  {label:<22}" + cells)

    @staticmethod
    def column(found, key):
        return {name: numbers[key] for name, numbers in found.items() if key in numbers}

    # --- the sections ---------------------------------------------------------------------------

    PAIRS = [
        ("mixed", {"sizes": "mixed"}, "1 KiB to 24 MiB, no GPU work"),
        ("small", {"sizes": "small"}, "1 to 256 KiB, no GPU work"),
        ("fixed", {"sizes": MIB}, "1 MiB, no GPU work"),
        ("kernel", {"sizes": "mixed", "work": "kernel"}, "1 KiB to 24 MiB, a kernel a pair, one stream"),
        (
            "streams16",
            {"sizes": "mixed", "work": "kernel", "streams": 16},
            "1 KiB to 24 MiB, a kernel a pair, 16 streams",
        ),
    ]

    def pairs(self):
        for name, parameters, title in self.PAIRS:
            rows = []
            for threads in self.plan.threads:
                who = self.all() if parameters.get("work") else self.all("once")
                found = self.measure(
                    "pairs",
                    "pairs",
                    {"case": name, "threads": threads, "ms": self.plan.ms, **parameters},
                    who,
                )
                rows.append((f"{threads} threads", self.column(found, "ns")))
            self.table(f"A pair, {title}: ns a pair in each thread", "", rows, self.all())

    def cross(self):
        for sizes in ("mixed", "small"):
            rows = []
            for threads in [t for t in self.plan.threads if t % 2 == 0]:
                found = self.measure(
                    "cross",
                    "cross",
                    {"threads": threads, "sizes": sizes, "ms": self.plan.ms},
                    self.all("once"),
                )
                rows.append((f"{threads // 2} + {threads // 2} threads", self.column(found, "ns")))
            self.table(
                f"Allocated by one thread, freed by another, {sizes} sizes: ns a pair",
                "", rows, self.all(),
            )

    def short_threads(self):
        rows = []
        for threads in sorted({1, self.plan.threads[-1]}):
            found = self.measure(
                "short_threads",
                "short_threads",
                {"threads": threads, "pairs": 32, "sizes": "small", "ms": self.plan.ms},
                self.all(),
            )
            rows.append((f"{threads} at a time", self.column(found, "ns_a_thread")))
        self.table("Threads that make 32 pairs each: ns a thread", "", rows, self.all(), "{:.0f}")

    def launch(self):
        found = self.measure(
            "launch", "launch", {"bytes": MIB, **self.plan.launch}, self.all("mimalloc")
        )
        rows = [
            ("the launch alone", self.column(found, "launch_ns")),
            ("with the pair", self.column(found, "with_pair_ns")),
            ("added by the pair", self.column(found, "added_ns")),
        ]
        self.table(
            "Allocate 1 MiB, launch an empty kernel, free, one stream: median ns",
            "", rows, self.all("mimalloc"),
        )

    def overlap(self):
        rows = []
        for us in self.plan.overlap_us:
            for threads in self.plan.overlap_threads:
                found = self.measure(
                    "overlap",
                    "overlap",
                    {"threads": threads, "us": us, "rounds": self.plan.overlap_rounds},
                    self.all("mimalloc"),
                    min(self.plan.rounds, 3),
                )
                rows.append((f"{threads} threads, {us} us", self.column(found, "ms")))
        self.table(
            f"{self.plan.overlap_rounds} times: allocate 1 MiB, a kernel, free, each thread on its own "
            "stream: ms (once: buffers made once)",
            "", rows, self.all("mimalloc"), "{:.2f}",
        )

    def replay(self):
        rows = []
        traces = sorted(glob.glob(os.path.join(HERE, "traces", "*.trace")))
        for trace in traces[: self.plan.traces]:
            name = os.path.splitext(os.path.basename(trace))[0]
            if self.is_late(f"replay: {name}"):
                continue
            found = self.crew.measure(
                "replay",
                {"file": trace, **self.plan.replay},
                self.all("mimalloc"),
                min(self.plan.rounds, 3),
            )
            self.record("replay", {"trace": name, **self.plan.replay}, found)
            rows.append((name, {k: v / 1e6 for k, v in self.column(found, "pass_ns").items()}))
        if rows:
            self.table(
                "A recorded program's allocations and launches: ms a pass (once: without the "
                "allocations)",
                "", rows, self.all("mimalloc"), "{:.3f}",
            )

    # Calls that only read what the calling thread or the stream has: they take no lock of the driver.
    LIGHT = {
        "cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode", "cuStreamIsCapturing",
        "cuStreamGetId", "cuStreamGetCtx",
    }  # fmt: skip
    OF_THE_PROGRAM = {"cuLaunchKernel"}

    def calls(self):
        if self.is_late("calls"):
            return
        found = {}
        for name, (allocator, preload) in {"driver": ("driver", None), **self.pools}.items():
            counted = self.count_calls(allocator, preload, self.plan.calls)
            if "error" in counted:
                self.skipped.append(f"calls: {name}: {counted['error']}")
                continue
            calls = counted["calls_per_1000_pairs"]
            found[name] = {
                "calls_per_1000_pairs": calls,
                "entering_the_driver": sum(
                    count for call, count in calls.items()
                    if call not in self.LIGHT | self.OF_THE_PROGRAM
                ),
            }  # fmt: skip
        self.record("calls", {"pairs": self.plan.calls, "bytes": MIB}, found)
        self.say("\nDriver calls for 1000 pairs of 1 MiB, a kernel in each, one stream")
        for name, counted in found.items():
            calls = counted["calls_per_1000_pairs"].items()
            listed = ", ".join(f"{call} {count:g}" for call, count in calls)
            self.say(f"  {name:<10}{counted['entering_the_driver']:8.1f} enter the driver ({listed})")

    def start(self):
        if self.is_late("start"):
            return
        preloads = [("empty", os.path.join(self.programs, "libempty.so"))] + [
            (name, preload)
            for name, (allocator, preload) in self.pools.items()
            if allocator == "driver"
        ]
        program = next(p for p in ("/bin/true", "/usr/bin/true") if os.path.exists(p))
        answer = subprocess.run(
            [os.path.join(self.programs, "start_time"), str(self.plan.starts), program]
            + [preload for _, preload in preloads],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if answer.returncode != 0:
            self.skipped.append(f"start: {answer.stderr.strip()}")
            return
        numbers = json.loads(answer.stdout)
        found = {
            name: {"added_us": added, "median_us": median}
            for (name, _), added, median in zip(
                preloads, numbers["added_us"], numbers["median_us"][1:]
            )
        }
        self.record("start", {"program": program, "rounds": self.plan.starts}, found)
        self.say(
            f"\nAdded to a program that never uses CUDA ({program}, {numbers['median_us'][0]:.0f} us): "
            + ", ".join(f"{name} {each['added_us']:.0f} us" for name, each in found.items())
        )

    def begin_live(self):
        """A million blocks from the driver take half a minute: they are made in workers of their
        own, while the allocators from elsewhere are being built."""
        self.full, self.reached = {}, {}
        if "live" not in self.sections:
            return
        for name, (allocator, preload) in self.pools.items():
            full = f"{name}, full"
            if allocator != "driver":
                continue
            if self.crew.start(full, allocator, self.pool_environment(name + "_full", preload)):
                self.full[name] = self.crew.workers.pop(full)
                self.full[name].tell(
                    f"live blocks={self.plan.live[-1]} bytes=512 limit_ms={self.plan.live_ms}",
                    self.plan.live_ms / 1000 + 30,
                )

    def end_live(self):
        for name, worker in list(self.full.items()):
            try:
                self.reached[name] = worker.answer().get("blocks", 0)
            except WorkerFailed as why:
                self.skipped.append(f"live: {why}")
                del self.full[name]

    def live(self):
        """The pool with few and with most blocks, in two workers in turn; then the steps between,
        and the others, each as far as it comes in its time."""
        parameters = {"sizes": "mixed", "ms": self.plan.ms}
        names = self.all("once", "mimalloc", "driver")
        rows = {}
        for blocks in self.plan.live:
            last = blocks == self.plan.live[-1]
            if self.is_late(f"live: {blocks}"):
                break
            reached = {}
            for name in names:
                limit = self.plan.others_live_ms if name not in self.full else self.plan.live_ms / 10
                if not (last and name in self.full):
                    reached[name] = self.fill(name, blocks, limit)
            # The full worker takes its allocator's turn.
            stand_ins = {name: self.crew.workers[name] for name in self.full if last}
            self.crew.workers.update({name: self.full[name] for name in stand_ins})
            found = self.measure("live", "pairs", {"blocks": blocks, **parameters}, names)
            self.crew.workers.update(stand_ins)
            for name in found:
                found[name]["blocks"] = self.reached[name] if name in stand_ins else reached.get(name)
            rows[blocks] = {
                name: numbers["ns"] for name, numbers in found.items() if numbers["blocks"] == blocks
            }
        if rows:
            self.compare_full(parameters)
        for name in names:
            self.empty(name)
        self.table(
            "A pair while so many blocks of 512 bytes are live: ns (-: took too long to get there)",
            "", [(f"{blocks} live", values) for blocks, values in rows.items()], names,
        )  # fmt: skip

    def compare_full(self, parameters):
        """The most blocks against the fewest, in turn."""
        few, most = self.plan.live[0], self.plan.live[-1]
        for name, worker in self.full.items():
            self.crew.workers["few"], self.crew.workers["most"] = self.crew.workers[name], worker
            self.fill("few", few, 1000)
            both = self.crew.measure("pairs", parameters, ["few", "most"], self.plan.rounds)
            del self.crew.workers["few"], self.crew.workers["most"]
            self.record(
                "live_ratio", {"allocator": name, "few": few, "most": most, **parameters}, both
            )

    def fill(self, name, blocks, limit_ms):
        try:
            return self.crew.workers[name].ask(
                f"live blocks={blocks} bytes=512 limit_ms={int(limit_ms)}", limit_ms / 1000 + 60
            ).get("blocks")
        except WorkerFailed as why:
            self.crew.failures[name] = str(why)
            self.crew.workers.pop(name, None)
            return None

    def empty(self, name):
        if name in self.crew.workers:
            self.fill(name, 0, 0)

    def streams(self):
        """Last, since the streams stay."""
        for work in ("none", "kernel"):
            rows = []
            for streams in self.plan.streams:
                found = self.measure(
                    "streams",
                    "pairs",
                    {"streams": streams, "work": work, "sizes": "mixed", "ms": self.plan.ms},
                    self.all("mimalloc") if work == "kernel" else self.all("mimalloc", "once"),
                )
                rows.append((f"{streams} streams", self.column(found, "ns")))
            title = "no GPU work" if work == "none" else "a kernel a pair"
            self.table(
                f"A pair on each stream in turn, one thread, {title}: ns", "", rows, self.all("mimalloc")
            )

    # --- what it comes to -----------------------------------------------------------------------

    def goals(self):
        """(what, value, "least" or "most", limit), value None where it was not measured."""
        most_threads = self.plan.threads[-1]

        def pair(allocator, key="ns", threads=1, case="mixed"):
            return self.value("pairs", allocator, key, case=case, threads=threads)

        def overlap(allocator, threads, us):
            return self.value("overlap", allocator, "ms", threads=threads, us=us)

        live = [m for m in self.measures if m["section"] == "live_ratio"
                and m["parameters"]["allocator"] == "pool"]  # fmt: skip
        live = live[0]["allocators"] if live else {}
        few, most = self.plan.streams[0], self.plan.streams[-1]
        own = self.value("start", "pool", "added_us")
        rate = pair("pool", "pairs_per_second", most_threads)
        goals = [
            ("hit pair, 1 thread: times as fast as PyTorch's", ratio(pair("torch"), pair("pool")), "least", 8),
            ("hit pair, 1 thread, to 256 KiB: of mimalloc's time",
             ratio(pair("pool", case="small"), pair("mimalloc", case="small")), "most", 1),
            (f"pairs a second, {most_threads} threads: times PyTorch's",
             ratio(rate, pair("torch", "pairs_per_second", most_threads)), "least", 300),
            (f"pairs a second, {most_threads} threads: times our single thread",
             ratio(rate, pair("pool", "pairs_per_second")), "least", 10),
            ("1 MiB around an empty kernel: us over the launch alone",
             ratio(self.value("launch", "pool", "added_ns"), 1000), "most", 0.15),
        ]  # fmt: skip
        for us, limit in ((200, 1.1), (20, 1.5)):
            for threads in (4, 16):
                goals.append(
                    (f"1 MiB around a kernel of {us} us, {threads} threads: of buffers made once",
                     ratio(overlap("pool", threads, us), overlap("once", threads, us)), "most", limit)
                )  # fmt: skip
        goals += [
            (f"pair with {self.plan.live[-1]} live blocks: of that with {self.plan.live[0]}",
             ratio(live.get("most", {}).get("ns"), live.get("few", {}).get("ns")), "most", 1.5),
            (f"pair with {most} streams: of that with {few}",
             ratio(self.value("streams", "pool", "ns", streams=most, work="none"),
                   self.value("streams", "pool", "ns", streams=few, work="none")), "most", 1.5),
            ("driver calls for 1000 pairs of 1 MiB with kernels",
             self.value("calls", "pool", "entering_the_driver"), "most", 200),
            ("us added to a program that never uses CUDA", own, "most", 100),
        ]  # fmt: skip
        return [
            {
                "measure": what,
                "value": value,
                "goal": f"at {bound} {limit:g}",
                "reached": None if value is None else value >= limit if bound == "least" else value <= limit,
            }
            for what, value, bound, limit in goals
        ]

    def say_goals(self, goals):
        self.say("\nIn short" + (" (simulated driver)" if self.simulated else ""))
        for goal in goals:
            value = "not measured" if goal["value"] is None else f"{goal['value']:.4g}"
            verdict = {True: "", False: "  not reached", None: ""}[goal["reached"]]
            self.say(f"  {goal['measure']:<62}{value:>14}  ({goal['goal']}){verdict}")

    def draw(self):
        scaling = []
        for case, _, title in self.PAIRS:
            series = {}
            for measure in self.measures:
                if measure["section"] == "pairs" and measure["parameters"]["case"] == case:
                    for name, numbers in measure["allocators"].items():
                        series.setdefault(name, []).append(
                            (measure["parameters"]["threads"], numbers["pairs_per_second"])
                        )
            scaling.append(
                {"title": title, "x": "threads", "y": "pairs a second, all threads", "series": series}
            )
        where = self.machine["device"] + ", " + str(self.machine["processors"]) + " processors"
        written = []
        if charts.draw(scaling, os.path.join(self.output, "scaling.svg"), where):
            written.append("scaling.svg")
        others = []
        for section, key, title, keep in (
            ("live", "blocks", "While blocks are live", lambda p, n: n.get("blocks") == p["blocks"]),
            ("streams", "streams", "On streams in turn", lambda p, n: p["work"] == "none"),
            ("streams", "streams", "On streams in turn, a kernel a pair", lambda p, n: p["work"] != "none"),
        ):
            series = {}
            for measure in self.measures:
                if measure["section"] != section:
                    continue
                for name, numbers in measure["allocators"].items():
                    if keep(measure["parameters"], numbers):
                        series.setdefault(name, []).append(
                            (measure["parameters"][key], numbers["ns"])
                        )
            label = "live blocks" if section == "live" else "streams"
            others.append({"title": title, "x": label, "y": "ns a pair, one thread", "series": series})
        if charts.draw(others, os.path.join(self.output, "blocks_and_streams.svg"), where):
            written.append("blocks_and_streams.svg")
        return written

    def reports(self):
        """What the pools said of themselves at their end."""
        found = {}
        for name in self.pools:
            try:
                with open(os.path.join(self.output, f"report_{name}.json")) as file:
                    report = json.load(file)
                found[name] = [
                    {"kind": kind["kind"], **kind["totals"]}
                    for device in report["devices"] for kind in device["kinds"]
                ]  # fmt: skip
            except (OSError, ValueError, KeyError):
                found[name] = None
        return found

    # --- all of it ------------------------------------------------------------------------------

    def run(self):
        self.sections = self.arguments.section or SECTIONS
        self.open_device()
        self.say(
            f"{self.machine['device']}, driver {self.machine['driver_version']}, "
            f"{self.machine['processors']} processors, "
            f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"
        )
        if self.simulated:
            self.say(
                "This is the simulated driver: what goes into it (driver, async, launches, misses) takes\n"
                "the simulator's time, and one lock of it is taken by every call. Only what the pool and\n"
                "mimalloc do themselves can be compared here; ratios to a driver come from a GPU."
            )
        self.start_pools()
        self.begin_live()
        peers = threading.Thread(target=self.start_peers)
        peers.start()
        peers.join()
        self.end_live()
        for name, why in self.crew.failures.items():
            self.say(f"without {name}: {why}")
        without = set(self.crew.failures)
        for section in SECTIONS:
            if section in self.sections:
                getattr(self, section)()
        goals = self.goals()
        if set(self.sections) == set(SECTIONS):
            self.say_goals(goals)
        self.crew.end()
        for worker in self.full.values():
            worker.kill()
        seconds = time.monotonic() - self.start_time
        for name in set(self.crew.failures) - without:
            self.say(f"{name} has failed: {self.crew.failures[name]}")
        for what in self.skipped:
            self.say(f"not measured, {what}")
        drawn = self.draw()
        result = {
            "cudapool_bench": 1,
            "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
            "machine": self.machine,
            "plan": vars(self.plan),
            "seconds": round(seconds, 1),
            "without": self.crew.failures,
            "skipped": self.skipped,
            "measures": self.measures,
            "goals": goals,
            "pools": self.reports(),
        }
        with open(os.path.join(self.output, "bench.json"), "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
        self.say(f"\n{seconds:.0f} s; in {self.output}: {', '.join(['table.txt', 'bench.json'] + drawn)}")
        with open(os.path.join(self.output, "table.txt"), "w") as file:
            file.write("\n".join(self.lines) + "\n")
        return 0 if any(measure["allocators"] for measure in self.measures) else 1


def named_preload(text):
    name, separator, path = text.partition("=")
    if not separator or not name.isidentifier() or not os.path.exists(path):
        raise argparse.ArgumentTypeError(f"{text!r}: must be NAME=FILE, with a file that is there")
    return name, os.path.realpath(path)


def main():
    parser = argparse.ArgumentParser(add_help=True, description=__doc__.split("\n\n")[0])
    parser.add_argument("output")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--section", action="append", choices=SECTIONS)
    parser.add_argument("--preload", action="append", type=named_preload, default=[])
    parser.add_argument("--seconds", type=int)
    arguments = parser.parse_args()
    arguments.output = os.path.abspath(arguments.output)
    os.makedirs(arguments.output, exist_ok=True)
    bench = Bench(arguments)
    if not os.path.exists(bench.worker):
        sys.exit(f"bench.py: {bench.worker} is not there: make")
    return bench.run()


if __name__ == "__main__":
    sys.exit(main())
