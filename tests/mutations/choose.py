#!/usr/bin/env python3
"""Chooses the mutations that a change may have disturbed, and a tenth of the others.

usage: choose.py [--changed-since COMMIT] [--tenth SEED]

Prints the names of the mutations, one a line, and on stderr how many of each there are.

--changed-since  those that have changed between COMMIT and the work tree: a file that an edit is in,
                 the sources of the test that the check runs, the check in run.sh, or the entry itself.
                 COMMIT may be PROVEN: the one that the file tests/PROVEN names, where all mutations were
                 caught. Where there is no such file, or no such commit in a clone (and none can be
                 had), all have changed.
--tenth          each of the others has one chance in ten; which, is decided by its name and SEED alone

Exit status 0: done; 1: the mutations do not apply; 2: wrong usage.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys

import apply
from apply import HERE, ROOT

PROVEN = os.path.join(ROOT, "tests", "PROVEN")
RUNNER = "tests/mutations/run.sh"
FETCH_SECONDS = 60
FUNCTION = re.compile(r"^(\w+)\(\) (?:\{ ([^\n]*) \}$|\{(.*?)^\})", re.M | re.S)  # of run.sh
FILE = re.compile(r"\btests/[\w./]*\w")


# --- what has changed -----------------------------------------------------------------------------


def git(*arguments, timeout=None):
    """What git prints; None where it fails."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], env=environment, timeout=timeout,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def has(commit):
    return git("cat-file", "-e", commit + "^{commit}") is not None


def find_commit(commit):
    """(the commit, None), or (None, why there is none). A shallow clone asks where it came from."""
    if commit == "PROVEN":
        try:
            with open(PROVEN, encoding="utf-8") as file:
                commit = file.read().strip()
        except FileNotFoundError:
            return None, "there is no tests/PROVEN"
    if not re.fullmatch(r"\w[\w./~^-]*", commit):
        return None, f"'{commit}' is no commit"
    if not has(commit) and (git("rev-parse", "--is-shallow-repository") or "").strip() == "true":
        git("fetch", "--quiet", "--no-tags", "--depth=1", "origin", commit, timeout=FETCH_SECONDS)
    return (commit, None) if has(commit) else (None, f"this clone has no commit {commit}")


def changed_paths(commit):
    """Every file that differs from the commit, or is new; None where git cannot say."""
    tracked = git("diff", "--name-only", "--no-renames", "--relative", "-z", commit, "--", ".")
    new = git("ls-files", "--others", "--exclude-standard", "-z", "--", ".")
    return None if tracked is None or new is None else set((tracked + new).split("\0")) - {""}


def entries(text):
    """The text of each entry of a file."""
    return [entry.strip() for entry in re.split(r"^(?=mutation\s)|^#.*\n", text, flags=re.M)]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def changed_entries(commit, paths):
    """The names of the mutations whose entry the commit does not have as it is."""
    here = [path for path in paths if os.path.dirname(path) == os.path.dirname(RUNNER)]
    here = [path for path in here if path.endswith(".mutations")]
    old = {entry for path in here for entry in entries(git("show", f"{commit}:./{path}") or "")}
    new = [entry for path in here if os.path.exists(os.path.join(ROOT, path)) for entry in entries(read(path))]
    return {entry.split()[1] for entry in new if entry.startswith("mutation") and entry not in old}


# --- what a check runs ----------------------------------------------------------------------------


def functions(text):
    return {name: one_line or lines for name, one_line, lines in FUNCTION.findall(text)}


def words_of_check(check):
    words = check.split("{")[0].split()
    return words[1:] if words[0] == "hangs" else words


def called(name, runner):
    """A function of run.sh and all that it calls, each with its text."""
    found, left = {}, [name]
    while left:
        name = left.pop()
        if name in runner and name not in found:
            found[name] = runner[name]
            left += re.findall(r"\w+", runner[name])
    return found


def test_sources(check, runner):
    """Files and directories, of which a check runs the programs."""
    kind, *words = words_of_check(check)
    if kind == "unit":
        return {f"/test_{words[0]}.c"}
    texts = called(kind, runner).values()
    words += [word for text in texts for word in re.findall(r"\w+", text)]
    words += [f"libinterposition_{word}" for text in texts for word in re.findall(r"\blibrary (\w+)", text)]
    programs = [f"tests/e2e/{word}.c" for word in words]
    directories = [os.path.dirname(path) for text in texts for path in FILE.findall(text)]
    return set(programs) | {f"{path}/" for path in directories if path.count("/") == 1} - {"tests/e2e/"}


def has_changed(sources, paths):
    """sources: of files, how their paths end; of directories, how the paths in them begin."""
    return any(
        path.startswith(source) if source.endswith("/") else path.endswith(source)
        for source in sources
        for path in paths
    )


# --- the choice -----------------------------------------------------------------------------------


def changed(mutations, commit):
    """The mutations that have changed since, and why these are all, if so."""
    commit, why = find_commit(commit)
    paths = changed_paths(commit) if commit else None
    if paths is None:
        return set(mutations), why or "git cannot say what has changed"
    runner, old = functions(read(RUNNER)), functions(git("show", f"{commit}:./{RUNNER}") or "")
    found = changed_entries(commit, paths) & mutations.keys()
    for mutation in mutations.values():
        check, kind = mutation.fields["check"], words_of_check(mutation.fields["check"])[0]
        if (
            not paths.isdisjoint(apply.edited_files(mutation, mutations))
            or has_changed(test_sources(check, runner), paths)
            or called(kind, runner) != called(kind, old)
        ):
            found.add(mutation.name)
    return found, None


def is_in_tenth(name, seed):
    return int(hashlib.sha256(f"{seed}:{name}".encode()).hexdigest(), 16) % 10 == 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2][7:])
    parser.add_argument("--changed-since", metavar="COMMIT")
    parser.add_argument("--tenth", metavar="SEED")
    options = parser.parse_args()
    if options.changed_since is None and options.tenth is None:
        parser.error("--changed-since or --tenth says which mutations are chosen")
    mutations = apply.read_entries(HERE)
    apply.mutated_sources(mutations)
    if apply.errors:
        print("\n".join(apply.errors), file=sys.stderr)
        return 1
    chosen, told = set(), []
    if options.changed_since is not None:
        chosen, why = changed(mutations, options.changed_since)
        told.append(f"{len(chosen)} changed since {options.changed_since}" + (f": {why}" if why else ""))
    if options.tenth is not None:
        tenth = {name for name in mutations.keys() - chosen if is_in_tenth(name, options.tenth)}
        told.append(f"{len(tenth)} of the other {len(mutations) - len(chosen)} by the seed {options.tenth}")
        chosen |= tenth
    print(f"mutations: {', and '.join(told)}", file=sys.stderr)
    for name in mutations:
        if name in chosen:
            print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
