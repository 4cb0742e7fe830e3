#!/usr/bin/env python3
"""Mutations: reads the entries of tests/mutations/*.mutations, and makes a copy of the pool's sources
with the edits of all of them (README.md says what an entry is).

usage: apply.py check [ENTRIES]      whether each entry is well formed and each edit applies
       apply.py copy DIR [ENTRIES]   the same, and writes core/ and shim/ with all edits to DIR; files
                                     that are there already with the same text are left alone
       apply.py list [ENTRIES]       a line for each mutation: name|check|rule|what it does

ENTRIES is the directory of the files *.mutations, instead of tests/mutations.

Exit status 0: done; 1: an entry is wrong, or an edit does not apply; 2: wrong usage.
"""

import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DIRECTORIES = ("core", "shim")
HEADER = '#include "tests/mutations/mutation.h"\n'
NAMES = "mutation_names.def"  # what the header includes: MUTATION(name) for each
MUTATED = re.compile(r"\bMUTATED\((\w+)\)")
FIELD = re.compile(r"(mutation|check|rule|what|with|edit)\s+(\S.*)")
REQUIRED = {"check": "the check that fails once the rule is broken"}

errors = []


def wrong(where, what):
    errors.append(f"{where}: {what}")


class Edit:
    """A piece of one file, and what replaces it. Both are lists of lines."""

    def __init__(self, mutation, path, where):
        self.mutation, self.path, self.where = mutation, path, where
        self.lines = []  # of the entry, each with its first character: blank, - or +

    def before(self):
        return [line[1:] for line in self.lines if line[0] in " -"]

    def after(self):
        return [line[1:] for line in self.lines if line[0] in " +"]

    def changed(self):
        """Where, among the lines that must stand there, the change begins and ends."""
        first, last, at = None, 0, 0
        for line in self.lines:
            if line[0] != " ":
                first = at if first is None else first
            at += line[0] in " -"
            if line[0] != " ":
                last = at
        return first, last


class Mutation:
    def __init__(self, name, where):
        self.name, self.where = name, where
        self.fields = {"check": "", "rule": "", "what": ""}
        self.others = []  # whose edits have this one's condition in them, too
        self.edits = []

    def conditions(self):
        return {name for edit in self.edits for name in MUTATED.findall("\n".join(edit.after()))}


# --- entries --------------------------------------------------------------------------------------


def read_file(path, mutations):
    """Adds a file's entries to the mutations."""
    mutation = edit = field = None
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    for number, line in enumerate(lines, 1):
        where = f"{os.path.relpath(path, ROOT)}:{number}"
        start = FIELD.fullmatch(line)
        if start:
            field, value = start.groups()
            edit = None
            if field == "mutation":
                mutation = Mutation(value, where)
                if value in mutations:
                    wrong(where, f"{value} is at {mutations[value].where} already")
                mutations[value] = mutation
            elif mutation is None:
                wrong(where, f"a line '{field}' before the first 'mutation'")
            elif field == "with":
                mutation.others.append((value, where))
            elif field == "edit":
                edit = Edit(mutation, value, where)
                mutation.edits.append(edit)
            else:
                mutation.fields[field] = value
        elif line.startswith("#"):
            edit = field = None
        elif edit:
            if line and line[0] not in " -+":
                wrong(where, "a line of an edit begins with a blank, - or +")
            else:
                edit.lines.append(line or " ")
        elif line.startswith(" ") and mutation and field in mutation.fields:
            mutation.fields[field] += " " + line.strip()
        elif line:
            wrong(where, f"not a field (mutation, check, rule, what, with, edit): {line}")


def strip(edit):
    """Empty lines at the end separate the edit from what comes next."""
    while edit.lines and edit.lines[-1] == " ":
        edit.lines.pop()


def read_entries(directory):
    mutations = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".mutations"):
            read_file(os.path.join(directory, name), mutations)
    for mutation in mutations.values():
        for field, meaning in REQUIRED.items():
            if not mutation.fields[field]:
                wrong(mutation.where, f"{mutation.name} has no '{field}': {meaning}")
        for edit in mutation.edits:
            strip(edit)
    for mutation in mutations.values():
        check_conditions(mutation, mutations)
    return mutations


def check_conditions(mutation, mutations):
    """Each mutation is chosen by its name somewhere, and every name is a mutation's."""
    conditions = mutation.conditions()
    for name in sorted(conditions - mutations.keys()):
        wrong(mutation.where, f"{mutation.name} has MUTATED({name}), and no mutation is named so")
    for other, where in mutation.others:
        if other not in mutations:
            wrong(where, f"{mutation.name} is with {other}, and no mutation is named so")
        else:
            conditions = conditions | mutations[other].conditions()
    if mutation.name not in conditions and mutation.name != "none":
        wrong(mutation.where, f"{mutation.name}: no edit has MUTATED({mutation.name})")


# --- edits ----------------------------------------------------------------------------------------


def find(lines, wanted):
    """Every place where these lines stand."""
    last = len(lines) - len(wanted) + 1
    return [i for i in range(last) if lines[i : i + len(wanted)] == wanted]


def place(edit, lines):
    """(begin, end, lines instead) of what the edit changes; None where that is not clear."""
    wanted = edit.before()
    begin, end = edit.changed()
    if begin is None or not wanted:
        wrong(edit.where, f"{edit.mutation.name}: an edit has lines that stand there, and changes")
        return None
    places = find(lines, wanted)
    if len(places) != 1:
        found = f"{len(places)} times" if places else "nowhere"
        text = "".join(f"\n    {line}" for line in wanted)
        what = f"in {edit.path} this stands {found}, and must once:{text}"
        wrong(edit.where, f"{edit.mutation.name}: {what}")
        return None
    after = edit.after()
    return places[0] + begin, places[0] + end, after[begin : len(after) - (len(wanted) - end)]


def apply(path, text, edits):
    """All edits are of the text as it is, whatever their order."""
    lines = text.split("\n")
    changes = sorted(
        ((change, edit) for edit in edits if (change := place(edit, lines))), key=lambda c: c[0][:2]
    )
    for (one, first), (other, second) in zip(changes, changes[1:]):
        if other[0] < one[1] or other[0] == one[0]:
            wrong(
                second.where,
                f"{second.mutation.name}: in {path} this changes the same lines as the edit at "
                f"{first.where}; write them as one, and 'with {first.mutation.name}' here",
            )
    for (begin, end, instead), _ in reversed(changes):
        lines[begin:end] = instead
    return HEADER + "\n".join(lines)


def source_paths():
    for directory in DIRECTORIES:
        for parent, _, names in os.walk(os.path.join(ROOT, directory)):
            for name in names:
                yield os.path.relpath(os.path.join(parent, name), ROOT)


def mutated_sources(mutations):
    """{path: text with all edits}"""
    edits = {}
    for mutation in mutations.values():
        for edit in mutation.edits:
            edits.setdefault(edit.path, []).append(edit)
    sources = {}
    for path in source_paths():
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        if MUTATED.search(text):
            wrong(path, "MUTATED(...) stands in the sources; it belongs into an entry")
        sources[path] = apply(path, text, edits.pop(path)) if path in edits else text
    for path, left in edits.items():
        for edit in left:
            wrong(edit.where, f"{edit.mutation.name}: there is no {path}")
    return sources


# --- the copy -------------------------------------------------------------------------------------


def write(path, text):
    """A file whose text is the same keeps its time: nothing is compiled again for it."""
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def remove_others(directory, wanted):
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            if os.path.relpath(path, directory) not in wanted:
                os.remove(path)


def copy(directory, sources, mutations):
    """The names come first: a directory that has none is not ours to remove anything from."""
    names = os.path.join(directory, NAMES)
    if os.path.isdir(directory) and os.listdir(directory) and not os.path.exists(names):
        wrong(directory, "there is something there that is not a copy of the sources")
        return
    sources = {NAMES: "".join(f"MUTATION({name})\n" for name in mutations), **sources}
    for path, text in sources.items():
        write(os.path.join(directory, path), text)
    remove_others(directory, sources)


def main(arguments):
    own = {"check": 1, "list": 1, "copy": 2}.get(arguments[0] if arguments else "")
    if not own or not own <= len(arguments) <= own + 1:
        print(__doc__, file=sys.stderr)
        return 2
    mutations = read_entries(os.path.abspath(arguments[own]) if own < len(arguments) else HERE)
    sources = {} if arguments[0] == "list" else mutated_sources(mutations)
    if errors:
        errors.append("the mutations do not apply; tests/mutations/README.md says how one is written")
    elif arguments[0] == "copy":
        copy(arguments[1], sources, mutations)
    if errors:
        print("\n".join(errors), file=sys.stderr)
        return 1
    for mutation in mutations.values() if arguments[0] == "list" else ():
        print(mutation.name, *mutation.fields.values(), sep="|")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
