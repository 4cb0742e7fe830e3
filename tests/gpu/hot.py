#!/usr/bin/env python3
"""What device.hot_bytes does: programs that take and free memory all the time, without the pool, with
their library's own, and with the pool under several values, a process for each, all told in turn.

usage: hot.py BUILD OUTPUT_DIR [--values 0,4MiB,null,12MiB] [--settings NAME=JSON]... [--turns 7] [--seconds 90]
              [--only NAME]...
  settings: further variants of the pool, each by its settings of "device"
  programs: mlp transformer cupy (Python, see apps.py), pairs overlap (the benchmark's worker)
Prints for each program the median of the turns, and every variant's ratio to the value 0 (today's
pool); then what the pool's reports say. A library that is not there, and what has no time left, is
said and skipped. Exits 1 where nothing could be measured.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
import workers  # noqa: E402

# steps in a turn: of the slow plain driver fewer
PROGRAMS = {
    "mlp": ("PyTorch, a multi-layer perceptron", 80, 20),
    "transformer": ("PyTorch, a small transformer", 20, 8),
    "cupy": ("CuPy, element-wise work and a sort", 300, 60),
}
WORK = {
    "pairs": [
        ("1 KiB to 24 MiB, no work, ns", "pairs", {"sizes": "mixed", "threads": 1}, "ns"),
        ("1 MiB, no work, ns", "pairs", {"sizes": 1 << 20, "threads": 1}, "ns"),
        ("1 to 256 KiB, no work, ns", "pairs", {"sizes": "small", "threads": 1}, "ns"),
        ("1 KiB to 24 MiB, a kernel, ns", "pairs",
         {"sizes": "mixed", "work": "kernel", "streams": 1, "threads": 1}, "ns"),
    ],
    "overlap": [
        ("1 thread, 200 us, ms", "overlap", {"threads": 1, "rounds": 200, "us": 200}, "ms"),
        ("1 thread, 20 us, ms", "overlap", {"threads": 1, "rounds": 1000, "us": 20}, "ms"),
        ("4 threads, 20 us, ms", "overlap", {"threads": 4, "rounds": 1000, "us": 20}, "ms"),
    ],
}
METRICS = "lts__t_sector_hit_rate.pct,dram__bytes.sum"


def serve(name):
    """A worker: a line with a number on stdin is so many steps; the answer is a JSON line."""
    import apps

    makers = {
        "mlp": apps.torch_mlp,
        "transformer": apps.torch_transformer,
        "cupy": lambda: apps.cupy_sort("own" if os.environ.get("HOT_OWN") else "none"),
    }
    step, wait = None, None
    for line in sys.stdin:
        try:
            if step is None:
                step, wait = makers[name]()
                apps.timed(step, 20, wait)
            word = line.strip()
            steps = int(word) if word.isdigit() else 1
            milliseconds, _ = apps.timed(step, steps, wait)
            print(json.dumps({"ms": milliseconds}), flush=True)
        except ImportError as why:
            print(json.dumps({"error": str(why)}), flush=True)


def setting(value):
    return value if value in ("0", "null") else json.dumps(value)


def variants(options, own):
    """Name, and environment, of each: the pool's report goes to a file of that name."""
    result = {"plain": {}}
    if own:
        result["own"] = {"HOT_OWN": "1"}
    devices = {value: '{"hot_bytes": %s}' % setting(value) for value in options.values}
    devices.update(options.settings)
    for name, device in devices.items():
        result[name] = {
            "LD_PRELOAD": os.path.join(options.build, "libcudapool_preload.so"),
            "CUDAPOOL_CONFIG": '{"version": 1, "device": %s}' % device,
        }
    return result


def report_file(options, program, name):
    return os.path.join(options.output, f"hot_{program}_{name}.json")


def start(options, program, command, own, errors):
    crew = {}
    for name, environment in variants(options, own).items():
        environment = dict(environment)
        if command[0] == sys.executable:
            environment["HOT_PROGRAM"] = program
            if name != "own":
                environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        if "LD_PRELOAD" in environment:
            environment["CUDAPOOL_REPORT"] = report_file(options, program, name)
        crew[name] = workers.Worker(name, *command, environment, errors)
    return crew


def drop(crew, name, why):
    print(f"  {name}: {why}", flush=True)
    crew.pop(name).kill()


def ask_each(crew, commands, seconds):
    """Tells each its command, all at the same time, and waits for all answers."""
    for name, worker in crew.items():
        worker.tell(commands(name), seconds)
    answers = {}
    for name in list(crew):
        try:
            answers[name] = crew[name].answer()
        except workers.WorkerFailed as why:
            answers[name] = {"error": str(why)}
        if "error" in answers[name]:
            drop(crew, name, answers[name]["error"])
    return answers


def measure(options, crew, key, command, turns):
    """All in turn, another one first each time: the values of each."""
    values = {name: [] for name in crew}
    for turn in range(turns):
        if options.is_late():
            print(f"  the time is up after {turn} turns", flush=True)
            break
        names = [name for name in crew if name != "plain" or turn % 3 == 0]
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            try:
                answer = crew[name].ask(command(name), 60)
            except workers.WorkerFailed as why:
                answer = {"error": str(why)}
            if key in answer:
                values[name].append(answer[key])
            else:
                drop(crew, name, answer.get("error", "no answer"))
    return {name: found for name, found in values.items() if found}


def tell(options, title, values):
    medians = {name: statistics.median(found) for name, found in values.items()}
    base = medians.get(options.values[0])
    cells = []
    for name, median in medians.items():
        ratio = f" ({median / base:.3f}x)" if base and name != options.values[0] else ""
        cells.append(f"{name} {median:.4g}{ratio}")
    print(f"{title}: " + ", ".join(cells), flush=True)
    for name, found in values.items():
        print(f"    {name}: " + " ".join(f"{value:.4g}" for value in found), flush=True)


def tell_reports(options, program, names):
    for name in names:
        try:
            with open(report_file(options, program, name)) as file:
                device = json.load(file)["devices"][0]
        except (OSError, ValueError, KeyError, IndexError):
            continue
        totals = next(k["totals"] for k in device["kinds"] if k["kind"] == "device")
        hits = totals["hits"]
        print(
            f"    {name}: {device.get('fences')} fences, {device.get('fence_queries')} queries, "
            f"{device.get('barriers')} barriers; {totals['requests']} requests: clean {hits['clean']}, "
            f"queried {hits['queried']}, barrier {hits['barrier']}, waited {hits['waited']}, "
            f"misses {totals['misses']}",
            flush=True,
        )


def end(options, program, crew):
    for worker in crew.values():
        worker.end()
    tell_reports(options, program, [name for name in crew if name not in ("plain", "own")])


def run_python(options, program, errors):
    title, steps, few = PROGRAMS[program]
    crew = start(options, program, [sys.executable, os.path.abspath(__file__)], True, errors)
    ask_each(crew, lambda name: "warm", 90)
    if not crew:
        return False
    values = measure(
        options, crew, "ms", lambda name: str(few if name == "plain" else steps), options.turns
    )
    tell(options, f"{title}, ms a step", values)
    end(options, program, crew)
    return bool(values)


def run_worker(options, program, errors):
    worker = os.path.join(options.build, "tests", "bench", "worker", "worker")
    crew = start(options, program, [worker, "driver"], False, errors)
    ask_each(crew, lambda name: "introduce", 60)
    measured = False
    for title, command, parameters, key in WORK[program]:
        if command == "pairs":
            parameters = {**parameters, "ms": 60}
        line = workers.command_line(command, parameters)
        values = measure(options, crew, key, lambda name, line=line: line, options.turns)
        if values:
            tell(options, f"{program}, {title}", values)
            measured = True
    end(options, program, crew)
    return measured


def count_caches(options):
    """What Nsight Compute counts of a few steps, where it is there and may."""
    if not shutil.which("ncu"):
        print("ncu: not here")
        return
    command = ["ncu", "--csv", "--metrics", METRICS, "--cache-control", "none", "--clock-control",
               "none", "--launch-skip", "1500", "--launch-count", "150",
               sys.executable, os.path.join(HERE, "apps.py"), "torch", "10"]
    for name, environment in variants(options, True).items():
        if name == "plain":
            continue
        if options.is_late():
            print("ncu: the time is up")
            return
        environment = {**os.environ, **environment, "CUDAPOOL_REPORT": "none"}
        if name != "own":
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=25)
        except subprocess.TimeoutExpired:
            print(f"ncu, {name}: not over in time")
            continue
        tell_counted(name, done.stdout + done.stderr)


def tell_counted(name, output):
    if "ERR_NVGPUCTRPERM" in output:
        print(f"ncu, {name}: no permission")
        return
    rows = [line for line in output.splitlines() if line.startswith('"')]
    found = {}
    for row in csv.DictReader(rows):
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        unit = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}.get(row.get("Metric Unit"), 1)
        found.setdefault(row["Metric Name"], []).append(value * unit)
    if not found:
        last = output.strip().splitlines()[-1:] or ["nothing"]
        print(f"ncu, {name}: {last[0][:120]}")
        return
    hits, dram = (found.get(metric, [0]) for metric in METRICS.split(","))
    print(f"ncu, {name}: {len(hits)} kernels, L2 hit rate {statistics.mean(hits):.1f} % in the mean, "
          f"{sum(dram) / 1e6:.1f} MB of DRAM", flush=True)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("output")
    parser.add_argument("--values", default="0,4MiB,null,12MiB", type=lambda text: text.split(","))
    parser.add_argument("--settings", default=[], action="append", type=lambda text: tuple(text.split("=", 1)))
    parser.add_argument("--turns", default=7, type=int)
    parser.add_argument("--seconds", default=90, type=float)
    parser.add_argument("--only", action="append", choices=[*PROGRAMS, *WORK, "ncu"])
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    started = time.monotonic()
    options.is_late = lambda: time.monotonic() - started > options.seconds
    return options


def main():
    options = parse()
    wanted = options.only or [*PROGRAMS, *WORK, "ncu"]
    measured = False
    with open(os.path.join(options.output, "hot.log"), "w") as errors:
        for program in wanted:
            if options.is_late():
                print(f"{program}: not started, the time is up", flush=True)
            elif program in PROGRAMS:
                measured = run_python(options, program, errors) or measured
            elif program in WORK:
                measured = run_worker(options, program, errors) or measured
            else:
                count_caches(options)
    return 0 if measured else 1


if __name__ == "__main__":
    if os.environ.get("HOT_PROGRAM"):
        serve(os.environ["HOT_PROGRAM"])
    else:
        sys.exit(main())
