#!/usr/bin/env python3
"""Writes tests/RULES.md: for each rule of the pool which mutation breaks it, and which test sees it.

usage: rules.py [check]     check: writes nothing, and says what is wrong

The rules come from TABLE.md, which run.sh writes of what it has seen caught, under the subjects of
the entries; those that no mutation breaks from without.md. Every test that a row names must be
there. Exit status 0: the page is written, or right; 1: something is wrong.
"""
import glob
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PAGE = os.path.join(ROOT, "tests", "RULES.md")

HEAD = """# Every rule of the pool, and which test sees it broken

`tests/mutations/rules.py` writes this page, and `make test` fails where it is not what the mutations say
([how they are made](mutations), [what was seen](mutations/TABLE.md)). `random` runs random programs
until one differs from its run without the pool, reads data that it should not, or is reported by the race
detector; `unit SUITE TEST` is a test in `tests/unit`; the other checks are functions of
`tests/mutations/run.sh`. A rule that begins with dots goes on from the one above it.
"""
TAIL = """
## Rules without a mutation

A test holds them, and none of the mutations breaks them.

| Rule | Seen by | Why no mutation |
|---|---|---|
"""


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def rows(text):
    """The cells of each row of the tables in a document, but for their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row[0] != "Rule" and set(row[0]) != {"-"}]


def subjects():
    """The subject that each mutation's entry stands under, in their order."""
    found = {}
    for path in sorted(glob.glob(os.path.join(HERE, "*.mutations"))):
        subject = os.path.basename(path)[3:-len(".mutations")].replace("_", " ")
        for name in re.findall(r"^mutation\s+(\w+)", read(path), re.M):
            found[name] = subject
    if not found:
        subject = ""
        entry = re.compile(r"^/\* -+ (.*?) -+ \*/|^MUTATION\((\w+)", re.M)
        for title, name in entry.findall(read("tests", "mutations", "mutations.def")):
            subject = title or subject
            if name:
                found[name] = subject
    return found


def page(under):
    text, subject = HEAD, None
    for rule, mutation, check, *_ in rows(read("tests", "mutations", "TABLE.md")):
        name = re.match(r"`(\w+)`", mutation)[1]
        if under.get(name) != subject:
            subject = under.get(name)
            text += f"\n## {subject[0].upper() + subject[1:]}\n\n| Rule | Broken by | Seen by |\n"
            text += "|---|---|---|\n"
        text += f"| {rule} | {mutation} | {check} |\n"
    text += TAIL
    for rule, seen, why in rows(read("tests", "mutations", "without.md")):
        text += f"| {rule} | `{seen}` | {why} |\n"
    return text


def unit_tests():
    files = glob.glob(os.path.join(ROOT, "tests", "unit", "*", "test_*.c"))
    return {test for path in files for test in re.findall(r"^Test\((\w+),\s*(\w+)", read(path), re.M)}


def is_there(seen, tests):
    """Whether what a row says sees a rule exists; a check of run.sh is its own business."""
    kind, *words = seen.strip("`").split()
    if kind == "unit":
        return tuple(words[:2]) in tests
    if kind == "kinds":
        return f'{{"{words[0]}", ' in read("tests", "e2e", "kinds.c")
    if kind == "e2e":
        script = os.path.join(ROOT, "tests", "e2e", words[0])
        return os.path.exists(script) and all(word in read(script) for word in words[1:])
    return True


def main():
    if sys.argv[1:] not in ([], ["check"]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    under = subjects()
    text = page(under)
    table = rows(read("tests", "mutations", "TABLE.md"))
    wrong = [f"TABLE.md has the mutation {row[1].split('`')[1]}, which has no entry"
             for row in table if row[1].split("`")[1] not in under]
    told = {row[1].split("`")[1] for row in table}
    wrong += [f"TABLE.md lacks the mutation {name}" for name in under
              if name not in told and name != "none"]
    tests = unit_tests()
    wrong += [f'"{row[0]}" names {row[-2] if len(row) < 5 else row[2]}, which is not there'
              for row in table + rows(read("tests", "mutations", "without.md"))
              if not is_there(row[2] if len(row) == 5 else row[1], tests)]
    if sys.argv[1:] == ["check"]:
        if not os.path.exists(PAGE) or read(PAGE) != text:
            wrong.append("tests/RULES.md is not what the mutations say; tests/mutations/rules.py writes it")
    else:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(text)
    print("\n".join(wrong), end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
