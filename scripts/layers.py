#!/usr/bin/env python3
"""Holds the sources of core/, shim/ and tools/ to the floors in core/FLOORS.

usage: layers.py [--svg] BUILD [ROOT]

Works out who uses whom: from the symbols that the objects under BUILD/obj leave undefined and define,
and from the #include "..." lines of the sources. A file is a source with its header: core/base/clock
is clock.c and clock.h. Prints the floors, the lowest first, and of each directory the files in order
(a file uses those of lower numbers) and how often it names what is in each lower directory. A symbol
that a file uses counts once, and so does each #include line.

Exits 1 and says where, if directories or the files of one directory use each other in a circle, if a
file uses what is on a higher floor, beside it on the same one, or on none, and if docs/floors.svg is
not the picture of what was found. --svg draws that picture instead. Exits 2 if the tree cannot be
judged: core/FLOORS makes no sense, or a source has no object (make library makes them).
"""
import html
import os
import re
import subprocess
import sys
from collections import defaultdict, namedtuple

TREES = ("core", "shim", "tools")
FLOORS, PICTURE = "core/FLOORS", "docs/floors.svg"
SOURCES, TEXTS = (".c", ".S"), (".c", ".S", ".h", ".def")
# Compiled where there is a CUDA toolkit, to compare declarations; part of no product.
CHECKS_OF_A_TOOLKIT = "abi_check.c"
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
SYMBOL = re.compile(r"\s*\d+:\s+[0-9a-f]+\s+\S+\s+(\S+)\s+(GLOBAL|WEAK|UNIQUE)\s+\S+\s+(?:\[.*\]\s+)?(\S+)\s+([^\s@]+)")

# One use of a file by another one: how it is spelled, and where either end of it stands.
Use = namedtuple("Use", "by of what at where")


def fail(message):
    print("layers.py: " + message, file=sys.stderr)
    sys.exit(2)


def directory_of(file):
    return os.path.dirname(file)


class Floors:
    """The list in core/FLOORS: for each directory its floor, counted from below, and its purpose."""

    def __init__(self, path):
        self.floor, self.purpose = {}, {}
        height = -1
        for number, line in enumerate(lines_of(path), 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            beside = words[0] == "|"
            words = words[1:] if beside else words
            if not words or (beside and height < 0) or words[0] in self.floor:
                fail("%s:%d: must be a directory that is named once, after | beside the one above it"
                     % (path, number))
            height += not beside
            self.floor[words[0]], self.purpose[words[0]] = height, " ".join(words[1:])

    def bottom_up(self):
        """Sorting is stable: what stands side by side keeps the order of the list."""
        return sorted(self.floor, key=self.floor.get)

    def beside(self, one, other):
        return one != other and self.floor.get(one) == self.floor.get(other)

    def allow(self, one, other):
        """Whether what is in one directory may name what is in the other."""
        if one == other:
            return True
        return one in self.floor and other in self.floor and self.floor[other] < self.floor[one]


def lines_of(path):
    try:
        with open(path, encoding="utf-8") as text:
            return text.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail("%s: %s" % (path, error))


def find_texts():
    found = []
    for tree in TREES:
        for directory, _, names in os.walk(tree):
            found += [os.path.join(directory, name) for name in names if name.endswith(TEXTS)]
    return sorted(found)


def file_of(path):
    return os.path.splitext(path)[0]


# --- what objects say ---------------------------------------------------------------------------


def say_symbols(objects):
    """What readelf prints, which names each file only if it gets several: the first comes twice."""
    try:
        return subprocess.run(["readelf", "--wide", "--symbols"] + objects + objects[:1], check=True,
                              text=True, capture_output=True).stdout.splitlines()
    except FileNotFoundError:
        fail("readelf is not installed; it comes with binutils")
    except subprocess.CalledProcessError as error:
        fail("readelf: " + (error.stderr.strip() or "exit status %d" % error.returncode))


def read_symbols(objects):
    """For each object its global symbols: those that it defines, and those that it wants."""
    found = {}
    for start in range(0, len(objects), 100):
        some = objects[start:start + 100]
        current = None
        for line in say_symbols(some):
            if line.startswith("File: "):
                current = found[line[6:]] = (set(), set())
                continue
            symbol = SYMBOL.match(line)
            if symbol:
                current[symbol[3] == "UND"].add(symbol[4])
    return found


def objects_of(build, texts):
    """From each source's object to the source."""
    objects = {}
    for source in (text for text in texts if text.endswith(SOURCES)):
        name = os.path.join(build, "obj", file_of(source) + ".o")
        if os.path.exists(name):
            objects[name] = source
        elif os.path.basename(source) != CHECKS_OF_A_TOOLKIT:
            fail("%s: %s has no object there: make library makes it" % (build, source))
    return objects


def definer_for(source, definers):
    """Whose definition a source gets: its own tree's, or else the core's. The tool has no part of the
    preload object, so what only the shim defines, such as dlsym, is the C library's there: None."""
    tree = source.split("/")[0]
    rank = [definer.split("/")[0] for definer in definers]
    for wanted in (tree, "core"):
        if wanted in rank:
            return definers[rank.index(wanted)]
    return None if tree == "tools" else definers[0]


def uses_by_symbol(build, texts, places):
    objects = objects_of(build, texts)
    symbols = read_symbols(sorted(objects))
    definers = defaultdict(list)
    for name in sorted(objects):
        for symbol in symbols[name][0]:
            definers[symbol].append(objects[name])
    for name in sorted(objects):
        for symbol in sorted(symbols[name][1] & definers.keys()):
            user, definer = objects[name], definer_for(objects[name], definers[symbol])
            if definer is not None:
                yield Use(file_of(user), file_of(definer), symbol, places.use(user, symbol),
                          places.definition(definer, symbol))


class Places:
    """Where in its text a symbol is named. Macros hide some: then the file is all there is to say."""

    def __init__(self, texts):
        self.texts, self.lines = set(texts), {}

    def find(self, path, pattern):
        if path not in self.lines:
            self.lines[path] = lines_of(path)
        for number, line in enumerate(self.lines[path], 1):
            if pattern.search(line):
                return "%s:%d" % (path, number)
        return None

    def use(self, source, symbol):
        pattern = re.compile(r"^(?!\s*(?:/?\*|//)).*\b%s\b" % re.escape(symbol))
        header = file_of(source) + ".h"
        return (self.find(source, pattern)
                or (header in self.texts and self.find(header, pattern)) or source)

    def definition(self, source, symbol):
        """A line in the first column: not one that only declares it, if there is another."""
        name = re.escape(symbol)
        return (self.find(source, re.compile(r"^[A-Za-z_].*\b%s\b(?!.*;$)|^%s\b" % (name, name)))
                or self.find(source, re.compile(r"^(?!extern)[A-Za-z_].*\b%s\b" % name)) or source)


# --- what #include lines say ----------------------------------------------------------------------


def uses_by_include(texts):
    known = set(texts)
    for text in texts:
        for number, line in enumerate(lines_of(text), 1):
            include = INCLUDE.match(line)
            if not include:
                continue
            beside = os.path.normpath(os.path.join(directory_of(text), include[1]))
            target = beside if beside in known else os.path.normpath(include[1])
            yield Use(file_of(text), file_of(target), '#include "%s"' % include[1],
                      "%s:%d" % (text, number), target)


# --- orders and circles ---------------------------------------------------------------------------


def circles_and_levels(nodes, uses):
    """Those nodes that use each other in circles, as a list of lists; and for each node how many steps
    down the longest way is, a circle being one step. Tarjan's algorithm, without recursion."""
    number, lowest, on_stack, level = {}, {}, set(), {}
    stack, components = [], []
    for root in nodes:
        if root in number:
            continue
        number[root] = lowest[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(sorted(uses[root])))]
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in number:
                    number[target] = lowest[target] = len(number)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(uses[target]))))
                    break
                if target in on_stack:
                    lowest[node] = min(lowest[node], number[target])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    component = stack[stack.index(node):]
                    del stack[-len(component):]
                    on_stack.difference_update(component)
                    below = {t for member in component for t in uses[member]} - set(component)
                    height = 1 + max((level[t] for t in below), default=0)
                    level.update((member, height) for member in component)
                    components.append(sorted(component))
    return [component for component in components if len(component) > 1], level


class Tree:
    """Who uses whom, among files and among directories."""

    def __init__(self, texts, uses):
        self.files = sorted({file_of(text) for text in texts})
        self.uses = [use for use in uses if use.by != use.of]
        self.between_files = defaultdict(list)
        self.between_directories = defaultdict(list)
        for use in self.uses:
            self.between_files[use.by, use.of].append(use)
            one, other = directory_of(use.by), directory_of(use.of)
            if one != other:
                self.between_directories[one, other].append(use)

    def directories(self):
        return sorted({directory_of(file) for file in self.files})

    def files_in(self, directory):
        return [file for file in self.files if directory_of(file) == directory]

    def in_order(self, directory):
        """Circles among the files of a directory, and its files by level."""
        files = self.files_in(directory)
        targets = {file: {of for by, of in self.between_files if by == file and of in files}
                   for file in files}
        circles, level = circles_and_levels(files, targets)
        levels = defaultdict(list)
        for file in files:
            levels[level[file]].append(os.path.basename(file))
        return circles, [levels[height] for height in sorted(levels)]

    def circles_of_directories(self):
        directories = self.directories()
        targets = {one: {other for by, other in self.between_directories if by == one}
                   & set(directories) for one in directories}
        return circles_and_levels(directories, targets)[0]


# --- what is printed ------------------------------------------------------------------------------


def print_uses(uses, indent):
    for use in uses:
        print("%s%s: %s (%s)" % (indent, use.at, use.what, use.where))


def print_circle(members, between):
    """Each way of the circle with its uses; those ways first that the fewest make."""
    print("circle among files: %s" % " ".join(members))
    ways = [(by, of) for by, of in between if by in members and of in members]
    for by, of in sorted(ways, key=lambda way: (len(between[way]), way)):
        uses = between[by, of]
        print("  %s uses %s, %d time%s" % (by, of, len(uses), "s" if len(uses) > 1 else ""))
        print_uses(uses, "    ")


def print_floors(floors, tree):
    for directory in floors.bottom_up():
        print("%s: %s" % (directory, floors.purpose[directory]))
        for number, names in enumerate(tree.in_order(directory)[1], 1):
            print("  %2d  %s" % (number, " ".join(names)))
        lower = [other for other in floors.bottom_up() if (directory, other) in tree.between_directories]
        if lower:
            print("  uses " + ", ".join(
                "%s %d" % (other, len(tree.between_directories[directory, other])) for other in lower))


def print_offences(floors, tree):
    """Whether there are any."""
    found = False
    for directory in sorted(set(tree.directories()) - floors.floor.keys()):
        print("%s is on no floor: %s must say where it stands" % (directory, FLOORS))
        found = True
    for directory in sorted(floors.floor.keys() - set(tree.directories())):
        print("%s has a floor and no files: %s names it for nothing" % (directory, FLOORS))
        found = True
    for circle in tree.circles_of_directories():
        print("circle among directories: %s" % " ".join(circle))
        found = True
    for one, other in sorted(tree.between_directories):
        if floors.allow(one, other):
            continue
        where = ("which is on no floor" if other not in floors.floor
                 else "which stands beside it" if floors.beside(one, other) else "which is above it")
        uses = tree.between_directories[one, other]
        print("%s uses %s, %s, %d time%s" % (one, other, where, len(uses), "s" if len(uses) > 1 else ""))
        print_uses(uses, "  ")
        found = True
    for directory in tree.directories():
        for circle in tree.in_order(directory)[0]:
            print_circle(circle, tree.between_files)
            found = True
    return found


# --- the picture ----------------------------------------------------------------------------------

# A box has room for a purpose of 50 letters; beside it are the columns, with their slanted names.
WIDTH, ROW, GAP, TOP, LEFT, BOX = 860, 34, 6, 96, 14, 486
NAME, COLUMNS, RIGHT = 142, LEFT + BOX + 18, 40
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24}.soft{fill:#57606a;font-size:12px}.name{font-weight:600}"
    ".back{fill:#fff}.box{fill:#dbeafe;stroke:#0b5394}.beside{fill:none;stroke:#9aa4af;stroke-dasharray:4 3}"
    ".self{fill:#dbeafe}.cell{fill:#f0f3f6}.uses{fill:#0b5394}.wrong{fill:#cf222e}"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9aa4af}.back{fill:#0d1117}"
    ".box{fill:#0f2a4a;stroke:#79b8ff}.beside{stroke:#6e7681}.self{fill:#0f2a4a}.cell{fill:#161b22}.uses{fill:#79b8ff}"
    ".wrong{fill:#ff7b72}}")


def text(x, y, content, more=""):
    return '<text x="%g" y="%g"%s>%s</text>' % (x, y, more, html.escape(content))


def short_name(directory):
    return directory.split("/")[-1] if directory != "core" else "cudapool.h"


def column_width(rows):
    return min(24, (WIDTH - COLUMNS - RIGHT) // len(rows))


def row_of_picture(floors, tree, rows, i):
    """A box with the directory's name and purpose, and a cell for each directory: a dot where the one
    uses the other."""
    one, y, cell = rows[i], TOP + i * (ROW + GAP), column_width(rows)
    yield '<rect class="box" x="%g" y="%g" width="%g" height="%g" rx="5"/>' % (LEFT, y, BOX, ROW)
    yield text(LEFT + 12, y + 22, short_name(one), ' class="name"')
    yield text(LEFT + NAME, y + 22, floors.purpose[one], ' class="soft"')
    for j, other in enumerate(rows):
        x, used = COLUMNS + j * cell, (one, other) in tree.between_directories
        if i == j or used or floors.allow(one, other):
            yield '<rect class="%s" x="%g" y="%g" width="%g" height="%g" rx="3"/>' % (
                "self" if i == j else "cell", x, y + 6, cell - 3, ROW - 12)
        if used:
            yield '<circle class="%s" cx="%g" cy="%g" r="5"/>' % (
                "uses" if floors.allow(one, other) else "wrong", x + (cell - 3) / 2, y + ROW / 2)


def picture(floors, tree):
    rows = floors.bottom_up()[::-1]
    height = TOP + len(rows) * (ROW + GAP) + 8
    told = "; ".join("%s uses %s" % (short_name(one), ", ".join(
        short_name(other) for other in rows if (one, other) in tree.between_directories) or "none")
        for one in rows)
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">' % (
            WIDTH, height, WIDTH, height),
        "<title>The floors of the house</title>",
        "<desc>From the top: %s.</desc>" % html.escape(told),
        "<style>%s</style>" % STYLE,
        '<rect class="back" width="%d" height="%d" rx="6"/>' % (WIDTH, height),
        text(LEFT, TOP - 34, "Calls go down. What has to go up goes through the table of kinds.", ' class="soft"'),
        text(LEFT, TOP - 16, "A dot: what is in the box uses what is named above the dot.", ' class="soft"'),
    ]
    for j, other in enumerate(rows):
        x = COLUMNS + (j + 0.6) * column_width(rows)
        lines.append(text(x, TOP - 6, short_name(other), ' class="soft" transform="rotate(-55 %g %g)"' % (x, TOP - 6)))
    for i, one in enumerate(rows):
        lines += row_of_picture(floors, tree, rows, i)
        if i and floors.beside(one, rows[i - 1]):
            y = TOP + (i - 1) * (ROW + GAP) - GAP / 2
            lines.append('<rect class="beside" x="%g" y="%g" width="%g" height="%g" rx="6"/>' % (
                LEFT - 5, y, BOX + 10, 2 * ROW + 2 * GAP))
    return "\n".join(lines + ["</svg>"]) + "\n"


def main():
    arguments = sys.argv[1:]
    draw = arguments[:1] == ["--svg"]
    arguments = arguments[draw:]
    if not 1 <= len(arguments) <= 2 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    os.chdir(arguments[1] if len(arguments) > 1 else os.path.join(os.path.dirname(__file__), ".."))
    floors, texts = Floors(FLOORS), find_texts()
    uses = list(uses_by_include(texts)) + list(uses_by_symbol(arguments[0], texts, Places(texts)))
    tree = Tree(texts, uses)
    if draw:
        with open(PICTURE, "w", encoding="utf-8") as file:
            file.write(picture(floors, tree))
        return 0
    print_floors(floors, tree)
    bad = print_offences(floors, tree)
    if not os.path.exists(PICTURE) or "\n".join(lines_of(PICTURE)) + "\n" != picture(floors, tree):
        print("%s is not the picture of this: scripts/layers.py --svg %s draws it" % (PICTURE, arguments[0]))
        bad = True
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
