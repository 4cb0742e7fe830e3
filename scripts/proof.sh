#!/usr/bin/env bash
# Everything that is checked: what CI does of it, and what takes too long there. Prints each step's output and
# one table. If all is green and nothing is uncommitted, writes the commit to tests/PROVEN: CI leaves out
# of the mutations and of clang-tidy what has not changed since. A step that was green on this commit, with
# nothing uncommitted, is not run again: build-proof keeps its output.
#
# usage: proof.sh [STEP...]    only these steps, and no word to tests/PROVEN; `proof.sh list` names them
set -u
cd "$(dirname "$0")/.." || exit 2
# shellcheck source=scripts/steps.sh
. scripts/steps.sh

page_in_a_browser() {
    command -v chromium >/dev/null || echo "skip browser: Chromium cannot be installed here"
    tests/e2e/reports.sh
}

names=()
commands=()
add() { # name, command
    names+=("$1")
    shift
    commands+=("$*")
}
add tests make test
add layers make layers
add lint scripts/lint.sh
add instructions scripts/instructions_per_pair.sh
add visits scripts/functions_visited.sh
add demo make demo
add installed packaging/test_install.sh
add page page_in_a_browser
add mutations make mutations
add address make test CC=clang SANITIZE=address,undefined
add thread make test SANITIZE=thread ALL=1
# Always the same seeds, as in CI; other ones are for whoever looks for what nobody knows.
add random make random SEEDS=10001-10200 MINUTES=5
add valgrind scripts/valgrind.sh
add runtimes scripts/runtimes.sh
add fuzzers make fuzz SECONDS_EACH=60
add glibc-2.31 scripts/old_glibc.sh
add aarch64 make cross
add package packaging/test_deb.sh
add bare-machine scripts/bare_machine.sh

if [ "${1:-}" = list ]; then
    printf '%s\n' "${names[@]}"
    exit
fi
for name; do
    if ! printf '%s\n' "${names[@]}" | grep -qxF -- "$name"; then
        echo "proof.sh: no step is named '$name': must be one of ${names[*]}" >&2
        exit 2
    fi
done

commit=$(git rev-parse HEAD)
green=build-proof/$commit
is_committed() {
    [ -z "$(git status --porcelain)" ] && [ "$(git rev-parse HEAD)" = "$commit" ]
}
prove() { # name, command
    local name=$1 start=$SECONDS failed_before=$failed
    if is_committed && [ -e "$green/$name" ]; then
        account "$name" 0 "$green/$name" "$(cat "$green/$name.seconds")"
        return
    fi
    step "$@"
    if [ "$failed" -eq "$failed_before" ] && is_committed; then
        mkdir -p "$green"
        echo $((SECONDS - start)) >"$green/$name.seconds"
        mv "$logs/log" "$green/$name"
    fi
}

printf '=== dependencies\n'
scripts/install_dependencies.sh build test ci proof || exit 1
for i in "${!names[@]}"; do
    if [ $# -eq 0 ] || printf '%s\n' "$@" | grep -qxF -- "${names[$i]}"; then
        # shellcheck disable=SC2086 # a command and its words
        prove "${names[$i]}" ${commands[$i]}
    fi
done
conclude || exit 1
[ $# -eq 0 ] || exit 0
if ! is_committed; then
    echo "tests/PROVEN stays as it is: this is no commit"
    exit 0
fi
echo "$commit" >tests/PROVEN
echo "tests/PROVEN names $commit; commit it"
