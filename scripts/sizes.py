#!/usr/bin/env python3
"""Holds the sources of core/, shim/ and tools/ to sizes that a reader can take in.

usage: sizes.py [ROOT]

A file has at most 600 lines. A function has at most 40, from its name to its closing brace. A struct
has at most 25 fields in a row, a struct within it being one of them: a longer one has sections, each of
which begins with a comment that stands on lines of its own, after an empty line or as the first thing
in the struct. The whole is held to core/CEILINGS, where there is one: a line for each, a number and what
it is of. Prints what is larger, the largest first, and exits 1.

It reads sources as clang-format leaves them: what is defined begins and ends in the first column.
"""
import os
import re
import sys

TREES = ("core", "shim", "tools")
TEXTS = (".c", ".h", ".S", ".def")
FILE_LINES, FUNCTION_LINES, FIELDS = 600, 40, 25
STRUCT = re.compile(r"(?:typedef )?(?:static )?(?:struct|union)\b(.*)\{$")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
PARENTHESES = re.compile(r"\([^()]*\)")
OPENING = re.compile(r"\s*(?:struct|union|enum)(?:\s+\w+)?\s*")
CEILINGS = "core/CEILINGS"
VISITED = " visits"  # scripts/functions_visited.sh holds these
# What may stand before a function's name in parentheses.
ATTRIBUTES = re.compile(r"__attribute__\(\(.*?\)\)|_Atomic\(.*?\)")
NAME = re.compile(r"(?:[A-Z]\w*\()?([a-z_]\w*)\s*[(,)]")


def without_macros(lines):
    """Lines of the preprocessor, and what they continue on, as empty lines."""
    continued, kept = False, []
    for line in lines:
        directive = continued or line.lstrip().startswith("#")
        continued = directive and line.endswith("\\")
        kept.append("" if directive else line)
    return kept


def functions(lines):
    """(number of the first line, name, number of lines) of each function."""
    for start, line in enumerate(lines):
        if line != "{":
            continue
        first = start
        while first > 0 and (lines[first - 1][:1] not in ("", "}", ";", "/", "*")
                             and not lines[first - 1].endswith((";", "*/"))):
            first -= 1
        end = next((i for i in range(start, len(lines)) if lines[i] == "}"), len(lines) - 1)
        name = NAME.search(ATTRIBUTES.sub("", " ".join(lines[first:start])))
        yield first + 1, name[1] if name else lines[first], end - first + 1


def fields_of(text):
    """How many fields a piece of a struct's body declares; a struct within it is one of them."""
    text, nested = COMMENT.sub(" ", text), re.compile(r"\([^(){}]*\)|\{[^(){}]*\}")
    while nested.search(text):
        text = nested.sub(" ", text)
    return sum(1 + declaration.count(",") for declaration in text.split(";")
               if re.search(r"\w", declaration))


def begins_section(lines, i):
    return lines[i].lstrip().startswith(("/*", "//")) and (
        not lines[i - 1].strip() or lines[i - 1].endswith("{"))


def structs(lines):
    """(number of the first line, name, fields in its longest section) of each struct."""
    for start, line in enumerate(lines):
        opened = STRUCT.match(line)
        if not opened:
            continue
        end = next((i for i in range(start, len(lines)) if lines[i].startswith("}")), len(lines) - 1)
        cuts = [start + 1] + [i for i in range(start + 1, end) if begins_section(lines, i)] + [end]
        longest = max(fields_of("\n".join(lines[a:b])) for a, b in zip(cuts, cuts[1:]))
        yield start + 1, opened[1].strip() or lines[end].strip("}; "), longest


def measure(path):
    """(what, its size, the bound, where) of everything that a file has."""
    with open(path, encoding="utf-8") as text:
        lines = text.read().splitlines()
    yield "file", len(lines), FILE_LINES, path
    lines = without_macros(lines)
    for number, name, size in functions(lines):
        yield "function", size, FUNCTION_LINES, "%s:%d: %s" % (path, number, name)
    for number, name, size in structs(lines):
        yield "struct", size, FIELDS, "%s:%d: %s" % (path, number, name)


def lines_of_code(text):
    """Lines with more than a comment."""
    return sum(1 for line in COMMENT.sub("", STRING.sub("s", text)).splitlines() if line.strip())


def all_fields(lines):
    """How many fields each struct has, those of structs within it included."""
    text = "\n".join(lines)
    for body in re.findall(r"^(?:typedef )?(?:static )?struct\b[^;{]*\{$(.*?)^\}", text, re.M | re.S):
        flat = COMMENT.sub(" ", body).replace("{", ";").replace("}", " ")
        while PARENTHESES.search(flat):
            flat = PARENTHESES.sub(" ", flat)
        yield sum(1 + declaration.count(",") for declaration in flat.split(";")
                  if declaration.strip() and not OPENING.fullmatch(declaration))


def read_whole(paths):
    """What there is of each thing that may have a ceiling."""
    code, fields, directories = 0, 0, {}
    for path in paths:
        with open(path, encoding="utf-8") as source:
            text = source.read()
        code += lines_of_code(text)
        fields = max([fields, *all_fields(without_macros(text.splitlines()))])
        directories[os.path.dirname(path)] = directories.get(os.path.dirname(path), 0) + 1
    return {"lines of code in all": code,
            "files in core": sum(1 for path in paths if path.startswith("core/")),
            "files in a directory": max(directories.values(), default=0),
            "fields in a struct, with those of structs within": fields}


def past_ceilings(paths):
    """A sentence for each ceiling that is passed, or is nobody's."""
    if not os.path.exists(CEILINGS):
        return
    whole = read_whole(paths)
    with open(CEILINGS, encoding="utf-8") as ceilings:
        for number, line in enumerate(ceilings, 1):
            if not line.strip() or line.startswith("#"):
                continue
            most, _, what = line.strip().partition(" ")
            what = what.strip()
            if most.isdigit() and what.endswith(VISITED):
                continue
            if not most.isdigit() or what not in whole:
                yield "%s:%d: must be a number and one of: %s" % (CEILINGS, number, "; ".join(whole))
            elif whole[what] > int(most):
                yield "%d %s, at most %s (%s)" % (whole[what], what, most, CEILINGS)


def main():
    if len(sys.argv) > 2:
        print(__doc__, file=sys.stderr)
        return 2
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), ".."))
    paths = [os.path.join(directory, name) for tree in TREES for directory, _, names in os.walk(tree)
             for name in names if name.endswith(TEXTS)]
    large = [thing for path in paths for thing in measure(path) if thing[1] > thing[2]]
    units = {"file": "lines", "function": "lines", "struct": "fields in a row"}
    for what, size, bound, where in sorted(large, key=lambda thing: (thing[0], -thing[1], thing[3])):
        print("%s: a %s of %d %s, at most %d" % (where, what, size, units[what], bound))
    past = list(past_ceilings(paths))
    for sentence in past:
        print(sentence)
    return 1 if large or past else 0


if __name__ == "__main__":
    sys.exit(main())
