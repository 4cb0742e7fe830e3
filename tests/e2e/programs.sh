#!/usr/bin/env bash
# What can be known of tests/gpu/programs without a GPU: the comparison's statistics are right, the
# programs parse, and those that are set aside are what was committed.
set -u
cd "$(dirname "$0")/../gpu/programs" || exit 2
export PYTHONDONTWRITEBYTECODE=1
if ! command -v python3 >/dev/null; then
    echo "skip the programs: there is no python3"
    exit 0
fi
failed=0

check() { # name, command that says nothing where all is well
    local name=$1 said
    shift
    if said=$("$@" 2>&1); then
        echo "ok $name"
    else
        echo "FAIL $name: $said"
        failed=1
    fi
}

check "the comparison's statistics" ./compare.py --self-test
check "all programs parse" python3 -c 'import ast, sys; [ast.parse(open(f).read(), f) for f in sys.argv[1:]]' ./*.py
check "programs that are set aside are unchanged" sha256sum --quiet -c set_aside.sha256
# shellcheck disable=SC2317 # called through check
refused() { # a program that is set aside
    ! ./compare.py run none.jsonl --programs "$1" >/dev/null 2>&1 &&
        ./compare.py run none.jsonl --programs "$1" 2>&1 | grep -q "^compare.py: $1 is set aside"
}
check "they do not run unless asked for" refused "$(sed -n '1s/.* \(.*\)\.py/\1/p' set_aside.sha256)"
exit $failed
