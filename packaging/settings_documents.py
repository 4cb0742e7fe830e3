#!/usr/bin/env python3
"""Writes what is known of the settings from their declarations (core/settings/settings.def): the schema and the
defaults in configs/, the tables of configs/README.md, the words that shells complete, and what the schema of
reports says of kinds of memory. Each file is there already, and of some only the part between two marks is
written.

usage: settings_documents.py SCHEMA_PROGRAM [DIRECTORY]      DIRECTORY: of a copy of the files, instead of the
                                                             files themselves
"""

import json
import os
import re
import subprocess
import sys
import textwrap

ROOT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..")
FILES = ["configs/cudapool.schema.json", "configs/report.schema.json", "configs/default.json", "configs/README.md",
         "packaging/cudapool.bash", "packaging/cudapool.zsh", "packaging/cudapool.fish"]


def settings_in(section, path):
    """Each setting's path and schema, in the order of files."""
    for name, schema in section["properties"].items():
        if "properties" in schema:
            yield from settings_in(schema, f"{path}.{name}")
        else:
            yield f"{path}.{name}", schema


def sections_of(schema):
    return {name: section for name, section in schema["properties"].items() if "properties" in section}


# --- configs/default.json ----------------------------------------------------------------------------------


def with_defaults(section):
    return {name: with_defaults(inner) if "properties" in inner else inner["default"] for name, inner in section["properties"].items()}


def in_lines(value, indent):
    """An object on one line, unless there are objects in it."""
    if not any(isinstance(inner, dict) for inner in value.values()):
        return "{ %s }" % ", ".join(f"{json.dumps(name)}: {json.dumps(inner)}" for name, inner in value.items())
    lines = [f"{indent}  {json.dumps(name)}: {in_lines(inner, indent + '  ') if isinstance(inner, dict) else json.dumps(inner)}"
             for name, inner in value.items()]
    return "{\n%s\n%s}" % (",\n".join(lines), indent)


def default_json(schema):
    values = {name: with_defaults(section) for name, section in sections_of(schema).items()}
    return in_lines({"$schema": "cudapool.schema.json", "version": schema["properties"]["version"]["default"], **values}, "") + "\n"


# --- configs/README.md -------------------------------------------------------------------------------------


def bytes_in_words(count):
    for unit, name in ((1 << 50, "PiB"), (1 << 30, "GiB")):
        if count % unit == 0 and count:
            return f"{count // unit} {name}"
    return f"{count} B" if count else "0"


def allowed(schema):
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("type") == "boolean":
        return "`true`, `false`"
    if schema.get("type") in ("integer", "number"):
        return f"{schema['minimum']} to {schema['maximum']}"
    if "anyOf" not in schema:
        if not isinstance(schema["type"], list):
            return "a time"
        return "a file name, or null" if "%" in schema["pattern"] else "a name, or null"
    number, *others = schema["anyOf"]
    share = any("%" in other.get("pattern", "") for other in others)
    null = any(other["type"] == "null" for other in others)
    return f"{bytes_in_words(number['minimum'])} to {bytes_in_words(number['maximum'])}{', a share' * share}{', null' * null}"


def table_of(rows):
    return ["| setting | default | allowed | meaning |", "|---|---|---|---|"] + \
           ["| `%s` | `%s` | %s | %s |" % (path, json.dumps(schema["default"]), allowed(schema), schema["description"]) for path, schema in rows]


def tables(schema):
    """A table for each section. What a section has just as an earlier one is named in a line."""
    lines, known = [], {}
    for name, section in sections_of(schema).items():
        new, same = [], {}
        for path, setting in settings_in(section, name):
            content, rest = json.dumps(setting), path.partition(".")[2]
            if known.get(rest, (content, name))[0] == content and rest in known:
                same.setdefault(known[rest][1], []).append(rest)
            else:
                new.append((path, setting))
                known.setdefault(rest, (content, name))
        lines += [f"**`{name}`.** {section['description']}"]
        for other, rests in same.items():
            lines += ["", f"As in `{other}`: {', '.join(f'`{rest}`' for rest in rests)}."]
        lines += ["", *table_of(new), ""]
    return lines[:-1]


# --- completion --------------------------------------------------------------------------------------------


def wrapped(words, indent, end):
    """In lines of at most 100 characters, each but the last with `end`."""
    width = 100 - len(indent) - len(end)
    lines = textwrap.wrap(" ".join(words), width, break_long_words=False, break_on_hyphens=False)
    return [f"{indent}{line}{end}" for line in lines[:-1]] + [indent + lines[-1]]


# --- all of them -------------------------------------------------------------------------------------------


def between_marks(text, lines, opening, closing):
    """The text with other lines between the two lines that are its marks."""
    pattern = re.compile(f"^({re.escape(opening)}\n).*?^({re.escape(closing)}\n)", re.S | re.M)
    changed, count = pattern.subn(lambda marks: marks[1] + "".join(line + "\n" for line in lines) + marks[2], text)
    assert count == 1, f"there is no part from {opening} to {closing}"
    return changed


def in_shell(lines):
    return lambda text: between_marks(text, lines, "# Settings: made by `make settings`.", "# End of settings.")


def with_kinds(schema):
    """What the schema of reports says of kinds: a section with buckets is one."""
    kinds = "; ".join(f"{name}: {section['description'].partition(': ')[2].rstrip('.')}"
                      for name, section in sections_of(schema).items() if "buckets" in section["properties"])

    def change(text):
        report = json.loads(text)
        report["$defs"]["kind"]["properties"]["kind"]["description"] = f"{kinds}."
        return json.dumps(report, indent=2, ensure_ascii=False) + "\n"

    return change


def main():
    directory = sys.argv[2] if len(sys.argv) > 2 else ROOT
    text = subprocess.run([sys.argv[1]], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    schema = json.loads(text)
    paths = [path for name, section in sections_of(schema).items() for path, _ in settings_in(section, name)]
    change = {
        "configs/cudapool.schema.json": lambda _: text,
        "configs/report.schema.json": with_kinds(schema),
        "configs/default.json": lambda _: default_json(schema),
        "configs/README.md": lambda old: between_marks(old, ["", *tables(schema), ""], "<!-- settings: made by `make settings` -->",
                                                       "<!-- end of settings -->"),
        "packaging/cudapool.bash": in_shell(["_cudapool_settings() {", "    printf '%s\\n' \\", *wrapped(paths, "        ", " \\"), "}"]),
        "packaging/cudapool.zsh": in_shell(["_cudapool_settings() {", "    compadd -S = -- \\", *wrapped(paths, "        ", " \\"), "}"]),
        "packaging/cudapool.fish": in_shell(["function __cudapool_settings", "    printf '%s=\\n' \\", *wrapped(paths, "        ", " \\"), "end"]),
    }
    for name in FILES:
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            old = file.read()
        new = change[name](old)
        if new != old or directory != ROOT:
            path = os.path.join(directory, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(new)


main()
