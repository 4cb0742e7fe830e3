"""The formats of `cudapool report`, on reports that are made up here.

usage: reports.py COMMAND      prints "ok NAME" or "FAIL NAME: why"; exits 1 when one failed
"""

import csv
import html
import html.parser
import io
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

COMMAND = os.path.realpath(sys.argv[1])
SANITIZED = bool(os.environ.get("SANITIZE"))
MIB = 1 << 20
failed = False


def expect(name, holds, why=""):
    global failed
    if holds:
        print("ok " + name)
    else:
        print(f"FAIL {name}: {str(why)[:500]}")
        failed = True


def cudapool(*arguments, status=0):
    """Runs `cudapool report`; its output."""
    done = subprocess.run([COMMAND, "report", *map(str, arguments)], capture_output=True, timeout=100)
    if done.returncode != status:
        expect("report " + " ".join(map(str, arguments))[:200], False, f"status {done.returncode}: {done.stderr}")
    return (done.stdout if status == 0 else done.stderr).decode()


# --- reports ------------------------------------------------------------------------------------

FIGURES_PID = 56  # where a file of figures has the process's number, see core/figures/figures.h

NAMES = ["requests", "hits.clean", "hits.queried", "hits.barrier", "hits.waited", "misses",
         "failures.memory", "failures.limit", "failures.group", "failures.other", "frees",
         "requested_bytes", "rounded_bytes", "live_blocks", "live_bytes", "cached_bytes", "pending_bytes",
         "peak.live_bytes", "peak.reserved_bytes", "evictions.cap", "evictions.idle",
         "evictions.memory", "evictions.free", "evictions.context", "driver.calls", "driver.nanoseconds",
         "waits.nanoseconds", "waits.frees", "saved_at_least_nanoseconds"]


def counters(values):
    """Counters with the given ones set, by their dotted names; hits clean are what is left over."""
    result = {}
    for name in NAMES:
        group, _, last = name.rpartition(".")
        (result.setdefault(group, {}) if group else result)[last] = values.get(name, 0)
    others = sum(values.get("hits." + rung, 0) for rung in ("queried", "barrier", "waited"))
    failures = sum(result["failures"].values())
    result["hits"]["clean"] = result["requests"] - result["misses"] - others - failures
    return result


def value(counters_of, name):
    for key in name.split("."):
        counters_of = counters_of[key]
    return int(counters_of)


def exchange(size=0, times=0, last=0):
    return {"bytes": size, "times": times, "last_nanoseconds": last}


def neighbours(**more):
    return {**{name: exchange() for name in ("given", "got", "left")},
            **{name: 0 for name in ("asked", "silent", "others_held_bytes")}, **more}


def report(buckets, pid=1, host="node1", rank="", ordinal=0, uuid="GPU-1", total=80 << 30,
           settings=None, command="./train"):
    """buckets: {bytes: {counter: value}}"""
    rows = [dict(counters(given), bytes=size) for size, given in buckets.items()]
    totals = counters({name: sum(value(row, name) for row in rows) for name in NAMES})
    return {"cudapool_report": 1,
            "process": {"pid": pid, "host": host, "rank": rank, "command": command, "wall_seconds": 2.5},
            "settings": settings or {},
            "devices": [{"ordinal": ordinal, "name": "NVIDIA H100", "uuid": uuid, "total_bytes": total,
                         "fences": 7, "fence_queries": 8, "barriers": 9, "captured": 10, "stalled_waits": 0, "neighbours": neighbours(),
                         "kinds": [{"kind": "device", "totals": totals, "buckets": rows}]}]}


def with_history(content, start, times, live):
    """The same report, with samples; misses count the time."""
    times, live = list(times), list(live)
    nothing = [0] * len(times)
    if start:
        content["process"]["started_nanoseconds"] = start
    content["devices"][0]["history"] = {
        "nanoseconds": times, "live_bytes": live, "cached_bytes": nothing, "pending_bytes": nothing,
        "peak_bytes": [size + 7 for size in live], "hits": {"clean": nothing, "queried": nothing, "barrier": live, "waited": nothing}, "misses": times}
    return content


def bucket(requests, size, **more):
    given = {"requests": requests, "misses": 3, "frees": requests, "requested_bytes": requests * size,
             "rounded_bytes": requests * size, "live_bytes": size, "cached_bytes": 2 * size,
             "pending_bytes": size, "peak.live_bytes": 2 * size, "peak.reserved_bytes": 4 * size,
             "hits.queried": 5, "hits.barrier": 6, "hits.waited": 2, "evictions.cap": 1,
             "driver.calls": 9, "driver.nanoseconds": 123456789, "saved_at_least_nanoseconds": 987654321}
    given.update({name.replace("__", "."): number for name, number in more.items()})
    return given


written = 0


def write(content):
    global written
    written += 1
    path = f"{here}/{written}.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)
    return path


# --- the schema: as much of JSON Schema as report.schema.json uses ---------------------------------


def breach(schema, content, root, place="$"):
    """Why the content does not fit the schema, or None."""
    if "$ref" in schema:
        return breach(root["$defs"][schema["$ref"].rpartition("/")[2]], content, root, place)
    if "oneOf" in schema:
        whys = [breach(one, content, root, place) for one in schema["oneOf"]]
        return None if whys.count(None) == 1 else f"{place}: {whys}"
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool,
             "number": (int, float), "null": type(None)}
    wanted = schema.get("type")
    if wanted is not None:
        wanted = wanted if isinstance(wanted, list) else [wanted]
        if not any(isinstance(content, kinds[one]) and
                   (one == "boolean" or not isinstance(content, bool)) for one in wanted):
            return f"{place}: {content!r} is not {wanted}"
    if "const" in schema and content != schema["const"]:
        return f"{place}: {content!r} is not {schema['const']!r}"
    if "minimum" in schema and not isinstance(content, str) and content < schema["minimum"]:
        return f"{place}: {content} is under {schema['minimum']}"
    if "pattern" in schema and isinstance(content, str) and not re.search(schema["pattern"], content):
        return f"{place}: {content!r} does not match"
    if isinstance(content, dict):
        properties = schema.get("properties", {})
        missing = [key for key in schema.get("required", []) if key not in content]
        unknown = [key for key in content if key not in properties]
        if missing or (unknown and schema.get("additionalProperties") is False):
            return f"{place}: missing {missing}, unknown {unknown}"
        for key in content:
            why = breach(properties.get(key, {}), content[key], root, f"{place}.{key}")
            if why:
                return why
    if isinstance(content, list):
        for i, item in enumerate(content):
            why = breach(schema.get("items", {}), item, root, f"{place}[{i}]")
            if why:
                return why
    return None


def fits_schema(name, content):
    with open("configs/report.schema.json", encoding="utf-8") as file:
        schema = json.load(file)
    why = breach(schema, content, schema)
    expect(name + " fits its schema", why is None, why)


# --- merging --------------------------------------------------------------------------------------


def test_merging():
    one = write(report({512: bucket(100, 512), MIB: bucket(50, MIB), 0: bucket(20, 0)}, pid=1, rank="0"))
    other = write(report({MIB: bucket(70, MIB), 2 * MIB: bucket(20, 2 * MIB)}, pid=2, rank="1", ordinal=1))
    far = write(report({MIB: bucket(30, MIB)}, pid=1, host="node2"))
    second = write(report({MIB: bucket(40, MIB)}, pid=3, ordinal=1, uuid="GPU-2"))
    merged = json.loads(cudapool("--merge", "--format", "json", one, other, far, second))
    fits_schema("a merged report", merged)
    devices = [(d["host"], d["uuid"], d["processes"]) for d in merged["devices"]]
    expect("a device is one of a host, whatever number a process gives it",
           devices == [("node1", "GPU-1", 2), ("node1", "GPU-2", 1), ("node2", "GPU-1", 1)], devices)
    sizes = {b["bytes"]: b for b in merged["kinds"][0]["buckets"]}
    expect("buckets are ascending, what is not kept last", list(sizes) == [512, MIB, 2 * MIB, 0], sizes)
    expect("counters are summed", sizes[MIB]["requests"] == 190 and sizes[MIB]["driver"]["nanoseconds"] == 4 * 123456789, sizes[MIB])
    shared = merged["devices"][0]["kinds"][0]["buckets"]
    expect("peaks on one device are summed", shared[1]["peak"]["reserved_bytes"] == 8 * MIB, shared)
    expect("that of all devices is the largest", sizes[MIB]["peak"]["reserved_bytes"] == 8 * MIB, sizes[MIB])
    expect("totals are sums of the processes'", merged["totals"]["requests"] ==
           sum(p["totals"]["requests"] for p in merged["processes"]) == 330, merged["totals"])
    earlier, later = (with_history(report({MIB: bucket(90, MIB)}, pid=pid), start, times, live)
                      for pid, start, times, live in ((1, 1000, [10, 20, 30], [1, 2, 3]), (2, 1015, [5, 25], [10, 20])))
    history = json.loads(cudapool("--merge", "--format", "json", write(earlier), write(later)))["devices"][0]["history"]
    expect("histories are laid side by side and added up", (history["nanoseconds"], history["live_bytes"]) ==
           ([10, 20, 30, 31, 40], [1, 12, 13, 10, 20]), history)
    expect("what was counted stays counted", history["misses"] == [10, 25, 35, 35, 55], history)
    twice = json.loads(cudapool("--merge", "--format", "json", write(earlier), write(earlier), write(later)))
    expect("a process that is given twice counts once", [p["pid"] for p in twice["processes"]] == [1, 2] and
           twice["totals"]["requests"] == 180, twice["totals"])
    long = [with_history(report({MIB: bucket(90, MIB)}, pid=pid), 1000 + pid, range(1, 401, 3), range(134)) for pid in (1, 2)]
    thinned = json.loads(cudapool("--merge", "--format", "json", *map(write, long)))
    fits_schema("a merged report with a history", thinned)
    times = thinned["devices"][0]["history"]["nanoseconds"]
    expect("and thinned out evenly", len(times) == 128 and times[0] == 1 and times[-1] == 401, times)
    unknown = with_history(report({MIB: bucket(90, MIB)}, pid=3), 0, [7], [5])
    times = json.loads(cudapool("--merge", "--format", "json", write(earlier), write(unknown)))["devices"][0]["history"]["nanoseconds"]
    expect("a process that does not say when it started counts from its own start", times == [7, 8, 10, 20, 30], times)
    given = [report({MIB: bucket(90, MIB)}, pid=pid) for pid in (1, 2)]
    for content, start, last in zip(given, (1000, 1015), (50, 45)):
        content["process"]["started_nanoseconds"] = start
        content["devices"][0]["neighbours"]["given"] = exchange(MIB, 1, last)
    last = json.loads(cudapool("--merge", "--format", "json", *map(write, given)))["devices"][0]["neighbours"]["given"]["last_nanoseconds"]
    expect("without histories, too, times count from the first start", last == 60, last)
    text = cudapool("--merge", one, other, far, second)
    expect("the table says how many", text.startswith("cudapool: ran 2.5 s: 4 processes on 2 hosts, 3 devices\n"), text)
    expect("and what shared peaks are", "peak at most" in text and "need not have come at one time" in text, text)
    bundle = f"{here}/bundle.json"
    with open(bundle, "w", encoding="utf-8") as file:
        file.write(cudapool("--format", "json", one, other, far, second))
    with open(bundle, encoding="utf-8") as file:
        content = json.load(file)
    fits_schema("several reports in one file", content)
    expect("several reports in one file merge as they do in four",
           json.loads(cudapool("--merge", "--format", "json", bundle)) == merged)
    single = json.loads(cudapool("--format", "json", one))
    fits_schema("a report", single)
    expect("a report comes out as it went in", single["devices"] == json.load(open(one, encoding="utf-8"))["devices"])
    path = write(merged)
    expect("a merged report is not read again", "is a merged report, which cannot be read again" in
           cudapool(path, status=2))
    most = (1 << 64) - 1
    merged = json.loads(cudapool("--merge", "--format", "json", write_huge(most), write_huge(most)))
    expect("sums stop at the largest number", merged["totals"]["saved_at_least_nanoseconds"] == str(most), merged["totals"])


def write_huge(most):
    content = report({MIB: bucket(100, MIB)})
    for of in (content["devices"][0]["kinds"][0]["totals"], content["devices"][0]["kinds"][0]["buckets"][0]):
        of["saved_at_least_nanoseconds"] = str(most)
    return write(content)


def test_bad_files():
    good = write(report({MIB: bucket(100, MIB)}))
    with open(good, encoding="utf-8") as file:
        text = file.read()
    cut = f"{here}/cut.json"
    for length in range(0, len(text), 97):
        with open(cut, "w", encoding="utf-8") as file:
            file.write(text[:length])
        said = cudapool("--merge", good, cut, status=2)
        if not said.startswith(f"cudapool: {cut}: ") or said.count("\n") != 1:
            expect("a file cut short is one error", False, (length, said))
            break
    else:
        expect("a file cut short is one error", True)
    expect("a bad report among several is named", "reports[1].process: the key pid is missing" in cudapool(
        write({"cudapool_reports": 1, "reports": [report({}), dict(report({}), process={})]}), status=2))
    expect("and where its settings are wrong", "reports[1].settings.device.enabled: found 1, allowed is" in cudapool(
        write({"cudapool_reports": 1, "reports": [report({}), report({}, settings={"device": {"enabled": 1}})]}), status=2))
    expect("newer ones are refused", "cudapool_reports: found 2, allowed is" in
           cudapool(write({"cudapool_reports": 2, "reports": []}), status=2))
    expect("an unknown format", '--format: found "xml", allowed is table, json, csv, html, prometheus or trace' in
           cudapool("--format", "xml", good, status=2))
    expect("an unknown option", "unknown option --marge" in cudapool("--marge", good, status=2))
    expect("comparing one file", "--compare: found 1 files, allowed are two" in cudapool("--compare", good, status=2))
    expect("comparing as a trace", "found --format trace, allowed is table, json, csv or html" in
           cudapool("--compare", "--format", "trace", good, good, status=2))


# --- two runs -------------------------------------------------------------------------------------


def test_comparison():
    a = write(report({512: bucket(100, 512), MIB: bucket(50, MIB)}))
    b = write(report({MIB: bucket(80, MIB, misses=1), 0: bucket(20, 0)},
                     settings={"device": {"growth_budget": "64MiB"}, "report": {"file": "x"}}))
    compared = json.loads(cudapool("--compare", "--format", "json", a, b))
    fits_schema("a comparison", compared)
    rows = {row["bytes"]: row["difference"] for row in compared["differences"]}
    expect("a comparison has the buckets of both", list(rows) == [512, MIB, 0, None], rows)
    expect("and differences of all counters", rows[MIB]["requests"] == 30 and rows[MIB]["misses"] == -2 and
           rows[512]["requests"] == -100 and rows[None]["requests"] == -50, rows)
    expect("and of settings, but for where the report went", compared["settings"] ==
           [{"setting": "device.growth_budget", "a": "128MiB", "b": "64MiB"}], compared["settings"])
    text = cudapool("--compare", a, b)
    expect("the table shows both", "device.growth_budget: \"128MiB\" -> \"64MiB\"" in text and
           re.search(r"1 MiB +50 -> 80 \(\+30\) .* 3 -> 1 \(-2\)", text), text)
    expect("equal settings are said to be", "the settings are the same" in cudapool("--compare", a, a))
    lines = list(csv.DictReader(io.StringIO(cudapool("--compare", "--format", "csv", a, b), newline="")))
    found = {(line["bucket_bytes"], line["counter"]): line for line in lines}
    expect("so does CSV", found[(str(MIB), "requests")]["difference"] == "30" and
           found[("all", "misses")]["a"] == "6", lines[:3])


# --- CSV and Prometheus -----------------------------------------------------------------------------

AWKWARD = 'node "1", \\ <b>&\u00fc'


def test_csv():
    one = report({512: bucket(100, 512), MIB: bucket(50, MIB)}, host=AWKWARD, rank="3")
    text = cudapool("--format", "csv", write(one), write(report({MIB: bucket(20, MIB)}, pid=9)))
    expect("CSV lines end as RFC 4180 says", text.count("\r\n") == text.count("\n") == 4, text)
    lines = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    first = lines[0]
    expect("CSV keeps commas and quotation marks", first["host"] == AWKWARD and first["rank"] == "3", first)
    totals = [{name: int(line[name.replace(".", "_")]) for name in NAMES} for line in lines]
    expected = [{name: value(row, name) for name in NAMES}
                for row in one["devices"][0]["kinds"][0]["buckets"]]
    expect("CSV has every counter", totals[:2] == expected, totals)
    expect("CSV tells processes apart", [line["pid"] for line in lines] == ["1", "1", "9"], lines)
    merged = cudapool("--format", "csv", "--merge", write(one), write(one))
    expect("but not merged ones", list(csv.DictReader(io.StringIO(merged, newline="")))[0]["pid"] == "", merged)


def samples(text):
    """{(name, labels): value} of Prometheus' text."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, number = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line).groups()
        pairs = re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', labels or "")
        key = (name, tuple(sorted(pairs)))
        if key in found:
            return None
        found[key] = number
    return found


def test_prometheus():
    content = report({512: bucket(100, 512), MIB: bucket(50, MIB)}, host=AWKWARD, rank="3")
    second = report({MIB: bucket(20, MIB)}, pid=9)
    for name, arguments in (("of processes", []), ("merged", ["--merge"])):
        text = cudapool("--format", "prometheus", *arguments, write(content), write(second))
        found = samples(text)
        expect(f"Prometheus' text {name} has no sample twice", found is not None, text)
        families = {key[0] for key in found or {}}
        expect(f"every family {name} has HELP and TYPE", all(
            f"# HELP {family} " in text and f"# TYPE {family} " in text for family in families))
        requests = sum(int(number) for key, number in (found or {}).items() if key[0] == "cudapool_requests_total")
        expect(f"requests {name} add up", requests == 170, requests)
        if shutil.which("promtool"):
            done = subprocess.run(["promtool", "check", "metrics"], input=text.encode(), capture_output=True, timeout=60)
            expect(f"promtool accepts it, {name}", done.returncode == 0 and not done.stderr, done.stderr)
        else:
            print(f"skip promtool {name}: there is no promtool")
    labels = dict(next(key[1] for key in found if dict(key[1]).get("host") != "node1" and key[1]))
    expect("labels are escaped", labels["host"] == AWKWARD.replace("\\", "\\\\").replace('"', '\\"'), labels)
    seconds = {number for key, number in found.items() if key[0] == "cudapool_driver_seconds_total"}
    expect("times are in seconds", seconds == {"0.123456789"}, seconds)
    expect("a process twice is refused", "two reports are of process 1 on node1; --merge adds them up" in
           cudapool("--format", "prometheus", write(report({})), write(report({})), status=2))


# --- the page -------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """The numbers of a page by their keys, and whether its elements nest."""

    VOID = {"meta", "link", "br", "img"}

    def __init__(self, text):
        super().__init__()
        self.numbers, self.settings, self.rules, self.open, self.sound = {}, set(), [], [], True
        self.external = re.findall(r'(?:src|href)="?(?!#)[^">]+|url\(|@import|<script', text)
        self.feed(text)
        self.sound = self.sound and not self.open

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if "data-key" in attributes:
            self.numbers[attributes["data-key"]] = int(attributes["data-value"])
        if "data-setting" in attributes:
            self.settings.add(attributes["data-setting"])
        if "data-rule" in attributes:
            self.rules.append(attributes["data-rule"])

    def handle_endtag(self, tag):
        self.sound = self.sound and bool(self.open) and self.open.pop() == tag


def numbers_of(merged):
    """What a page must say: every key and its number, out of the merged report."""
    shown = ["requests", "hits.clean", "hits.queried", "hits.barrier", "hits.waited", "misses",
             "failures.memory", "failures.limit", "failures.group", "failures.other", "frees", "live_blocks",
             "evictions.cap", "evictions.idle", "evictions.memory", "evictions.free", "evictions.context",
             "peak.reserved_bytes", "driver.nanoseconds", "waits.nanoseconds", "waits.frees", "saved_at_least_nanoseconds"]
    wanted = {}
    for kind in merged["kinds"]:
        for row in kind["buckets"] + [dict(kind["totals"], bytes="totals")]:
            for name in shown:
                wanted[f"{kind['kind']}/{row['bytes']}/{name.replace('.', '_')}"] = value(row, name)
        for row in kind["buckets"]:
            if row["bytes"]:
                key = f"{kind['kind']}/sizes/{row['bytes'].bit_length() - 1}/requests"
                wanted[key] = wanted.get(key, 0) + row["requests"]
    for i, device in enumerate(merged["devices"]):
        for name in ("live_bytes", "cached_bytes", "pending_bytes", "peak.live_bytes", "peak.reserved_bytes"):
            wanted[f"devices/{i}/{name.replace('.', '_')}"] = sum(value(k["totals"], name) for k in device["kinds"])
        wanted[f"devices/{i}/total_bytes"] = device["total_bytes"]
        wanted[f"devices/{i}/processes"] = device["processes"]
        history = device.get("history", {"nanoseconds": []})
        for j in range(len(history["nanoseconds"])):
            for name in ("nanoseconds", "live_bytes", "cached_bytes", "pending_bytes", "peak_bytes", "misses"):
                wanted[f"devices/{i}/history/{j}/{name}"] = history[name][j]
            for rung in ("clean", "queried", "barrier", "waited"):
                wanted[f"devices/{i}/history/{j}/hits_{rung}"] = history["hits"][rung][j]
    for i, process in enumerate(merged["processes"]):
        for name in ("requests", "misses", "peak.reserved_bytes", "driver.nanoseconds", "saved_at_least_nanoseconds"):
            wanted[f"processes/{i}/{name.replace('.', '_')}"] = value(process["totals"], name)
        wanted[f"processes/{i}/failures"] = sum(process["totals"]["failures"].values())
    for name in ("requests", "saved_at_least_nanoseconds", "driver.nanoseconds", "waits.nanoseconds", "peak.reserved_bytes"):
        wanted[f"totals/{name.replace('.', '_')}"] = value(merged["totals"], name)
    wanted["totals/failures"] = sum(merged["totals"]["failures"].values())
    return wanted


def in_browser(path, *options):
    """The page's text after Chromium has rendered it, and what it complained about; None without it."""
    browser = shutil.which("chromium")
    if not browser or SANITIZED or os.environ.get("NO_BROWSER"):
        return None
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         f"--user-data-dir={here}/profile", "--enable-logging=stderr", "--log-level=0", "--dump-dom", *options, f"file://{path}"],
        capture_output=True, timeout=60)
    complaints = [line for line in done.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line]
    return done.stdout.decode(), done.returncode, complaints


def settings_in(schema):
    """How many settings a part of cudapool.schema.json describes."""
    properties = schema.get("properties", {})
    return sum(settings_in(part) for part in properties.values()) if properties else 1


def test_page():
    with open("configs/cudapool.schema.json", encoding="utf-8") as file:
        # But for $schema and version.
        described = settings_in(json.load(file)) - 2
    files = [write(with_history(report({512: bucket(1000, 512), 24 * MIB: bucket(500, 24 * MIB, hits__waited=300), 0: bucket(20, 0)},
                                       host=AWKWARD, rank="0", command="./train </code><script>alert(1)</script>"),
                                5, range(100, 600, 100), [0, MIB, 5 * MIB, 2 * MIB, 1])),
             write(report({MIB: bucket(70, MIB), MIB + 131072: bucket(20, MIB)}, pid=2, rank="1", ordinal=1, uuid="GPU-2"))]
    merged = json.loads(cudapool("--merge", "--format", "json", *files))
    text = cudapool("--format", "html", *files)
    page = Page(text)
    wanted = numbers_of(merged)
    expect("the page's numbers are the report's", page.numbers == wanted,
           [(key, page.numbers.get(key), wanted.get(key)) for key in {*wanted, *page.numbers}
            if page.numbers.get(key) != wanted.get(key)][:5])
    expect("the page gives the report's advice", page.rules == [one["rule"] for one in merged["advice"]] != [], page.rules)
    expect("the page shows every setting", len(page.settings) == described, page.settings)
    expect("the page's elements nest", page.sound, page.open)
    expect("the page needs nothing else", page.external == [], page.external)
    path = f"{here}/page.html"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    rendered = in_browser(path)
    if rendered is None:
        print("skip the page in Chromium: it is not installed, a sanitizer is at work, or NO_BROWSER is set")
        return
    dom, status, complaints = rendered
    expect("Chromium renders the page without a complaint", status == 0 and not complaints, complaints)
    expect("and finds the same numbers in it", Page(dom).numbers == wanted, dom[:300])
    test_in_use(text)


def test_curve():
    """One sample is a curve already; the most between two is marked; numbers are under the pointer."""
    short = with_history(report({MIB: bucket(90, MIB)}), 5, [1000000], [5 * MIB])
    short["devices"][0]["history"]["peak_bytes"] = [10 * MIB]
    page = cudapool("--format", "html", write(short))
    areas = re.findall(r'<polygon class="live" points="([^"]*)"', page)
    points = [tuple(map(float, point.split(","))) for point in areas[0].split()]
    expect("the last sample is drawn on", points[-2:] == [(1000.0, 100.0), (1000.0, 200.0)] and
           (980.3, 100.0) in points, points)
    expect("the peak between two samples is told", "peak: 10.0 MiB, by 1.0 ms" in page, re.findall("<figcaption>.*", page))
    expect("and marked", '<path class="mark" d="M980.3 0.0v200"/>' in page, re.findall('<path.*?>', page))
    expect("and a line", '<polyline class="peaks" points="0.0,0.0 980.3,0.0 "/>' in page, re.findall('<polyline.*?>', page))
    expect("values are under the pointer",
           "<title>from 1.0 ms: 5.0 MiB in use, 0 B cached, 0 B pending; at most 10.0 MiB before</title>" in page)
    expect("axes have ticks", re.search(r'<div class="ticks"[^>]*><span>10\.0 MiB</span><span>7\.5 MiB</span>', page) and
           re.search(r'<div class="axis"[^>]*><span>0 s</span><span>255\.0 us</span>', page), re.findall('<div class="(?:ticks|axis).*', page))
    old = with_history(report({MIB: bucket(90, MIB)}), 5, [10, 20], [5 * MIB, MIB])
    del old["devices"][0]["history"]["peak_bytes"]
    expect("without peaks the samples are all there is", "peak: 5.0 MiB, by 10 ns" in cudapool("--format", "html", write(old)))


def test_wall_time():
    slow, fast = report({MIB: bucket(90, MIB)}), report({MIB: bucket(90, MIB)})
    fast["process"]["wall_seconds"] = 1.0
    lines = cudapool("--compare", write(slow), write(fast)).splitlines()
    expect("compare begins with wall times", lines[0].startswith("A: ran 2.5 s: 1 process, ") and
           lines[1].startswith("B: ran 1.0 s: 1 process, ") and lines[2] == "B ran 2.50 times as fast as A", lines[:3])
    page = cudapool("--format", "html", write(fast))
    expect("so does the page", re.search(r'<dl class="tiles">\s*<div><dt>wall time</dt><dd class="n">1\.0 s</dd>', page))
    first, second = report({MIB: bucket(90, MIB)}, pid=1), report({MIB: bucket(90, MIB)}, pid=2)
    first["process"]["started_nanoseconds"], second["process"]["started_nanoseconds"] = 10**18, 10**18 + 10**9
    merged = json.loads(cudapool("--merge", "--format", "json", write(first), write(second)))
    expect("wall time is from the first start to the last end", merged["wall_seconds"] == 3.5, merged["wall_seconds"])
    metrics = cudapool("--format", "prometheus", "--merge", write(first), write(second))
    expect("Prometheus has it", "\ncudapool_wall_seconds{} 3.500000000\n" in metrics)


def test_host_memory():
    """Its requests count like all others, and its bytes are none of the device's."""
    both = report({MIB: bucket(90, MIB)})
    pinned = json.loads(json.dumps(both["devices"][0]["kinds"][0]))
    pinned["kind"] = "host"
    both["devices"][0]["kinds"].append(pinned)
    other = report({MIB: bucket(100, MIB)}, pid=2)
    merged = json.loads(cudapool("--merge", "--format", "json", write(both), write(other)))
    totals = merged["totals"]
    expect("requests of host memory count", totals["requests"] == 280, totals)
    expect("what is held of it is not the device's", (totals["live_bytes"], totals["cached_bytes"], totals["pending_bytes"]) ==
           (2 * MIB, 4 * MIB, 2 * MIB) and totals["peak"] == {"live_bytes": 4 * MIB, "reserved_bytes": 8 * MIB}, totals)
    expect("nor the process's peak", [one["totals"]["peak"]["reserved_bytes"] for one in merged["processes"]] == [4 * MIB] * 2)
    kinds = {kind["kind"]: kind["totals"] for kind in merged["devices"][0]["kinds"]}
    expect("it has figures of its own", kinds["host"]["live_bytes"] == MIB and kinds["host"]["peak"]["reserved_bytes"] == 4 * MIB, kinds)
    text = cudapool("--merge", write(both), write(other))
    expect("the table tells of it beside the device", "peak at most 4.0 MiB in use, 8.0 MiB reserved\n" in text and
           "  host memory: 90 requests, " in text and "  device memory: 190 requests, " in text, text)
    page = cudapool("--format", "html", write(both))
    expect("and so does the page", re.search(r"<h2[^>]*>[^<]*host[^<]*</h2>", page) and
           f'data-value="{8 * MIB}"' not in page, re.findall(r"<h2[^>]*>[^<]*</h2>", page))
    metrics = cudapool("--format", "prometheus", write(both))
    expect("and Prometheus", 'kind="host"' in metrics)


def test_failures():
    failing = report({MIB: bucket(90, MIB, failures__limit=6, failures__memory=5)})
    metrics = cudapool("--format", "prometheus", write(failing))
    expect("Prometheus counts failures by reason",
           re.search(r'cudapool_failures_total\{.*bucket_bytes="1048576",reason="limit"\} 6\n', metrics) and
           re.search(r'cudapool_failures_total\{.*bucket_bytes="1048576",reason="memory"\} 5\n', metrics), metrics[-800:])
    rows = list(csv.DictReader(io.StringIO(cudapool("--format", "csv", write(failing)))))
    expect("so does CSV", rows[0]["failures_limit"] == "6" and rows[0]["failures_memory"] == "5", rows)
    text = cudapool(write(failing))
    expect("and the table", "  11 requests failed: 5 for want of device memory, 6 at the process's limit\n" in text and
           re.search(r"^ +all +90 +\S+ +\d+ +5 +6 +2 +3 +11 ", text, re.M), text)


def test_end():
    """How a process ended, in every form."""
    content = report({MIB: bucket(90, MIB)})
    content["process"].update(ending="killed", signal=11)
    path = write(content)
    expect("how it ended is in the table", "\nkilled by SIGSEGV: the figures are those of its last moment\n" in cudapool(path))
    expect("and in JSON", json.loads(cudapool("--format", "json", path))["process"]["signal"] == 11)
    expect("and on the page", "</code>, killed by SIGSEGV</td>" in cudapool("--format", "html", path))
    content["process"].update(pid=2, exit_status=7)
    del content["process"]["signal"]
    both = cudapool("--merge", path, write(content))
    expect("and in the table of several", "./train, killed by SIGSEGV\n" in both and "./train, ended by _exit(7)\n" in both, both)


# What a reader without a mouse, in the dark or with a printer has of the page. The copy may run a script,
# which finds out and says so at the end of the page.
PROBE = """<script>addEventListener('load',()=>{
const places=[...document.querySelectorAll('.scroll,summary')];document.querySelectorAll('details').forEach(d=>d.open=true);
const lost=places.filter(p=>{p.focus();return document.activeElement!==p||getComputedStyle(p).outlineStyle==='none'});
const style=getComputedStyle(document.body),colours=new Set([...document.querySelectorAll('polygon')].map(p=>getComputedStyle(p).fill));
const tall=[...document.querySelectorAll('svg')].every(s=>s.getBoundingClientRect().height>50&&s.getBoundingClientRect().width>200);
const cut=[...document.querySelectorAll('.scroll')].filter(p=>p.scrollWidth>p.clientWidth).map(p=>p.getAttribute('aria-label'));
if(document.documentElement.scrollWidth>innerWidth)cut.push('the page itself');
document.title=JSON.stringify({cut,places:places.length,lost:lost.length,back:style.backgroundColor,text:style.color,colours:colours.size,tall});
});</script>"""


def in_use(path, scheme):
    dom, _, _ = in_browser(path, f"--blink-settings=preferredColorScheme={scheme}")
    return json.loads(html.unescape(re.search("<title>(.*?)</title>", dom).group(1)))


def brightness(colour):
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3


def test_in_use(text):
    path = f"{here}/probe.html"
    with open(path, "w", encoding="utf-8") as file:
        file.write(re.sub("<meta http-equiv=.*?>", "", text).replace("</body>", PROBE + "</body>"))
    light, dark = in_use(path, 1), in_use(path, 0)
    # A window that was not active in time has no focus to show.
    tries = 0
    while light["lost"] == light["places"] and tries < 4:
        light = in_use(path, 1)
        tries += 1
    expect("what scrolls or unfolds can be reached by keyboard, and shows it", light["places"] > 4 and light["lost"] == 0, light)
    expect("the page is light", brightness(light["back"]) > 200 and brightness(light["text"]) < 100, light)
    expect("or dark", brightness(dark["back"]) < 60 and brightness(dark["text"]) > 180, dark)
    expect("the curves are drawn, each layer in its colour", light["tall"] and light["colours"] == 5, light)
    in_browser(path, f"--print-to-pdf={here}/page.pdf")
    with open(f"{here}/page.pdf", "rb") as file:
        printed = file.read()
    expect("the page can be printed", printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") >= 1, printed[:100])


def wide(pid):
    """A process of which every number is as wide as they come, and its names as well."""
    most = {name.replace(".", "__"): 987654321987 for name in NAMES if name != "requests"}
    most.update(misses=1_234_567_890, evictions__cap=123456, evictions__idle=234567,
                evictions__memory=345678, evictions__free=456789, evictions__context=5678)
    rows = {size: bucket(8_000_000_000_000, size, **most) for size in (1040 << 10, MIB + 131072, 24 * MIB, 3 << 30, 0)}
    content = with_history(report(rows, pid=pid, host="a-host-with-a-rather-long-name-" + "x" * 40, rank="1023",
                               command="python3 /home/somebody/project/" + "very/long/" * 30 + "train.py --config " + "y" * 200,
                               settings={"device": {"growth_budget": f"{pid}MiB"}}), 5, range(100, 600, 100), range(5))
    most = exchange(987654321987654, 98765432, 8_765_432_109_876)
    content["devices"][0].update(limits={**LIMITED, "group": "g" * 63}, neighbours=neighbours(
        given=most, got=most, left=most, asked=98765432, silent=9876543, others_held_bytes=987654321987654))
    content["devices"][0]["history"].update(given_bytes=[987654321987654] * 5, got_bytes=[987654321987654] * 5)
    return content


def test_widths():
    """Nothing is cut off at 1280 pixels, of one run or of two."""
    one, other = write(wide(4190001)), write(wide(4190002))
    for name, arguments in (("a page", [one, other]), ("a page of two runs", ["--compare", one, other])):
        text = cudapool("--format", "html", *arguments)
        path = f"{here}/wide.html"
        with open(path, "w", encoding="utf-8") as file:
            file.write(re.sub("<meta http-equiv=.*?>", "", text).replace("</body>", PROBE + "</body>"))
        rendered = in_browser(path, "--window-size=1280,1000")
        if rendered is not None:
            cut = json.loads(html.unescape(re.search("<title>(.*?)</title>", rendered[0]).group(1)))["cut"]
            expect(f"{name} cuts nothing at 1280 pixels", cut == [], cut)


def test_comparison_page():
    a = report({512: bucket(100, 512), MIB: bucket(50, MIB)}, command="./a </code><script>")
    b = report({MIB: bucket(80, MIB, misses=1)}, settings={"device": {"growth_budget": "64M"}}, command="./b")
    a["process"].update(version="0.1.0", driver="580.1", cuda_version=13000, started_nanoseconds=1795348453 * 10**9)
    text = cudapool("--compare", "--format", "html", write(a), write(b))
    page = Page(text)
    expect("the page of two runs nests and needs nothing else", page.sound and page.external == [], (page.open, page.external))
    expect("it has the numbers of both", (page.numbers["device/1048576/misses/a"], page.numbers["device/1048576/misses/b"],
                                          page.numbers["device/512/requests/b"], page.numbers["comparison/requests/a"]) == (3, 1, 0, 150), page.numbers)
    expect("their settings where they differ, as they came", "device.growth_budget" in text and "&quot;64M&quot;" in text, text[-900:])
    expect("their commands", "./a &lt;/code&gt;" in text and "./b" in text, text[:900])
    expect("and where they come from", "cudapool 0.1.0, driver 580.1 (CUDA 13.0), 2026-11-22 11:54:13 UTC" in text, text[:1500])


# --- files, pipes and traces ----------------------------------------------------------------------


def test_output():
    path = write(report({MIB: bucket(100, MIB)}))
    expected = {".json": "json", ".csv": "csv", ".html": "html", ".prom": "prometheus", ".txt": "table",
                ".trace": "trace", ".trace.json": "trace"}
    for suffix, kind in expected.items():
        name = f"{here}/out{suffix}"
        expect(f"-o x{suffix} says nothing", cudapool("-o", name, path) == "")
        with open(name, encoding="utf-8", newline="") as file:
            expect(f"-o x{suffix} is {kind}", file.read() == cudapool("--format", kind, path))
    expect("--format goes before the name", cudapool("--format", "csv", "-o", f"{here}/y.html", path) == "")
    with open(f"{here}/y.html", encoding="utf-8") as file:
        expect("and is what is written", file.read().startswith("host,"))
    expect("-o - is stdout", cudapool("-o", "-", path) == cudapool(path))
    expect("an end that says no format", 'x.doc", whose end says no format; allowed are .txt,' in cudapool("-o", f"{here}/x.doc", path, status=2))
    with open(f"{here}/kept.json", "w", encoding="utf-8") as file:
        file.write("before")
    cudapool("-o", f"{here}/kept.json", path, f"{here}/nowhere", status=2)
    with open(f"{here}/kept.json", encoding="utf-8") as file:
        expect("a file is replaced only by a whole one", file.read() == "before")
    expect("nothing is left beside it", not [name for name in os.listdir(here) if name.endswith(".tmp")], os.listdir(here))
    expect("a directory that is not there", "cannot be written: No such file" in cudapool("-o", f"{here}/no/x.csv", path, status=2))
    with open(path, "rb") as file:
        done = subprocess.run([COMMAND, "report", "-"], stdin=file, capture_output=True, timeout=20)
    expect("- is stdin", done.stdout.decode() == cudapool(path), done.stderr)
    done = subprocess.run(["bash", "-c", f"'{COMMAND}' report --merge <(cat '{path}')"], capture_output=True, timeout=20)
    expect("pipes are read", done.stdout.decode() == cudapool("--merge", path), done.stderr)


def test_trace():
    one, other = (with_history(report({MIB: bucket(90, MIB)}, pid=7, rank=rank), start, times, live)
                  for rank, start, times, live in (("0", 1000, [1000, 2000, 5000], [1, 2, 3]), ("", 3000, [500], [10])))
    trace = json.loads(cudapool("--format", "trace", write(one), write(other)))
    events = trace["traceEvents"]
    expect("each process of a trace has a name", [event["args"]["name"] for event in events if event["ph"] == "M"] ==
           ["rank 0, process 7 on node1: ./train", "process 7 on node1: ./train"], events[:1])
    expect("and a number of its own", {event["pid"] for event in events} == {1, 2})
    memory = [(event["pid"], event["ts"], event["args"]["in use"]) for event in events if event["name"] == "device 0: bytes"]
    expect("a trace has the memory, on one clock, in microseconds", memory ==
           [(1, 0, 0), (1, 1, 1), (1, 2, 2), (1, 5, 3), (2, 2, 0), (2, 2.5, 10)], memory)
    rates = [(event["ts"], event["args"]["hits"], event["args"]["misses"]) for event in events
             if event["name"] == "device 0: requests a second" and event["pid"] == 1]
    expect("and the requests until the next sample", rates == [(0, 1e6, 1e9), (1, 1e6, 1e9), (2, 1e9 / 3000, 1e9), (5, 0, 0)] or
           [round(rate[1]) for rate in rates] == [1000000, 1000000, 333333, 0], rates)
    expect("merged traces are refused", "each process has counters of its own" in
           cudapool("--merge", "--format", "trace", write(one), status=2))


GIB = 1 << 30
GIVING = {"given": exchange(3 * GIB, 2, 5_000_000_000), "got": exchange(GIB, 1, 7_000_000_000),
          "left": exchange(10 * GIB, 4, 9_000_000_000), "asked": 10, "silent": 3, "others_held_bytes": 40 * GIB}
LIMITED = {"device_bytes": 3 * GIB, "device_from": "GPU_MEMORY_LIMIT", "group": "job-7", "group_bytes": 8 * GIB,
           "group_from": "limits.group_bytes"}


def neighbourly(pid=7, start=1000, given=GIVING, limits=LIMITED, housekeeper=None, **more):
    """A report of a process that is not alone."""
    content = with_history(report({MIB: bucket(90, MIB, **more)}, pid=pid), start, [1000, 2000, 5000], [1, 2, 3])
    content["devices"][0].update(neighbours=neighbours(**given), **({"limits": limits} if limits else {}),
                                 segments={"count": 2, "bytes": 40 * MIB, "spare_bytes": 3 * MIB, "cuts": 900, "refused_exports": 1}, stalled_waits=3)
    content["devices"][0]["history"].update(given_bytes=[0, 5, given["given"]["bytes"]], got_bytes=[0, 0, 6])
    content["housekeeper"] = housekeeper or {"state": "runs", "wakeups": 12, "board": "joined"}
    return content


def test_neighbours():
    one = neighbourly()
    fits_schema("a report of a process that is not alone", one)
    path, second = write(one), write(neighbourly(pid=8, start=2_000_001_000))
    text = cudapool(path)
    for line in ("limits: 3 GiB for the process (GPU_MEMORY_LIMIT), 8 GiB for all of the group job-7 (limits.group_bytes)",
                 "gave 3.0 GiB to other processes, 2 times, the last 5.0 s after the start",
                 "got 1.0 GiB from other processes, 1 time, the last 7.0 s after the start",
                 "left 10.0 GiB free for processes without the pool, 4 times, the last 9.0 s after the start",
                 "asked other processes for memory 10 times; 3 times one did not answer",
                 "900 blocks were cut out of larger ones; 40.0 MiB was cut at the end, 3.0 MiB of it spare",
                 "refused to export such a block 1 time: device.buckets.policy is split",
                 "waited a second for the GPU without result, 3 times; frees wait for a while after that, or barriers stay off"):
        expect("the table: " + line.split(",")[0], f"\n  {line}\n" in text, text)
    again = json.loads(cudapool("--format", "json", path))
    expect("it comes out as it went in", again["devices"] == one["devices"] and again["housekeeper"] == one["housekeeper"], again)
    merged = json.loads(cudapool("--merge", "--format", "json", path, second))
    fits_schema("merged ones", merged)
    device = merged["devices"][0]
    expect("bytes and times are summed, the last time is the last one's, from the first one's start", device["neighbours"] == {
        "given": exchange(6 * GIB, 4, 7_000_000_000), "got": exchange(2 * GIB, 2, 9_000_000_000), "left": exchange(20 * GIB, 8, 11_000_000_000),
        "asked": 20, "silent": 6, "others_held_bytes": 40 * GIB}, device["neighbours"])
    expect("limits that are the same stay", device["limits"] == LIMITED, device)
    expect("segments are summed", device["segments"] == {"count": 4, "bytes": 80 * MIB, "spare_bytes": 6 * MIB, "cuts": 1800,
                                                         "refused_exports": 2}, device["segments"])
    expect("and each process has its housekeeper", [p["housekeeper"]["wakeups"] for p in merged["processes"]] == [12, 12])
    expect("a device's history goes on", device["history"]["given_bytes"][-1] == 6 * GIB and device["history"]["got_bytes"][-1] == 12, device["history"])
    other = json.loads(cudapool("--merge", "--format", "json", path, write(neighbourly(pid=8, limits={**LIMITED, "device_bytes": GIB}))))
    expect("others are not told", "limits" not in other["devices"][0], other["devices"][0])
    text = cudapool("--merge", path, second)
    expect("the table of several", "\n  gave 6.0 GiB to other processes, 4 times, the last 7.0 s after the start\n" in text and
           "\n  limits: 3 GiB for the process" in text, text)
    trace = [event["args"] for event in json.loads(cudapool("--format", "trace", path))["traceEvents"]
             if event["name"] == "device 0: bytes from process to process"]
    expect("a trace has it over time", trace == [{"given": 0, "got": 0}, {"given": 5, "got": 0}, {"given": 3 * GIB, "got": 6}], trace)
    rows = list(csv.DictReader(io.StringIO(cudapool("--format", "csv", path), newline=""), strict=True))
    row = [row for row in rows if row["kind"] == "neighbours"]
    expect("CSV has a line of it", len(rows) == 2 and len(row) == 1 and row[0]["bucket_bytes"] == row[0]["requests"] == "" and
           (row[0]["neighbours_given_bytes"], row[0]["neighbours_left_times"], row[0]["neighbours_others_held_bytes"]) ==
           (str(3 * GIB), "4", str(40 * GIB)) and rows[0]["neighbours_given_bytes"] == "", rows)
    metrics = cudapool("--format", "prometheus", path)
    labels = r'\{host="node1",device="0",uuid="GPU-1",pid="7",rank=""'
    for line in (rf"cudapool_neighbours_given_bytes_total{labels}\}} {3 * GIB}", rf"cudapool_neighbours_silent_total{labels}\}} 3",
                 rf'cudapool_limit_bytes{labels},group="",from="GPU_MEMORY_LIMIT"\}} {3 * GIB}',
                 rf'cudapool_limit_bytes{labels},group="job-7",from="limits.group_bytes"\}} {8 * GIB}'):
        expect("Prometheus: " + line.split("{")[0].split("\\")[0], re.search(f"^{line}$", metrics, re.M), metrics[-3000:])


def unpooled(size, refused):
    """As many bytes of each kind as in turn."""
    return {kind: {"live_bytes": size * (i + 1), "peak_bytes": 3 * size * (i + 1), "refused": refused * i}
            for i, kind in enumerate(("physical", "arrays", "managed", "graphs", "opened"))}


def test_unpooled():
    one, other = (report({MIB: bucket(90, MIB)}, pid=pid) for pid in (7, 8))
    one["devices"][0]["unpooled"], other["devices"][0]["unpooled"] = unpooled(GIB, 2), unpooled(MIB, 0)
    fits_schema("a report of memory beside the pool", one)
    paths = [write(one), write(other)]
    for line in ("beside the pool, at most: cuMemCreate 3.0 GiB, arrays 6.0 GiB, managed 9.0 GiB, graphs 12.0 GiB, "
                 "opened 15.0 GiB",
                 "beside the pool, at the end: cuMemCreate 1.0 GiB, arrays 2.0 GiB, managed 3.0 GiB, graphs 4.0 GiB, "
                 "opened 5.0 GiB",
                 "requests beside the pool that a limit refused: arrays 2, managed 4, graphs 6, opened 8"):
        expect("the table: " + line.split(":")[0], f"\n  {line}\n" in cudapool(paths[0]), cudapool(paths[0]))
    expect("nothing of what is not there", "that a limit refused" not in cudapool(paths[1]), cudapool(paths[1]))
    merged = json.loads(cudapool("--merge", "--format", "json", *paths))
    fits_schema("merged reports of memory beside the pool", merged)
    expect("memory beside the pool is summed", merged["devices"][0]["unpooled"]["arrays"] ==
           {"live_bytes": 2 * GIB + 2 * MIB, "peak_bytes": 6 * GIB + 6 * MIB, "refused": 2}, merged["devices"][0]["unpooled"])
    again = json.loads(cudapool("--format", "json", paths[0]))
    expect("memory beside the pool comes out as it went in", again["devices"] == one["devices"], again)
    older = json.loads(json.dumps(one))
    for kind in ("graphs", "opened"):
        del older["devices"][0]["unpooled"][kind]
    expect("an older report lacks kinds", "managed 9.0 GiB\n" in cudapool(write(older)), cudapool(write(older)))
    rows = list(csv.DictReader(io.StringIO(cudapool("--format", "csv", paths[0]), newline=""), strict=True))
    row = {row["kind"]: row for row in rows}["arrays"]
    expect("CSV has a line of each kind", (row["live_bytes"], row["peak_live_bytes"], row["failures_limit"]) ==
           (str(2 * GIB), str(6 * GIB), "2"), rows)
    metrics = cudapool("--format", "prometheus", paths[0])
    labels = r'\{host="node1",device="0",uuid="GPU-1",pid="7",rank=""'
    for line in (rf'cudapool_unpooled_live_bytes{labels},memory="arrays"\}} {2 * GIB}',
                 rf'cudapool_unpooled_peak_bytes{labels},memory="physical"\}} {3 * GIB}',
                 rf'cudapool_unpooled_refused_total{labels},memory="managed"\}} 4'):
        expect("Prometheus: " + line.split("{")[0].split("\\")[0], re.search(f"^{line}$", metrics, re.M), metrics[-3000:])


def graphs(**more):
    return {**{name: 0 for name in ("captures", "without_owner", "failed", "owners", "kept_blocks", "kept_bytes", "peak_kept_bytes", "bystander_bytes", "astray",
                                    "most_owned_bytes", "most_owned_capture", "most_owned_stream", "most_owned_nanoseconds", "launches",
                                    "uploads", "memory_nodes", "in_place_of_nodes")}, **more}


def test_graphs():
    one, other = (report({MIB: bucket(90, MIB)}, pid=pid) for pid in (7, 8))
    one["graphs"] = graphs(captures=3, failed=1, owners=2, kept_bytes=GIB, peak_kept_bytes=2 * GIB, most_owned_bytes=2 * GIB,
                           most_owned_capture=2, most_owned_stream=17, most_owned_nanoseconds=5_000_000_000, launches=1000, uploads=4, memory_nodes=7, in_place_of_nodes=5,
                           bystander_bytes=GIB)
    other["graphs"] = graphs(captures=5, kept_bytes=GIB, peak_kept_bytes=GIB, most_owned_bytes=GIB, most_owned_capture=5,
                             most_owned_stream=13, launches=10)
    fits_schema("a report of graphs", one)
    paths = [write(one), write(other)]
    for line in ("graphs: 3 captures that could allocate, of which 1 left no graph; of what was freed, graphs kept 1.0 GiB at the end and "
                 "2.0 GiB at most", "graphs: with memory of 2 captures at the end; 1000 launches, 4 uploads",
                 "graphs: 7 allocations were captured as memory nodes, and 5 got a block in the place of one",
                 "graphs: threads that only ran beside captures freed 1.0 GiB, which those kept",
                 "graphs: most belonged to capture 2, begun on stream 0x11 after 5.0 s: 2.0 GiB"):
        expect("the table: " + line, f"\n{line}\n" in cudapool(paths[0]), cudapool(paths[0]))
    merged = json.loads(cudapool("--merge", "--format", "json", *paths))
    fits_schema("merged reports of graphs", merged)
    expect("graphs are summed, but for the capture to which most belonged", merged["graphs"] == graphs(
        captures=8, failed=1, owners=2, kept_bytes=2 * GIB, peak_kept_bytes=3 * GIB, most_owned_bytes=2 * GIB, most_owned_capture=2,
        most_owned_stream=17, most_owned_nanoseconds=5_000_000_000, launches=1010, uploads=4, memory_nodes=7, in_place_of_nodes=5, bystander_bytes=GIB), merged["graphs"])
    expect("and each process has its own", [p["graphs"] for p in merged["processes"]] == [one["graphs"], other["graphs"]])
    text = cudapool("--merge", *paths)
    expect("the table of several", "\ngraphs: most belonged to capture 2, begun on stream 0x11 after 5.0 s: 2.0 GiB\n" in text, text)
    plain = json.loads(cudapool("--merge", "--format", "json", write(report({MIB: bucket(90, MIB)}))))
    expect("without the setting nothing is said", "graphs" not in plain and "graphs" not in plain["processes"][0], plain)


def test_neighbours_page():
    """The numbers of a page of processes that are not alone are the merged report's, and its parts nest."""
    files = [write(neighbourly()), write(neighbourly(pid=8, start=2_000_001_000))]
    device = json.loads(cudapool("--merge", "--format", "json", *files))["devices"][0]
    wanted = {}
    for name, number in device["neighbours"].items():
        for part, inner in (number.items() if isinstance(number, dict) else [("", number)]):
            wanted["devices/0/neighbours/" + "_".join(filter(None, (name, part)))] = inner
    for column in ("given_bytes", "got_bytes"):
        wanted.update({f"devices/0/history/{i}/{column}": number for i, number in enumerate(device["history"][column])})
    text = cudapool("--format", "html", *files)
    page = Page(text)
    expect("the page has what went from process to process", len(wanted) == 12 + 2 * len(device["history"]["nanoseconds"]) and
           {key: page.numbers.get(key) for key in wanted} == wanted, [(key, page.numbers.get(key)) for key in wanted])
    expect("and its elements nest", page.sound and page.external == [], (page.open, page.external))
    expect("and the limits", "device 0 on node1: limits: 3 GiB for the process (GPU_MEMORY_LIMIT), 8 GiB for all" in html.unescape(text))


def test_alone():
    """Who is alone is told nothing of others."""
    path = write(with_history(report({MIB: bucket(90, MIB)}, pid=7), 1000, [1000, 2000], [1, 2]))
    text = cudapool(path)
    expect("a table of a process that is alone", not re.search("other processes|limits:|group", text), text)
    page = cudapool("--format", "html", path)
    expect("its page", "Other processes" not in page and "given to others" not in page)
    rows = list(csv.DictReader(io.StringIO(cudapool("--format", "csv", path), newline="")))
    expect("its CSV", [row["kind"] for row in rows] == ["device"], rows)
    expect("its trace", "from process to process" not in cudapool("--format", "trace", path))
    text = cudapool("--compare", path, path)
    expect("its comparison", "other processes" not in text, text)


def test_what_keeps_a_process_alone():
    why = {"state": "runs", "wakeups": 0, "board": "refused", "board_why": "/dev/shm is full"}
    cannot = {"state": "cannot", "wakeups": 0, "board": "joined"}
    quiet_one = neighbourly(given={name: exchange() for name in ("given", "got", "left")}, limits=None, housekeeper=why)
    expect("a refusal that mattered to nobody is not told", "neither asked" not in cudapool(write(quiet_one)))
    quiet_one["devices"][0]["history"]["cached_bytes"] = [0, 9 * MIB, 0]
    text = cudapool(write(quiet_one))
    expect("one that did is", "\nother processes were neither asked nor heard: /dev/shm is full\n" in text, text)
    text = cudapool(write(neighbourly(housekeeper=why)))
    expect("with a group, what it means for the group", ", and a limit of a group held for this one alone: /dev/shm is full\n" in text, text)
    text = cudapool(write(neighbourly(housekeeper=cannot)))
    expect("no thread", "\nno thread of the pool's own could be made: " in text, text)
    quiet_one["settings"] = {"neighbours": {"enabled": False}}
    text = cudapool(write(quiet_one))
    expect("switched off", re.search("^other processes .*: neighbours.enabled is false$", text, re.M), text)
    text = cudapool("--merge", write(neighbourly(pid=1, housekeeper=cannot)), write(neighbourly(pid=2)), write(neighbourly(pid=3, housekeeper=cannot)))
    expect("of several processes each is told once", re.search("^2 of 3 processes: no thread of the pool's own", text, re.M), text)
    page = cudapool("--format", "html", write(neighbourly(housekeeper=cannot)))
    expect("the page says it, too", "1 of 1 processes: no thread of the pool" in page)
    bad = neighbourly(housekeeper={"state": "asleep", "wakeups": 0, "board": "joined"})
    expect("a state that is none", "housekeeper.state: found \"asleep\", allowed is never, runs, went, off or cannot" in
           cudapool(write(bad), status=2))
    bad = neighbourly(limits={"device_bytes": 5})
    expect("a limit of nobody's", "devices[0].limits: the key device_from is missing" in cudapool(write(bad), status=2))


def test_neighbours_compared():
    a, b = write(neighbourly()), write(neighbourly(given={**GIVING, "given": exchange(GIB, 1, 1), "got": exchange()}))
    text = cudapool("--compare", a, b)
    expect("a comparison has both", "\ngiven to other processes, A -> B: 3.0 GiB -> 1.0 GiB\n" in text and
           "\ngot from other processes, A -> B: 1.0 GiB -> 0 B\n" in text, text)
    fits_schema("a comparison of processes that are not alone", json.loads(cudapool("--compare", "--format", "json", a, b)))
    lines = list(csv.DictReader(io.StringIO(cudapool("--compare", "--format", "csv", a, b), newline="")))
    given = [line for line in lines if line["kind"] == "neighbours" and line["counter"] == "given_bytes"]
    expect("as CSV", [(line["a"], line["b"], line["difference"]) for line in given] == [(str(3 * GIB), str(GIB), str(-2 * GIB))], given)
    page = cudapool("--compare", "--format", "html", a, b)
    expect("as a page", "given to other processes" in page and f'data-value="{3 * GIB}"' in page)


def test_own_paths():
    """Where `cudapool run` collected the reports is no setting that anybody chose."""
    own = {"figures": {"directory": "/dev/shm/cudapool-Ab12xY"},
           "report": {"at_exit": "json", "file": "/dev/shm/cudapool-Ab12xY/%h-%p-%r.json"}}
    text = cudapool("--format", "html", write(report({MIB: bucket(90, MIB)}, settings=own)))
    expect("paths of our own are not shown", "Ab12xY" not in text)
    chosen = {"figures": {"directory": "/data/cudapool-figures"}, "report": {"file": "/data/%p.json"}}
    text = cudapool("--format", "html", write(report({MIB: bucket(90, MIB)}, settings=chosen)))
    expect("others are", "/data/cudapool-figures" in text and "/data/%p.json" in text)


# --- advice ---------------------------------------------------------------------------------------


def advice(content):
    merged = json.loads(cudapool("--merge", "--format", "json", write(content)))
    return {one["rule"]: one for one in merged["advice"]}


def quiet(requests, size, **more):
    """A bucket that nothing can be said about."""
    return bucket(requests, size, **{"evictions__cap": 0, "hits__waited": 0, "misses": 4, **more})


def advises(rule, content, setting, old, new, says):
    one = advice(content).get(rule, {})
    expect(f"advice: {rule}, {setting}", (one.get("setting"), one.get("from"), one.get("to")) == (setting, old, new) and
           re.search(says, one.get("text", "")), one)


def says(rule, content, text):
    """A rule that finds something, and proposes no setting."""
    found = advice(content)
    one = found.get(rule, {"setting": "", "text": ""})
    expect(f"advice: {rule}", rule in found and one["setting"] == "" and re.search(text, one["text"]), found)


def missing(requests, size, **more):
    return quiet(requests, size, misses=requests, hits__queried=0, hits__barrier=0, **more)


def host(content, settings=None):
    """The same report, of pinned host memory."""
    content["devices"][0]["kinds"][0]["kind"] = "host"
    content["settings"] = {"host": settings or {}}
    return content


def test_advice_on_host_memory():
    """The device's size, its limits and barriers are nothing to it, and how much the machine has is not known."""
    size = 24 * MIB
    waiting = {size: quiet(1000, size, hits__waited=200)}
    advises("growth_budget_is_short", host(report(waiting)), "host.growth_budget", "32MiB", "64MiB", "from 32MiB to 64MiB")
    advises("growth_budget_is_short", host(report(waiting, total=16 * MIB)), "host.growth_budget", "32MiB", "64MiB", "from 32MiB")
    expect("advice: none on a share of nobody knows what", advice(host(report(waiting), {"growth_budget": "1%"})) == {})
    capped = {size: quiet(1000, size, misses=100, evictions__cap=90, peak__live_bytes=20 * size, peak__reserved_bytes=21 * size)}
    advises("caps_are_low", host(report(capped)), "host.caps.cached", "6%", "12%", "from 6% to 12%, if the machine has the room")
    advises("caps_are_low", host(report(capped), {"caps": {"blocks_per_bucket": 4}}), "host.caps.blocks_per_bucket", "4", "16", "from 4 to 16")
    advises("caps_are_low", host(report(capped), {"caps": {"cached": "24MiB"}}), "host.caps.cached", "24MiB", "64MiB", "from 24MiB to 64MiB")
    much = {size: quiet(1000, size, misses=100, evictions__cap=90, peak__live_bytes=20 * size, peak__reserved_bytes=24 * size)}
    advises("caps_are_low", host(report(much)), "host.caps.reserve_ratio", "1.15", "1.5", "from 1.15 to 1.5")
    short = {50 * MIB: quiet(10, 50 * MIB, misses=1, failures__memory=1, hits__queried=0, hits__barrier=0)}
    says("requests_fail_for_memory", host(report(short)), r"^1 request of 50 MiB failed: the driver had no more host memory")
    waits = {size: quiet(1000, size, waits__frees=900, waits__nanoseconds=1234567890)}
    advises("frees_wait", host(report(waits), {"free_synchronizes": True}), "host.free_synchronizes", "true", "false",
            "because host\\.free_synchronizes is true")
    large = {0: quiet(500, 0, misses=500, hits__queried=0, hits__barrier=0, requested_bytes=500 * (2 << 30)), size: quiet(500, size)}
    advises("large_requests_are_not_kept", host(report(large)), "host.buckets.largest", "1GiB", "100%", "from 1GiB to 100%")


def test_advice_without_settings():
    size = 24 * MIB
    failing = {50 * MIB: quiet(10, 50 * MIB, misses=1, failures__limit=6, hits__queried=0, hits__barrier=0)}
    advises("requests_fail_at_the_limit", report(failing, settings={"limits": {"device_bytes": "200MiB"}}),
            "limits.device_bytes", "200MiB", "400MiB", r"^6 requests of 50 MiB failed at your limit of 200 MiB\. .* raise limits\.device_bytes from 200MiB to 400MiB")
    short = {50 * MIB: quiet(10, 50 * MIB, misses=1, failures__memory=1, hits__queried=0, hits__barrier=0)}
    says("requests_fail_for_memory", report(short), r"^1 request of 50 MiB failed: the device was out of memory")
    two = {50 * MIB: quiet(10, 50 * MIB, misses=1, failures__memory=4, hits__queried=0, hits__barrier=0),
           size: quiet(10, size, misses=1, failures__memory=2, hits__queried=0, hits__barrier=0)}
    says("requests_fail_for_memory", report(two), r"^6 requests, most of them \(4\) of 50 MiB, failed")
    waits = {size: quiet(1000, size, waits__frees=900, waits__nanoseconds=1234567890)}
    says("frees_wait", report(waits), r"^900 of 1000 frees waited for the GPU, 1\.2 s in all, because work that the host may have to release")
    advises("frees_wait", report(waits, settings={"device": {"free_synchronizes": True}}), "device.free_synchronizes",
            "true", "false", "because device\\.free_synchronizes is true")
    kept = report({size: missing(1000, size, frees=3)})
    says("memory_is_never_freed", kept, r"^1000 of 1000 requests missed because next to nothing is freed \(3 blocks\)")
    captured = report({0: missing(1000, size)})
    captured["devices"][0]["captured"] = 800
    says("captures_go_to_the_driver", captured, r"^800 of 1000 requests came while a stream was being captured.* those\. .* with captures\.allocate set to true")
    says("captures_go_to_the_driver", {**captured, "settings": {"captures": {"allocate": True}}}, r"lets them hit\.$")
    few = report({size: quiet(1000, size, failures__other=1)})
    few["devices"][0]["captured"] = 1
    says("captures_go_to_the_driver", few, r"^1 of 1000 requests .* most captures forbid them and fail\. .* with captures\.allocate")
    odd = {size + 512 * i: missing(2, size) for i in range(100)}
    advises("sizes_do_not_come_back", report(odd), "device.buckets.steps_per_doubling", "8", "2",
            r"^200 of 200 requests missed: they were of 100 different sizes, which hardly come back\. Change device\.buckets\.steps_per_doubling from 8 to 2")
    says("sizes_do_not_come_back", report(odd, settings={"device": {"buckets": {"policy": "pow2"}}}), "hardly come back\\.$")
    unwanted = {n * MIB: missing(10, n * MIB, evictions__free=9) for n in range(1, 21)}
    advises("blocks_go_back_before_they_are_wanted", report(unwanted), "device.buckets.policy", "geometric", "split",
            r"^200 of 200 requests missed, of 20 different sizes, and most blocks went back")
    expect("advice: blocks are cut already", "blocks_go_back_before_they_are_wanted" not in
           advice(report(unwanted, settings={"device": {"buckets": {"policy": "split"}}})))
    streams = report({size: missing(1000, size, peak__live_bytes=size, peak__reserved_bytes=9 * size)},
                     settings={"stream_ordered": {"reuse": {"opportunistic": False}}})
    streams["devices"][0]["kinds"][0]["kind"] = "stream_ordered"
    advises("blocks_are_on_other_streams", streams, "stream_ordered.reuse.opportunistic", "false", "true", "on other streams")
    streams["settings"] = {}
    says("blocks_are_on_other_streams", streams, "Freeing on the stream that allocates next lets them hit")
    says("most_requests_miss", report({size: missing(1000, size)}), r"^1000 of 1000 requests missed: when they came")
    much = {size: quiet(1000, size, peak__live_bytes=2 * size, peak__reserved_bytes=40 * size)}
    advises("much_is_reserved", report(much), "device.caps.cached", "50%", "64MiB", "held up to 960.0 MiB for a program that had at most 48.0 MiB")
    page = cudapool("--format", "html", write(report({size: quiet(50, size)})))
    expect("advice: few requests are no all-clear", "too seldom for the pool to matter" in page)
    page = cudapool("--format", "html", write(report({size: quiet(1000, size)})))
    expect("advice: where there is none, the numbers say why", re.search("None: 9[0-9.]+% of 1000 requests were answered", page), page[:100])
    text = cudapool(write(report(failing, settings={"limits": {"device_bytes": "200MiB"}})))
    expect("advice is under the table", re.search(r"^advice: 6 requests of 50 MiB failed .* To try it: --set limits\.device_bytes=400MiB$", text, re.M), text)
    text = cudapool("--merge", *(write(kept) for _ in range(2)))
    expect("and under that of several processes", re.search(r"^advice: 2000 of 2000 requests missed because next to nothing is freed", text, re.M), text)


def test_advice_on_neighbours():
    size = 24 * MIB
    grouped = {50 * MIB: quiet(10, 50 * MIB, misses=1, failures__group=6, hits__queried=0, hits__barrier=0)}
    advises("requests_fail_at_the_groups_limit", report(grouped, settings={"limits": {"group": "a", "group_bytes": "200MiB"}}),
            "limits.group_bytes", "200MiB", "400MiB",
            r"^6 requests of 50 MiB failed at your group's limit of 200 MiB, which all of its processes share\. .* raise limits\.group_bytes from")
    contained = report(grouped)
    contained["devices"][0]["limits"] = {"group": "container-1", "group_bytes": 3 * GIB, "group_from": "GPU_MEMORY_LIMIT"}
    says("requests_fail_at_the_groups_limit", contained,
         r"^6 requests of 50 MiB failed at the container's limit of 3 GiB, which all of its processes share \(GPU_MEMORY_LIMIT in the environment\)\.$")
    failing = report({50 * MIB: quiet(10, 50 * MIB, misses=1, failures__limit=6, hits__queried=0, hits__barrier=0)})
    failing["devices"][0]["limits"] = {"device_bytes": 3 * GIB, "device_from": "CUDA_DEVICE_MEMORY_LIMIT_0"}
    says("requests_fail_at_the_limit", failing,
         r"^6 requests of 50 MiB failed at the container's limit of 3 GiB \(CUDA_DEVICE_MEMORY_LIMIT_0 in the environment\)\.$")
    del failing["devices"][0]["limits"]
    says("requests_fail_at_the_limit", failing, r"^6 requests of 50 MiB failed at the container's limit\.$")
    short = report({50 * MIB: quiet(10, 50 * MIB, misses=1, failures__memory=1, hits__queried=0, hits__barrier=0)})
    short["devices"][0]["neighbours"] = neighbours(others_held_bytes=40 * GIB)
    says("requests_fail_for_memory", short, r"of the device's 80\.0 GiB; up to 40\.0 GiB were held by other processes, the driver, or past the pool\.$")
    short["devices"][0]["neighbours"] = neighbours(others_held_bytes=7 * GIB)
    says("requests_fail_for_memory", short, r"of the device's 80\.0 GiB\.$")
    fine = report({size: quiet(1000, size)})
    fine["devices"][0]["neighbours"] = neighbours(asked=40, silent=3)
    expect("advice: few that are silent", advice(fine) == {}, advice(fine))
    fine["devices"][0]["neighbours"] = neighbours(asked=30, silent=3)
    says("neighbours_are_silent", fine, r"^Other processes were asked for memory 30 times, and 3 times one of them did not answer")
    fine["devices"][0]["neighbours"] = neighbours(left=exchange(8 * GIB - 1, 5, 1))
    expect("advice: little that is left free", advice(fine) == {}, advice(fine))
    fine["devices"][0]["neighbours"] = neighbours(left=exchange(9 * GIB, 5, 1))
    advises("much_is_left_free", fine, "neighbours.leave_free", "2%", "1%",
            r"^9\.0 GiB went back to the driver, 5 times, because other processes grew .* lower it from 2% to 1%")
    fine["settings"] = {"neighbours": {"leave_free": "1MiB"}}
    advises("much_is_left_free", fine, "neighbours.leave_free", "1MiB", "0", "from 1MiB to 0")
    del fine["devices"][0]["neighbours"]
    expect("advice: a report of an older build", advice(fine) == {}, advice(fine))


def test_advice():
    size = 24 * MIB
    fine = report({size: quiet(1000, size)})
    expect("advice: none where all is well", advice(fine) == {}, advice(fine))
    few = report({size: quiet(50, size, hits__waited=30)})
    expect("advice: none on few requests", advice(few) == {}, advice(few))
    waiting = {size: quiet(1000, size, hits__waited=200)}
    advises("growth_budget_is_short", report(waiting), "device.growth_budget", "128MiB", "256MiB",
            r"^200 of 1000 requests waited .* \(200\) in the bucket of 24 MiB.* Raise device\.growth_budget from 128MiB to 256MiB")
    expect("advice: none past half of the device", advice(report(waiting, total=256 * MIB)) == {})
    advises("growth_budget_is_short", report(waiting, settings={"device": {"growth_budget": 0}}), "device.growth_budget",
            "0", "64MiB", "from 0 to 64MiB")
    expect("advice: no wait, no budget", "growth_budget_is_short" not in advice(report({size: quiet(1000, size, hits__waited=99)})))
    idle = {size: quiet(1000, size, misses=100, evictions__idle=90)}
    advises("idle_blocks_are_missed", report(idle), "device.release_after_idle", "10s", "1min",
            r"^The bucket of 24 MiB misses \(100 times\) because its blocks went back to the driver after 10s .* Raise")
    expect("advice: nothing on blocks that never go back",
           advice(report(idle, settings={"device": {"release_after_idle": "0s"}})) == {})
    capped = {size: quiet(1000, size, misses=100, evictions__cap=90)}
    advises("caps_are_low", report(capped), "device.caps.reserve_ratio", "1.15", "1.5", "over a cap .* Raise")
    advises("caps_are_low", report(capped, settings={"device": {"caps": {"blocks_per_bucket": 4}}}),
            "device.caps.blocks_per_bucket", "4", "16", "from 4 to 16")
    advises("caps_are_low", report(capped, settings={"device": {"caps": {"cached": "40MiB"}}}),
            "device.caps.cached", "40MiB", "80MiB", "from 40MiB to 80MiB")
    short = {size: quiet(1000, size, misses=100, evictions__memory=50)}
    advises("memory_ran_out", report(short), "device.growth_budget", "128MiB", "32MiB",
            "^Memory ran out: 50 free blocks .* low-memory.json")
    both = advice(report({size: quiet(1000, size, misses=100, evictions__memory=50, hits__waited=500)}))
    expect("advice: one word on one setting", list(both) == ["memory_ran_out"], both)
    large = {0: quiet(500, 0, misses=500, hits__queried=0, hits__barrier=0, requested_bytes=500 * (50 << 30)), size: quiet(500, size)}
    advises("large_requests_are_not_kept", report(large), "device.buckets.largest", "50%", "100%",
            "^500 of 1000 requests are over the largest bucket")
    expect("advice: nothing where all sizes are kept already",
           list(advice(report(large, settings={"device": {"buckets": {"largest": "100%"}}}))) == ["most_requests_miss"])
    wasteful = {size: quiet(1000, size, requested_bytes=600 * size)}
    advises("rounding_wastes_memory", report(wasteful), "device.buckets.steps_per_doubling", "8", "16", "added 66 %")
    advises("rounding_wastes_memory", report(wasteful, settings={"device": {"buckets": {"policy": "pow2"}}}),
            "device.buckets.policy", "pow2", "geometric", "from pow2 to geometric")
    odd = {size + 512 * i: quiet(100, size, misses=80, hits__queried=0, hits__barrier=0) for i in range(20)}
    advises("exact_sizes_do_not_come_back", report(odd, settings={"device": {"buckets": {"policy": "exact"}}}),
            "device.buckets.policy", "exact", "geometric", "^1600 of 2000 requests missed, of 20 different sizes")
    test_advice_on_host_memory()
    test_advice_without_settings()
    if SANITIZED:
        return  # `true` does not bear a sanitizer's library that is not the first
    for content in (report(waiting), report(capped), report(idle), report(short), report(large), report(wasteful)):
        for one in advice(content).values():
            done = subprocess.run([COMMAND, "run", "--set", f"{one['setting']}={one['to']}", "true"], capture_output=True,
                                  env={**os.environ, "LD_PRELOAD": ""}, timeout=20)
            expect(f"advice can be taken: {one['rule']}", done.returncode == 0, done.stderr)


# --- many -----------------------------------------------------------------------------------------


def merge_in_proportion(name, files):
    """Four times as many files take less than eight times as long, of one thread's processor time."""
    seconds = []
    for some in (files[: len(files) // 4], files):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = cudapool("--merge", *some)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime)
    expect(f"1000 {name} merge in proportion", seconds[1] <= 8 * seconds[0] + 0.05, f"{seconds}")
    return text, used


def test_many():
    """1000 ranks: 2 s and 200 MiB, and a bar on a terminal."""
    if SANITIZED:
        return
    content = report({MIB * (i + 1): bucket(1000, MIB * (i + 1)) for i in range(40)})
    files = []
    for rank in range(1000):
        content["process"].update(pid=rank + 1, rank=str(rank), host=f"node{rank // 8}")
        content["devices"][0].update(ordinal=rank % 8, uuid=f"GPU-{rank}")
        files.append(write(content))
    text, used = merge_in_proportion("files", files)
    expect("all of them", re.match(r"cudapool: ran 2\.5 s: 1000 processes on 125 hosts, 1000 devices\n", text), text[:100])
    peak = used.ru_maxrss / 1024
    expect("within 200 MiB", peak <= 200, f"{peak:.0f} MiB")
    seen = seen_on_a_slow_terminal([COMMAND, "report", "--merge", *files])
    expect("with a bar on a terminal", BAR.search(seen) and seen.endswith(b"\r\x1b[K"), seen[-80:])


BAR = re.compile(rb"\r\[=* *\] \d+ of 1000 reports")


def seen_on_a_slow_terminal(command):
    """What a command writes on a terminal while it is stopped again and again, until it has drawn a bar."""
    main, side = os.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=side, env=environment)
    os.close(side)
    seen = b""
    while True:
        if not BAR.search(seen) and not select.select([main], [], [], 0.004)[0]:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.15)
            process.send_signal(signal.SIGCONT)
            continue
        try:
            part = os.read(main, 4096)
        except OSError:
            part = b""
        if not part:
            process.wait()
            return seen
        seen += part


def test_many_figures():
    """The same of 1000 files of figures, of processes that were killed."""
    if SANITIZED:
        return
    with open("tests/fuzz/corpus/figures/killed", "rb") as file:
        figures = bytearray(file.read())
    files = []
    for rank in range(1000):
        figures[FIGURES_PID:FIGURES_PID + 8] = (rank + 1).to_bytes(8, "little")
        files.append(f"{here}/{rank}.figures")
        with open(files[-1], "wb") as file:
            file.write(figures)
    text, used = merge_in_proportion("files of figures", files)
    expect("all of those", re.match(r"cudapool: ran [0-9.]+ [um]s: 1000 processes on 1 host, 1 device\n", text), text[:100])
    expect("within 200 MiB, too", used.ru_maxrss / 1024 <= 200, f"{used.ru_maxrss / 1024:.0f} MiB")


def test_start():
    """What `cudapool run` adds to a program that does nothing: scripts/instructions_per_pair.sh counts it."""
    if SANITIZED:
        return

    def seconds(arguments):
        start = time.perf_counter()
        subprocess.run(arguments, check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start

    pairs = [(seconds(["/bin/true"]), seconds([COMMAND, "run", "/bin/true"])) for _ in range(30)]
    plain, run = (min(times) for times in zip(*pairs))
    expect("`cudapool run true` waits for nothing", run <= 15 * plain, f"{run / plain:.1f} times `true`")


with tempfile.TemporaryDirectory() as here:
    test_many()
    test_many_figures()
    for test in (test_start, test_merging, test_bad_files, test_comparison, test_comparison_page, test_csv, test_prometheus,
                 test_output, test_trace, test_own_paths, test_page, test_widths, test_curve, test_wall_time, test_failures, test_host_memory,
                 test_end, test_advice, test_advice_on_neighbours, test_neighbours, test_unpooled, test_graphs, test_neighbours_page, test_alone, test_what_keeps_a_process_alone,
                 test_neighbours_compared):
        test()
sys.exit(1 if failed else 0)
