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
work=$(mktemp -d)
programs=$work/programs # short, wherever this is built: commands are folded and cut in what is printed
ln -s "$BUILD/tests/e2e" "$programs"
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

# What could not be checked here, which is no success.
skip() { # name, why
    echo "skip $1: $2"
}

fail() { # name, why
    failures=$((failures + 1))
    echo "FAIL $1: $2"
}

# Whether the file has a line for each expression. Shows it where one is missing.
has_lines() { # file expression...
    local file=$1 expression
    shift
    for expression; do
        grep -Eq "$expression" "$file" || {
            cat "$file"
            return 1
        }
    done
}

expect() { # name, command
    local name=$1 status
    shift
    "$@" >"$work/output" 2>&1
    status=$?
    if [ $status -eq 0 ]; then
        ok "$name"
    else
        fail "$name" "exit status $status: $(
            { grep -a '^FAIL ' "$work/output" || tail -n 3 "$work/output"; } | head -n 3 | tr '\n' ' '
        )"
    fi
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

# Copies files into $for_all, where another user can use them. The build may be where nobody else can
# look, in /root for one. Fails where temporary files are out of others' reach, too.
for_all=$work/for_all
reach_all() { # file...
    chmod a+x "$work" && mkdir -p "$for_all" && cp "$@" "$for_all" && chmod -R a+rX "$for_all" &&
        setpriv --reuid 65534 --clear-groups test -r "$for_all/$(basename "$1")"
}

# A report in which something was counted.
has_requests() { # file
    grep -Eq '"requests": ?[1-9]' "$1"
}

finish() {
    [ $failures -eq 0 ]
    exit
}
