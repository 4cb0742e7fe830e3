#!/usr/bin/env python3
"""Mutations: reads the entries of tests/mutations/*.mutations, and makes a copy of the pool's sources
with the edits of all of them (README.md says what an entry is).

usage: apply.py check [ENTRIES]      whether each entry is well formed and each edit applies
       apply.py copy DIR [ENTRIES]   the same, and writes core/ and shim/ with all edits to DIR; files
                                     that are there already with the same text are left alone
       apply.py list [ENTRIES]       a line for each mutation: name|check|rule|what it does
       apply.py files [ENTRIES]      a line for each mutation: name|the files that its edits change

ENTRIES is the directory of the files *.mutations, instead of tests/mutations.

Exit status 0: done; 1: an entry is wrong, or an edit does not apply; 2: wrong usage.
"""

import collections
import difflib
import os
import re
import sys

from source import Source, tokens_of, words_of

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DIRECTORIES = ("core", "shim")
HEADER = '#include "tests/mutations/mutation.h"\n'
NAMES = "mutation_names.def"  # what the header includes: MUTATION(name) for each
MUTATED = re.compile(r"\bMUTATED\((\w+)\)")
FIELD = re.compile(r"(mutation|check|rule|what|with|edit)\s+(\S.*)")
EDIT = re.compile(r"(?:([\w./-]+):)?(\w+)(?:, (\d+) places)?")  # the value of a field edit
REQUIRED = {"check": "the check that fails once the rule is broken"}
NEAR = 0.6  # of the tokens are the same: what the writer may have meant

errors = []


def wrong(where, what):
    errors.append(f"{where}: {what}")


class Edit:
    """A piece of one function, and what replaces it."""

    def __init__(self, mutation, value, where):
        self.mutation, self.where = mutation, where
        self.lines = []  # of the entry, each with its first character: blank, - or +
        match = EDIT.fullmatch(value)
        if not match:
            wrong(where, f"{mutation.name}: an edit is of FUNCTION, FILE:FUNCTION or FUNCTION, 2 places")
        self.file, self.name, count = match.groups() if match else (None, None, None)
        self.count = int(count or 1)
        self.places = []  # where it applies: definitions

    def wrong(self, what):
        wrong(self.where, f"{self.mutation.name}: {what}")

    def before(self):
        return "\n".join(line[1:] for line in self.lines if line[0] in " -")

    def added(self):
        return "\n".join(line[1:] for line in self.lines if line[0] == "+")

    def changes(self):
        """(first token, token behind the last, lines instead) of each change, counted among the tokens
        that must stand there."""
        ends, count = [], 0  # how many tokens there are up to the end of each line
        text = self.before()
        line_ends = [match.start() for match in re.finditer("\n", text)] + [len(text)]
        tokens = tokens_of(text)
        for line_end in line_ends:
            while count < len(tokens) and tokens[count].begin < line_end:
                count += 1
            ends.append(count)
        found, at, begin, instead = [], 0, None, []
        for line in [*self.lines, " "]:
            end = at
            if line[0] != "+" and ends:
                end = ends.pop(0)
            if line[0] == " " and (end > at or not ends):  # one without a token parts nothing
                if begin is not None and (begin < at or instead):
                    found.append((begin, at, instead))
                begin, instead = None, []
            else:
                begin = at if begin is None else begin
                instead += [line[1:]] if line[0] == "+" else []
            at = end
        return found


class Change:
    """What one change of an edit does to a file: tokens from begin up to end, and lines instead."""

    def __init__(self, edit, definition, place, change):
        begin, end, self.instead = change
        self.edit, self.definition = edit, definition
        self.tokens = definition.tokens[place + begin : place + end]
        first = definition.tokens[0].index + place
        self.begin, self.end = first + begin, first + end
        # What only comes stands behind the token before it; where it has none, before the next.
        self.behind = definition.tokens[place + begin - 1] if begin > 0 and not self.tokens else None
        self.before = definition.tokens[place] if not self.tokens and not self.behind else None

    def apply(self, text):
        end_of_line = " \\\n" if self.definition.is_macro else "\n"
        instead = end_of_line.join(line.removesuffix("\\").rstrip() for line in self.instead)
        if self.behind:
            begin = end = self.behind.end
            instead = end_of_line + instead
        else:
            begin = (self.before or self.tokens[0]).begin
            line = text.rfind("\n", 0, begin) + 1
            begin = line if text[line:begin].isspace() else begin
            end = begin if self.before else self.tokens[-1].end
            instead += end_of_line if self.before else ""
        rest = text[end : text.find("\n", end)]
        if not self.before and rest and not rest.isspace() and rest.strip() != "\\":
            instead += end_of_line
        return text[:begin] + instead + text[end:]


class Mutation:
    def __init__(self, name, where):
        self.name, self.where = name, where
        self.fields = {"check": "", "rule": "", "what": ""}
        self.others = []  # whose edits have this one's condition in them, too
        self.edits = []

    def conditions(self):
        return {name for edit in self.edits for name in MUTATED.findall(edit.added())}


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


def read_entries(directory):
    mutations = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".mutations"):
            read_file(os.path.join(directory, name), mutations)
    for mutation in mutations.values():
        for field, meaning in REQUIRED.items():
            if not mutation.fields[field]:
                wrong(mutation.where, f"{mutation.name} has no '{field}': {meaning}")
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


class Sources:
    """All files of the pool, and what is defined in them by its name."""

    def __init__(self):
        self.files = {}
        self.named = collections.defaultdict(list)
        for path in source_paths():
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                text = file.read()
            if MUTATED.search(text):
                wrong(path, "MUTATED(...) stands in the sources; it belongs into an entry")
            self.files[path] = Source(path, text)
            for definition in self.files[path].definitions:
                self.named[definition.name].append(definition)

    def definitions(self, edit):
        """Everything of the name that an edit gives: functions, if there are any, else objects, types
        and macros. Static functions of several files may have one name."""
        named = self.named.get(edit.name, [])
        found = [d for d in named if not edit.file or f"/{edit.file}/" in f"/{d.source.path}/"]
        if named and not found:
            edit.wrong(f"no {edit.name} is defined in {edit.file}; it is at {at(named)}")
        elif not named:
            near = difflib.get_close_matches(edit.name, self.named, 3)
            hint = f"; there is {' and '.join(near)}" if near else ""
            edit.wrong(f"no {edit.name} is defined in {' or '.join(DIRECTORIES)}{hint}{self.elsewhere(edit)}")
        return [d for d in found if d.is_function] or found

    def elsewhere(self, edit):
        """Where an edit's text stands in other functions."""
        words = words_of(edit.before())
        found = [
            f"{definition.name} ({definition.at(place)})"
            for definitions in self.named.values()
            for definition in definitions
            if words
            for place in definition.find(words)
        ]
        return f"; its text stands in {' and '.join(found[:3])}" if 0 < len(found) <= 3 else ""


def at(definitions):
    return " and ".join(definition.at() for definition in definitions)


def times(count):
    return {0: "nowhere", 1: "once"}.get(count, f"{count} times")


def nearest(definitions, words):
    """The line of these functions that is most like the text, if one is like it."""
    best, line = NEAR, ""
    for definition in definitions:
        for place in range(len(definition.words)):
            window = definition.words[place : place + len(words)]
            matcher = difflib.SequenceMatcher(None, words, window, False)
            if matcher.quick_ratio() > best and matcher.ratio() > best:
                best = matcher.ratio()
                text = definition.source.text.split("\n")[definition.line(place) - 1].strip()
                line = f"; '{text}' at {definition.at(place)} is near it"
    return line


def changes_of(edit, sources):
    """All that an edit changes; nothing where that is not clear."""
    words, changes = words_of(edit.before()), edit.changes()
    if not edit.name:
        return []
    if not words or not changes:
        edit.wrong("an edit has text that stands there, and changes")
        return []
    definitions = sources.definitions(edit)
    places = [(definition, place) for definition in definitions for place in definition.find(words)]
    files = {definition.source.path for definition, _ in places}
    if len(places) == edit.count and len(files) == 1:
        edit.places = [definition for definition, _ in places]
        return [Change(edit, *place, change) for place in places for change in changes]
    if definitions:
        lines = f" ({', '.join(definition.at(place) for definition, place in places)})" if places else ""
        hint = f"; FILE:{edit.name} says which" if len(files) > 1 else ""
        hint = hint if places else sources.elsewhere(edit) or nearest(definitions, words)
        text = "".join(f"\n    {line}" for line in edit.before().split("\n") if line.strip())
        what = f"this stands {times(len(places))}{lines}, and must {times(edit.count)}{hint}:{text}"
        edit.wrong(f"in {edit.name} ({at(definitions)}) {what}")
    return []


def apply(source, changes):
    """All edits are of the text as it is, whatever their order."""
    changes = sorted(changes, key=lambda change: (change.begin, change.end))
    for one, other in zip(changes, changes[1:]):
        if other.begin < one.end or other.begin == one.begin:
            other.edit.wrong(
                f"in {other.edit.name} this changes the same text as the edit at {one.edit.where}; "
                f"write them as one, and 'with {one.edit.mutation.name}' here"
            )
    text = source.text
    for change in reversed(changes):
        text = change.apply(text)
    return HEADER + text


def source_paths():
    for directory in DIRECTORIES:
        for parent, _, names in os.walk(os.path.join(ROOT, directory)):
            for name in names:
                yield os.path.relpath(os.path.join(parent, name), ROOT)


def mutated_sources(mutations):
    """{path: text with all edits}"""
    sources = Sources()
    changes = collections.defaultdict(list)
    for mutation in mutations.values():
        for edit in mutation.edits:
            for change in changes_of(edit, sources):
                changes[change.definition.source.path].append(change)
    return {
        path: apply(source, changes[path]) if path in changes else source.text
        for path, source in sources.files.items()
    }


def edited_files(mutation, mutations):
    """The files in which a mutation, or another one with its condition, changes something."""
    edits = [edit for other in mutations.values() for edit in other.edits
             if other is mutation or mutation.name in MUTATED.findall(edit.added())]
    return sorted({definition.source.path for edit in edits for definition in edit.places})


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
    own = {"check": 1, "list": 1, "files": 1, "copy": 2}.get(arguments[0] if arguments else "")
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
    for mutation in mutations.values():
        if arguments[0] == "list":
            print(mutation.name, *mutation.fields.values(), sep="|")
        elif arguments[0] == "files":
            print(mutation.name, " ".join(edited_files(mutation, mutations)), sep="|")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
