#!/usr/bin/env python3
"""Compares the pool with frameworks' own caching, on the programs of this directory.

usage: compare.py run OUT.jsonl [--programs NAME,...] [--seconds 300] [--build build] [--cores 0-3]
                  [--plain 3] [--width 0.03] [--with NAME=JSON]... [--set-aside]
       compare.py table [--json FILE] IN.jsonl...
       compare.py --self-test

run   starts fresh processes, one at a time, on the same cores. A round of a program is the pool and the
      framework's own caching, each twice, and in the first rounds (--plain) a process without either, of a
      quarter of the steps. The second of each makes a set of its own: how the two sets of one variant
      differ is noise. A program is finished once its ratio is known within --width either way. What
      OUT.jsonl has already counts, so several calls make one measurement. Libraries are imported ahead of
      time, on the other cores.
      --with adds a variant of the pool, by environment variables: split={"CUDAPOOL_CONFIG": "..."}; or
      of the framework's own caching, where its name begins with own-: own-fences={"PROGRAM_FENCES": "3"}
      With tests/bench/libtimes.so in front of a variant's LD_PRELOAD, the table has its time in cuMemAlloc and
      cuMemFree; tests/bench/libfloor.so in place of the pool is what no pool can be faster than.
      Programs whose hash is in set_aside.sha256 run with --set-aside alone. Their hash must be right.
table prints a row for each program, the slowest with the pool first, and what the columns are.
"""

import argparse
import collections
import hashlib
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "bench"))
import workers  # noqa: E402

FIRST = 20  # as in common.py

# Each framework's way to ask the driver for every block.
CACHING_OFF = {
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    "PROGRAM_CUPY_POOL": "off",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
}
# JAX would take three quarters of the device at once otherwise.
CACHING_OWN = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
FEWEST = 6
AHEAD = 6


# --- statistics: plain functions of lists -------------------------------------------------------


def student(freedom):
    """Student's t for 95 %, by its expansion in 1/freedom: 3 % too small for 2, exact to 1 % from 3 on."""
    return 1.96 + 2.372 / freedom + 2.823 / freedom**2 + 2.556 / freedom**3


def interval_of(middle, reach):
    """What lies within reach of a logarithm: [value, low, high]."""
    return [math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)]


def ratio(above, below):
    """The ratio of two samples' geometric means, and its 95 % interval by Student's t of the logarithms:
    [value, low, high]. Two samples of one value each have no interval."""
    if not above or not below:
        return None
    above, below = ([math.log(value) for value in values] for values in (above, below))
    middle = statistics.mean(above) - statistics.mean(below)
    freedom = len(above) + len(below) - 2
    if freedom == 0:
        return [math.exp(middle), None, None]
    squares = sum((x - statistics.mean(values)) ** 2 for values in (above, below) for x in values)
    error = math.sqrt(squares / freedom * (1 / len(above) + 1 / len(below)))
    return interval_of(middle, student(freedom) * error)


def paired_ratio(above, below):
    """As ratio, for values that belong together in pairs, such as runs of one turn."""
    logs = [math.log(a / b) for a, b in zip(above, below)]
    if not logs:
        return None
    middle = statistics.mean(logs)
    if len(logs) == 1:
        return [math.exp(middle), None, None]
    return interval_of(middle, student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs)))


def width(interval):
    """How far an interval reaches from its value, as a share of it."""
    value, low, high = interval
    return math.inf if low is None else high / value - 1


def differ(runs, other):
    """Whether one of the runs computed something else than the other, in the steps that both did."""
    return any(run[: len(other)] != other[: len(run)] for run in runs)


def verdict(checksums):
    """What the checksums of each variant's runs say."""
    said = [f"{name} differs from itself" for name, runs in checksums.items() if differ(runs, runs[0])]
    if "plain" in checksums:
        said += [f"{name} differs from plain" for name, runs in checksums.items()
                 if name != "plain" and differ(runs, checksums["plain"][0])]
    else:
        said.append("no plain run")
    return ", ".join(said) or "equal"


def times(records, variant, of, chosen=("a", "b"), steps=None):
    """A number for each process of a variant: `of` the milliseconds of its first `steps` steps."""
    return [of(r["steps_ms"][:steps]) for r in records if r["variant"] == variant and r["set"] in chosen]


def steady(steps):
    return statistics.mean(steps[FIRST:])


def first(steps):
    return sum(steps[:FIRST])


def in_calls(records, variant):
    """Milliseconds a step in cuMemAlloc and cuMemFree, the median of the processes that timed them."""
    found = [sum(call["nanoseconds"] for call in r["calls"].values()) / 1e6 / (len(r["steps_ms"]) - FIRST)
             for r in records if r["variant"] == variant and r.get("calls") and len(r["steps_ms"]) > FIRST]
    return statistics.median(found) if found else None


def summary(records):
    """All that is known of one program."""
    variants = sorted({r["variant"] for r in records})
    checksums = {name: [r["checksums"] for r in records if r["variant"] == name] for name in variants}

    def compared(a, b, of=steady):
        """Over the steps that both variants have done."""
        common = min((len(r["steps_ms"]) for r in records if r["variant"] in (a, b)), default=0)
        return ratio(times(records, a, of, steps=common), times(records, b, of, steps=common))

    def most(variant, key):
        return max((r[key] for r in records if r["variant"] == variant and r.get(key)), default=None)

    requests = [(r["requests"], r["misses"]) for r in records if r["variant"] == "pool" and r.get("requests")]
    return {
        "processes": {name: len(times(records, name, steady)) for name in variants},
        "ms": {name: statistics.median(times(records, name, steady)) for name in variants},
        "pool/own": compared("pool", "own"),
        "first steps, pool/own": compared("pool", "own", first),
        "plain/own": compared("plain", "own"),
        "ms in calls": {name: found for name in variants if (found := in_calls(records, name)) is not None},
        "others/own": {name: compared(name, "own") for name in variants if name not in ("plain", "own", "pool")},
        "same": {name: ratio(times(records, name, steady, "b"), times(records, name, steady, "a"))
                 for name in ("own", "pool")},
        "pool_reserved_bytes": most("pool", "pool_reserved_bytes"),
        "own_reserved_bytes": most("own", "reserved_bytes"),
        "pool_device_bytes": most("pool", "device_bytes"),
        "own_device_bytes": most("own", "device_bytes"),
        "requests": statistics.median(r for r, _ in requests) if requests else None,
        "misses": statistics.median(m for _, m in requests) if requests else None,
        "steps": max(len(r["steps_ms"]) for r in records),
        "results": verdict(checksums),
    }


# --- the table ----------------------------------------------------------------------------------


def read(files):
    programs = collections.defaultdict(list)
    for file in files:
        with open(file) as lines:
            for line in lines:
                record = json.loads(line)
                programs[record["program"]].append(record)
    return programs


def shown(interval):
    if interval is None:
        return "-"
    value, low, high = interval
    return f"{value:.3f}" if low is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def mebibytes(count):
    return "-" if count is None else f"{count / 2**20:.0f}"


def row(name, found):
    share = f"{100 * found['misses'] / found['requests']:.1f}" if found["requests"] else "-"
    per_step = f"{found['requests'] / found['steps']:.0f}" if found["requests"] else "-"
    cells = [
        name,
        "/".join(str(found["processes"].get(variant, 0)) for variant in ("pool", "own", "plain")),
        "/".join(f"{found['ms'][variant]:.4g}" if variant in found["ms"] else "-"
                 for variant in ("pool", "own", "plain")),
        shown(found["pool/own"]),
        shown(found["first steps, pool/own"]),
        shown(found["same"]["pool"]),
        shown(found["same"]["own"]),
        f"{mebibytes(found['pool_reserved_bytes'])}/{mebibytes(found['own_reserved_bytes'])}",
        f"{mebibytes(found['pool_device_bytes'])}/{mebibytes(found['own_device_bytes'])}",
        f"{per_step}, {share}",
        found["results"],
    ]
    cells += [f"{other} {shown(interval)}" for other, interval in found["others/own"].items()]
    cells += [f"{other}: {took:.3g} ms a step in calls" for other, took in found["ms in calls"].items()]
    return "| " + " | ".join(cells) + " |"


def table(options):
    programs = read(options.files)
    found = {name: summary(records) for name, records in programs.items()}
    machines = {(r["device"], r["driver"]) for records in programs.values() for r in records}
    for device, driver in sorted(machines):
        print(f"{device}, driver {driver}")
    print(f"""
A process counts with the mean of its steps after the first {FIRST}. Times are medians of processes, ratios those
of geometric means, with 95 % intervals. b/a: the same variant's second set over its first, which is noise.

| program | processes: pool/own/plain | ms a step: pool/own/plain | pool/own | the first {FIRST} steps | pool b/a \
| own b/a | MiB reserved: pool/own | MiB on the device: pool/own | requests a step, % misses | results |
|---|---|---|---|---|---|---|---|---|---|---|""")
    for name in sorted(found, key=lambda name: -(found[name]["pool/own"] or [0])[0]):
        print(row(name, found[name]))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


# --- runs ---------------------------------------------------------------------------------------


def set_aside():
    """The programs that wait for a claim, and whether each is what was committed."""
    intact = {}
    with open(os.path.join(HERE, "set_aside.sha256")) as lines:
        for line in lines:
            digest, name = line.split()
            with open(os.path.join(HERE, name), "rb") as file:
                intact[name.removesuffix(".py")] = hashlib.sha256(file.read()).hexdigest() == digest
    return intact


def all_programs():
    names = sorted(name.removesuffix(".py") for name in os.listdir(HERE) if name.endswith(".py"))
    return [name for name in names if name not in ("common", "compare")]


def chosen_programs(options):
    aside = set_aside()
    changed = [name for name, intact in aside.items() if not intact]
    if changed:
        sys.exit(f"compare.py: not what set_aside.sha256 says: {', '.join(changed)}")
    names = options.programs or [name for name in all_programs() if (name in aside) == options.set_aside]
    for name in names:
        if name not in all_programs():
            sys.exit(f"compare.py: unknown program '{name}': must be one of {', '.join(all_programs())}")
        if name in aside and not options.set_aside:
            sys.exit(f"compare.py: {name} is set aside; --set-aside runs it")
    return names


def variants(options):
    library = os.path.join(options.build, "libcudapool_preload.so")
    if not os.path.exists(library):
        sys.exit(f"compare.py: {library} is missing: make library builds it, and --build names its directory")
    pool = {**CACHING_OFF, "LD_PRELOAD": library}
    found = {"plain": {**CACHING_OFF, "PROGRAM_SHARE": "0.25"}, "own": CACHING_OWN, "pool": pool}
    for name, environment in options.extra:
        found[name] = {**(CACHING_OWN if name.startswith("own-") else pool), **environment}
    return found


def parts_of_round(options, number):
    """(variant, set) in the order of this round: mirrored in every second one."""
    names = ["pool", "own"] + [name for name, _ in options.extra]
    parts = [(name, "a") for name in names] + [(name, "b") for name in reversed(names)]
    if number % 2:
        parts = [(name, "b" if part == "a" else "a") for name, part in parts[len(names):] + parts[: len(names)]]
    return ([("plain", "a")] if number < options.plain else []) + parts


class Measurement:
    """What the file has of each program, and what is to be run next."""

    def __init__(self, options):
        self.options = options
        self.names = chosen_programs(options)
        self.environments = variants(options)
        self.records = read([options.output]) if os.path.exists(options.output) else collections.defaultdict(list)
        self.rounds = {name: max((r["round"] + 1 for r in self.records[name]), default=0) for name in self.names}
        self.broken = set()

    def is_finished(self, name):
        interval = ratio(times(self.records[name], "pool", steady), times(self.records[name], "own", steady))
        fewest = min(len(times(self.records[name], variant, steady)) for variant in ("pool", "own"))
        return name in self.broken or (
            fewest >= FEWEST and self.rounds[name] >= self.options.plain and width(interval) <= self.options.width)

    def tasks(self):
        """(program, variant, set, round), without end until all programs are finished."""
        while wanted := [name for name in self.names if not self.is_finished(name)]:
            for name in wanted:
                for variant, part in parts_of_round(self.options, self.rounds[name]):
                    yield name, variant, part, self.rounds[name]
                self.rounds[name] += 1

    def prepare(self, task, errors):
        """Starts a process, on the other cores, that imports its libraries."""
        name, variant, part, number = task
        report = os.path.join(self.options.reports, f"{name}_{variant}_{part}_{number}.json")
        environment = {
            **self.environments[variant], "PROGRAM_WAIT": "1", "CUDAPOOL_REPORT": report, "TIMES_REPORT": report + ".times",
            "OMP_NUM_THREADS": str(len(self.options.cores)), "HF_HUB_OFFLINE": "1",
        }
        worker = workers.Worker(f"{name}, {variant}", sys.executable, os.path.join(HERE, name + ".py"),
                                environment, errors)
        pin(worker.process.pid, self.options.others)
        worker.tell("import", 150)
        return task, worker, report

    def measure(self, prepared):
        """Runs a process that was prepared. Its record goes into the file."""
        (name, variant, part, number), worker, report = prepared
        worker.answer()
        pin(worker.process.pid, self.options.cores)
        answer = worker.ask("run", 60)
        worker.end()
        record = {"program": name, "variant": variant, "set": part, "round": number,
                  "date": time.strftime("%Y-%m-%d %H:%M"), **answer, **read_report(report), **read_times(report + ".times")}
        if variant == "pool" and not record.get("requests"):
            raise workers.WorkerFailed(f"{name}: no report of the pool's, or no requests in it")
        self.records[name].append(record)
        with open(self.options.output, "a") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{name:20} {variant:6} {part} {number:3}  {steady(answer['steps_ms']):9.3f} ms, first "
              f"{first(answer['steps_ms']):8.1f}, made in {answer['make_seconds']:.1f} s, {answer['checksums'][-1]}",
              flush=True)


def pin(process, cores):
    """Every thread of a process, so that those which come later are pinned as well."""
    for thread in os.listdir(f"/proc/{process}/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            pass


def read_report(file):
    """What the pool's report says of the first device. Nothing where there is none."""
    try:
        with open(file) as text:
            report = json.load(text)
        totals = [kind["totals"] for kind in report["devices"][0]["kinds"] if kind["kind"] != "host"]
    except (OSError, ValueError, KeyError, IndexError):
        return {}
    return {
        "pool_reserved_bytes": sum(total["peak"]["reserved_bytes"] for total in totals),
        "requests": sum(total["requests"] for total in totals),
        "misses": sum(total["misses"] for total in totals),
        "fences": report["devices"][0].get("fences"),
        "totals": totals,
    }


def read_times(file):
    """What tests/bench/libtimes.c told of the steps after the first ones. Nothing where it was not there."""
    try:
        with open(file) as text:
            return {"calls": json.load(text)}
    except (OSError, ValueError):
        return {}


def run(options):
    started = time.monotonic()
    measurement = Measurement(options)
    tasks, ahead = measurement.tasks(), collections.deque()
    with open(options.output + ".log", "a") as errors, tempfile.TemporaryDirectory() as options.reports:
        while time.monotonic() - started < options.seconds:
            while len(ahead) < AHEAD and (task := next(tasks, None)):
                ahead.append(measurement.prepare(task, errors))
            if not ahead:
                break
            prepared = ahead.popleft()
            try:
                if prepared[0][0] not in measurement.broken:
                    measurement.measure(prepared)
            except (workers.WorkerFailed, KeyError) as why:
                print(f"{prepared[0][0]}: FAIL: {why}", flush=True)
                measurement.broken.add(prepared[0][0])
            prepared[1].kill()
        for _, worker, _ in ahead:
            worker.kill()
    return 1 if measurement.broken else 0


# --- the command --------------------------------------------------------------------------------


def cores_of(text):
    """The set of cores that "0-3,8" names."""
    found = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found


def parse(arguments):
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run")
    command.add_argument("output")
    command.add_argument("--programs", type=lambda text: text.split(","))
    command.add_argument("--seconds", type=float, default=300)
    command.add_argument("--build", default="build", type=os.path.abspath)
    command.add_argument("--cores", type=cores_of, default=cores_of("0-3"))
    command.add_argument("--plain", type=int, default=3)
    command.add_argument("--width", type=float, default=0.03)
    command.add_argument("--with", dest="extra", default=[], action="append", type=extra_variant)
    command.add_argument("--set-aside", action="store_true")
    command = commands.add_parser("table")
    command.add_argument("files", nargs="+")
    command.add_argument("--json")
    options = parser.parse_args(arguments)
    if options.command == "run":
        here = os.sched_getaffinity(0)
        options.cores = options.cores & here or here
        options.others = here - options.cores or here
    return options


def extra_variant(text):
    name, _, environment = text.partition("=")
    try:
        return name, dict(json.loads(environment))
    except (ValueError, TypeError):
        raise argparse.ArgumentTypeError(f"'{text}' must be NAME={{\"VARIABLE\": \"VALUE\", ...}}") from None


class approximately(float):
    def __eq__(self, other):
        return math.isclose(self, other)


def self_test():
    """The statistics, on samples whose answer is known."""
    chance = random.Random(7)
    slow, fast = ([chance.gauss(mean, 0.02 * mean) for _ in range(40)] for mean in (11, 10))
    value, low, high = ratio(slow, fast)
    assert low < 1.1 < high and low < value < high and width([value, low, high]) < 0.03, (value, low, high)
    assert ratio([5.0] * 6, [5.0] * 6) == [1, 1, 1]
    assert ratio([6.0], [5.0]) == [approximately(1.2), None, None] and ratio([], [5.0]) is None
    assert width(ratio([6.0], [5.0])) == math.inf and width([1.0, 0.96, 1.04]) == approximately(0.04)
    assert paired_ratio([6.0, 12.0], [5.0, 10.0]) == [approximately(1.2)] * 3 and paired_ratio([], []) is None
    assert paired_ratio([6.0], [5.0]) == [approximately(1.2), None, None]
    value, low, high = paired_ratio([2.0, 8.0, 4.0, 4.0], [1.0] * 4)  # logarithms of 4, with a deviation of log 2 * sqrt(2/3)
    assert value == approximately(4) and high / value == approximately(value / low), (value, low, high)
    assert math.isclose(math.log(high / value), 3.182 * math.log(2) * math.sqrt(2 / 3) / 2, rel_tol=0.01)
    covered = 0
    for _ in range(500):
        _, low, high = ratio(*([chance.lognormvariate(0, 0.1) for _ in range(3)] for _ in range(2)))
        covered += low < 1 < high
    assert 460 < covered < 490, covered
    assert verdict({"plain": ["x"], "own": ["xy", "xy"], "pool": ["xy"]}) == "equal"
    assert verdict({"plain": ["xy", "xz"], "pool": ["xy"]}) == "plain differs from itself"
    assert verdict({"plain": ["xy"], "own": ["xy"], "pool": ["xz", "xz"]}) == "pool differs from plain"
    assert verdict({"own": ["x"]}) == "no plain run"
    assert cores_of("0-2,5") == {0, 1, 2, 5}

    steps = {"pool": [9.0] * FIRST + [2.0] * 10, "own": [3.0] * FIRST + [1.0] * 10, "plain": [4.0] * 30}
    records = [{"program": "p", "variant": variant, "set": part, "steps_ms": steps[variant], "checksums": ["x"],
                "reserved_bytes": 1 << 20, "device_bytes": 3 << 20}
               for variant in steps for part in "ab" for _ in range(3)]
    found = summary(records)
    assert found["pool/own"] == [approximately(2)] * 3
    assert found["first steps, pool/own"] == [approximately(3)] * 3
    assert found["same"] == {"own": [1, 1, 1], "pool": [1, 1, 1]} and found["results"] == "equal"
    options = argparse.Namespace(extra=[("split", {})], plain=1)
    for number in range(2):
        parts = [part for part in parts_of_round(options, number) if part[0] != "plain"]
        assert sorted(parts) == sorted((name, part) for name in ("pool", "own", "split") for part in "ab")
    assert all(set_aside().values())
    print("ok the statistics of compare.py")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        parsed = parse(sys.argv[1:])
        sys.exit(run(parsed) if parsed.command == "run" else table(parsed))
