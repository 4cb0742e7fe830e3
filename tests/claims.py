#!/usr/bin/env python3
"""Sees that every claim of the pages that users read has a test: tests/CLAIMS.md says which.

usage: claims.py          says what is wrong; exit status 1 where something is
       claims.py list     prints each claim that no row has, as a row to be filled in

A claim is a sentence, or the row of a table. Headings, heads of tables, code and pictures are none. In
the manual page a sentence ends with its paragraph at the latest, and names, synopsis, examples and "see
also" are left out; in a header the sentences of comments count.
"""
import functools
import glob
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = "tests/CLAIMS.md"
PAGES = ["README.md", "docs/limits.md", "docs/report.md", "docs/deployment.md", "configs/README.md",
         "packaging/cudapool.1", "core/cudapool.h"]
SENTENCE = re.compile(r'(?<=[.!?])[)"\'*]*\s+(?=[A-Z(\'"`*])')
texts = {}


def read(*path):
    path = os.path.join(ROOT, *path)
    if path not in texts:
        with open(path, encoding="utf-8") as file:
            texts[path] = file.read()
    return texts[path]


def plain(text):
    """The words of a text, without what marks them up."""
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[`*\"|]", " ", text).split())


def sentences(paragraphs):
    """Those of each paragraph, in their order."""
    found = [plain(part) for paragraph in paragraphs for part in SENTENCE.split(" ".join(paragraph.split()))]
    return [sentence for sentence in found if re.search(r"\w", sentence)]


def of_markdown(text):
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"<!-- settings:.*?<!-- end of settings -->", "", text, flags=re.S)
    text = re.sub(r"^(#.*|!\[.*\]\(.*\))$", "", text, flags=re.M)
    text = re.sub(r"^\|.*\n\|[-|]+$", "", text, flags=re.M)
    text = re.sub(r"^(?=\s*(- |\|))", "\n", text, flags=re.M)
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = paragraph.strip()
        found += [plain(paragraph)] if paragraph.startswith("|") else sentences([re.sub(r"^- ", "", paragraph)])
    return [sentence for sentence in found if sentence]


def of_manual(text):
    text = re.sub(r'^\.\\".*\n', "", text, flags=re.M)
    text = re.sub(r"^\.SH (NAME|SYNOPSIS|EXAMPLES|SEE ALSO)\n.*?(?=^\.SH|\Z)", "", text, flags=re.M | re.S)
    # What stands beside a paragraph belongs to it.
    text = re.sub(r"^\.TP\n(.*)\n", r".PP\n\1: \n", text, flags=re.M)
    text = re.sub(r"^\.(SH|SS|TH).*$", ".PP", text, flags=re.M)
    text = re.sub(r"\\f[A-Z]", "", text).replace("\\-", "-").replace("\\&", "")

    def words(match):
        name, rest = match[1], match[2]
        parts = re.findall(r'"[^"]*"|\S+', rest)
        return ("" if len(name) == 2 else " ").join(part.strip('"') for part in parts)
    paragraphs = [re.sub(r"^\.(BR|RB|BI|IR|RI|B|I) (.*)$", words, part, flags=re.M)
                  for part in re.split(r"^\.PP$", text, flags=re.M)]
    return sentences(re.sub(r"^\..*$", "", part, flags=re.M) for part in paragraphs)


def of_header(text):
    comments = [re.sub(r"^\s*\*", "", comment, flags=re.M) for comment in re.findall(r"/\*(.*?)\*/", text, re.S)]
    return sentences(part for comment in comments for part in re.split(r"\n\s*\n", comment))


def claims(page):
    of = {".md": of_markdown, ".1": of_manual, ".h": of_header}
    return of[os.path.splitext(page)[1]](read(page))


def settings(values, path=""):
    """The paths of all settings, out of the file that has every one."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from settings(value, f"{path}{key}.")
        elif path:
            yield path + key


def wanted(title):
    """What must have a row under a heading of the table."""
    if title == "Settings":
        return list(settings(json.loads(read("configs", "default.json"))))
    return claims(title)


def begins(claim, words):
    return claim.startswith(words) and not re.match(r"\w", claim[len(words):])


@functools.cache
def files(name):
    """Where a test of this name may be."""
    places = ["tests/e2e", "tests/unit/*", "tests/conformance", "tests/gpu", "tests", "scripts", "packaging"]
    return [path for place in places for path in glob.glob(os.path.join(ROOT, place, name))]


@functools.cache
def body(path):
    """A test without the comments of a script, which check nothing."""
    return re.sub(r"^\s*#.*$", "", read(path), flags=re.M) if path.endswith(".sh") else read(path)


def has(text, words):
    """Whether the words are in the text, and no part of longer ones."""
    at = text.find(words)
    while at >= 0 and any(re.match(r"\w\w", text[end - 1:end + 1]) for end in (at, at + len(words))):
        at = text.find(words, at + 1)
    return at >= 0


@functools.cache
def is_there(test):
    """Whether a test that a row names exists, with the check that it names."""
    kind, _, what = test.partition(": ")
    if kind in ("no claim", "advice"):
        return not what
    if kind == "not tested":
        return bool(what)
    if kind == "gpu":
        return any("/gpu/" in path for path in files(what))
    if kind == "mutation":
        return f"| `{what}`: " in read("tests", "mutations", "TABLE.md")
    return any(what and has(body(path), what) for path in files(kind))


def table():
    """The rows under each heading: what they are about, and the tests."""
    title, rows = None, {}
    for line in read(TABLE).splitlines():
        if line.startswith("## "):
            title = line[3:]
            rows[title] = []
        elif title and line.startswith("| "):
            about, tests = [cell.strip() for cell in line[1:-1].rsplit(" | ", 1)]
            rows[title] += [(words, tests.split("; ")) for words in about.split(" // ")]
    return {title: found[1:] for title, found in rows.items()}


def mistakes(title, rows):
    """What is wrong under one heading, and the claims that have no row."""
    wrong, left = [], wanted(title)
    known = set(left)
    for words, tests in rows:
        meant = {claim for claim in known if begins(claim, words)}
        if len(meant) != 1:
            wrong.append(f'{TABLE}: {title}: "{words}" begins {len(meant)} claims of the page, not one')
        left = [claim for claim in left if claim not in meant]
        wrong += [f"{TABLE}: {title}: {test}: is not there" for test in tests if not is_there(test)]
    return wrong, left


def main():
    if sys.argv[1:] not in ([], ["list"]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    rows, bad = table(), 0
    for title in PAGES + ["Settings"]:
        wrong, left = mistakes(title, rows.get(title, []))
        if sys.argv[1:] == ["list"]:
            print("\n".join([f"## {title}"] + [f"| {claim} | ? |" for claim in left]))
            continue
        wrong += [f'{title}: "{claim}" has no row in {TABLE}' for claim in left]
        print("\n".join(wrong), end="\n" if wrong else "")
        bad += len(wrong)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
