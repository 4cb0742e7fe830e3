#!/usr/bin/env python3
"""Adds up what gcov counted in every object of a build, and holds core/ and shim/ to a goal.

usage: coverage.py BUILD REASONS [-v]

A line or a branch of a file is covered where any object that the file is part of has executed it.
Branches are gcov's: each way out of each conditional jump of the unoptimised code, those that the
compiler makes of &&, ||, ?: and switch included. REASONS is a Markdown file; each row "| file |
function | why |" in it says why lines of a function are not covered. Exits 1 below the goal,
and where a function with uncovered lines has no such row. -v lists the branches.
"""
import glob
import json
import os
import subprocess
import sys

GOAL_LINES, GOAL_BRANCHES = 95.0, 90.0


class Line:
    def __init__(self, function):
        self.function = function
        self.count = 0
        self.branches = []

    def add(self, line):
        self.count += line["count"]
        ways = [way["count"] for way in line["branches"]]
        longer, shorter = sorted((self.branches, ways), key=len, reverse=True)
        self.branches = [n + (shorter[i] if i < len(shorter) else 0) for i, n in enumerate(longer)]


def counted_by_gcov(objects):
    """What gcov says of each object's sources, as parsed JSON, a file at a time."""
    for start in range(0, len(objects), 20):
        output = subprocess.run(
            ["gcov", "--json-format", "--branch-probabilities", "--stdout"]
            + objects[start:start + 20], check=True, capture_output=True, text=True).stdout
        for document in output.splitlines():
            yield from json.loads(document)["files"]


def read_counts(build):
    files = {}
    objects = glob.glob(os.path.join(build, "**", "*.gcno"), recursive=True)
    for file in counted_by_gcov(sorted(o for o in objects if "/obj/sim" not in o)):
        name = os.path.relpath(os.path.join(os.getcwd(), file["file"]))
        if not name.startswith(("core/", "shim/")):
            continue
        lines = files.setdefault(name, {})
        for line in file["lines"]:
            at = lines.setdefault(line["line_number"], Line(line.get("function_name", "")))
            at.add(line)
    return files


def read_reasons(path):
    """(file, function) of every row of the table."""
    rows = (line.split("|") for line in open(path, encoding="utf-8") if line.startswith("|"))
    cells = [[cell.strip().strip("`") for cell in row] for row in rows]
    return {(row[1], row[2]) for row in cells if len(row) > 4 and row[1].endswith((".c", ".h"))}


def percent(part, whole):
    return 100.0 * part / whole if whole else 100.0


class Sum:
    def __init__(self):
        self.lines = self.covered_lines = self.branches = self.covered_branches = 0

    def add(self, lines):
        for line in lines.values():
            self.lines += 1
            self.covered_lines += line.count > 0
            self.branches += len(line.branches)
            self.covered_branches += sum(count > 0 for count in line.branches)

    def __str__(self):
        return "%5d of %5d lines %5.1f %%, %5d of %5d branches %5.1f %%" % (
            self.covered_lines, self.lines, percent(self.covered_lines, self.lines),
            self.covered_branches, self.branches, percent(self.covered_branches, self.branches))


def ranges(numbers):
    """[3, 4, 5, 9] as "3-5, 9"."""
    parts = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join("%d-%d" % (a, b) if a != b else str(a) for a, b in parts)


def uncovered_functions(files, is_uncovered):
    found = {}
    for name, lines in files.items():
        for number, line in lines.items():
            if is_uncovered(line):
                found.setdefault((name, line.function), []).append(number)
    return dict(sorted(found.items()))


def main():
    build, reasons_path = sys.argv[1], sys.argv[2]
    files, total, good = read_counts(build), Sum(), True
    for name in sorted(files):
        one = Sum()
        one.add(files[name])
        total.add(files[name])
        print("%-26s %s" % (name, one))
    reasons = read_reasons(reasons_path)
    uncovered = uncovered_functions(files, lambda line: line.count == 0)
    for (name, function), numbers in uncovered.items():
        known = (name, function) in reasons
        print("not covered%s: %s:%s (%s)" % (
            "" if known else ", without a reason", name, ranges(numbers), function))
        good = good and known
    for name, function in sorted(reasons - set(uncovered)):
        print("covered after all, says %s: %s (%s)" % (reasons_path, name, function))
    if "-v" in sys.argv:
        half = uncovered_functions(files, lambda line: line.count and 0 in line.branches)
        for (name, function), numbers in half.items():
            print("not all branches: %s:%s (%s)" % (name, ranges(numbers), function))
    print("coverage of core/ and shim/: %s" % total)
    good = good and percent(total.covered_lines, total.lines) >= GOAL_LINES
    good = good and percent(total.covered_branches, total.branches) >= GOAL_BRANCHES
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
