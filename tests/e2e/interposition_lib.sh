# shellcheck shell=bash disable=SC2034
# What the interposition scripts share: sourced, not run.
#
# A case is a name and a command; it passes with exit status 0 and prints "ok NAME", or "FAIL NAME:
# why" with the end of its output.
set -u

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=${BUILD:-$here/build}
SIM=${SIM:-$BUILD/sim}
ours=$BUILD/libcudapool_preload.so
PRELOAD=${PRELOAD:-$ours}
SANITIZE=${SANITIZE:-}
first_of_all=${PRELOAD%"$ours"} # a sanitizer's run time and a colon, or nothing
programs=$BUILD/tests/e2e
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seconds=$([ -n "$SANITIZE" ] && echo 180 || echo 60) # that a program may take
failures=0

# ThreadSanitizer waits a second at every exit; these programs are many. It does not see the lock of
# the dynamic linker, under which an object's name is written and dl_iterate_phdr hands it out.
printf 'race:note_compute_sanitizer\n' >"$work/tsan_suppressions"
export TSAN_OPTIONS=${TSAN_OPTIONS:+$TSAN_OPTIONS:}atexit_sleep_ms=50:suppressions=$work/tsan_suppressions

# Runs a program with variables in its environment. Under an emulator (RUN_WITH) they are set for
# the program alone, which is for another processor than the emulator.
run_with() { # variable=value ... -- program arguments
    local emulator=() for_guest=() for_host=(env)
    # shellcheck disable=SC2206 # a command and its arguments
    emulator=(${RUN_WITH:-})
    while [ "$1" != -- ]; do
        if [ ${#emulator[@]} -gt 0 ] && [[ ${emulator[0]} == *qemu* ]]; then
            for_guest+=(-E "$1")
        else
            for_host+=("$1")
        fi
        shift
    done
    shift
    timeout -k 5 "$seconds" "${for_host[@]}" "${emulator[@]}" "${for_guest[@]}" "$@"
}

# The same, with the simulated driver, and with the pool.
on_driver() {
    run_with "LD_LIBRARY_PATH=$SIM${GUEST_LIBRARY_PATH:+:$GUEST_LIBRARY_PATH}" "$@"
}

on_pool() {
    on_driver "LD_PRELOAD=$PRELOAD" "$@"
}

ok() { # name
    echo "ok $1"
}

fail() { # name, why
    failures=$((failures + 1))
    echo "FAIL $1: $2"
}

expect() { # name, command
    local name=$1 status
    shift
    "$@" >"$work/output" 2>&1
    status=$?
    if [ $status -eq 0 ]; then
        ok "$name"
    else
        fail "$name" "exit status $status: $(tail -n 3 "$work/output" | tr '\n' ' ')"
    fi
}

# The same, for what hangs on other processes' answers: a machine that is busy with other things may
# keep one from its processor for the tenth of a second after which it counts as silent. What is
# broken fails three times.
expect_of_others() { # name, command
    local try
    for try in 1 2; do
        if "${@:2}" >"$work/output" 2>&1; then
            ok "$1"
            return
        fi
        echo "$1, try $try: $(tail -n 3 "$work/output" | tr '\n' ' ')"
    done
    expect "$@"
}

# Both must print the same, byte for byte.
expect_same() { # name, file, file
    if cmp -s "$2" "$3"; then
        ok "$1"
    else
        fail "$1" "$(diff "$2" "$3" | grep '^[<>]' | head -n 4 | tr '\n' ' ')"
    fi
}

# What a file must be, line by line; a line is an extended regular expression.
expect_lines() { # name, file, line...
    local name=$1 file=$2 found number=0
    shift 2
    if [ "$(wc -l <"$file")" -ne $# ]; then
        fail "$name" "$(wc -l <"$file") lines, not $#: $(head -n 3 "$file" | tr '\n' ' ')"
        return
    fi
    for line in "$@"; do
        number=$((number + 1))
        found=$(sed -n "${number}p" "$file")
        if ! [[ $found =~ ^$line$ ]]; then
            fail "$name" "found \"$found\", not \"$line\""
            return
        fi
    done
    ok "$name"
}

# A report in which something was counted.
has_requests() { # file
    grep -Eq '"requests": ?[1-9]' "$1"
}

finish() {
    [ $failures -eq 0 ]
    exit
}
