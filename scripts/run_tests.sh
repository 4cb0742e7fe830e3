#!/usr/bin/env bash
# Runs what `make test` has built: unit tests, the inputs of the fuzzers, conformance on the
# simulated driver, end-to-end scripts. Shows the output of what failed, and closes with a line for each
# program that failed and "N passed, N failed".
#
# usage: BUILD=dir [SANITIZE=kind] run_tests.sh [name...]    (names: only tests whose path has one)
#   TEST_TIMEOUT   seconds that one test program or script may take (default 300, and 900 with a
#                  sanitizer)
#   RUN_WITH       an emulator to run every program with: "qemu-aarch64 -L /usr/aarch64-linux-gnu"
#   GUEST_LIBRARY_PATH   where its programs find what is not there
#
# What the tests find in the environment:
#   BUILD     the build directory, absolute
#   SIM       the directory of the simulated driver, for LD_LIBRARY_PATH
#   PRELOAD   what LD_PRELOAD must be to run a program on the pool
#   SANITIZE  address, undefined, thread, address,undefined or empty
#   COVERAGE  1 where the build counts for gcov, and therefore writes files at exit
#
# A unit test prints Criterion's synthesis, or that of tests/plain. Everything else prints a line
# "ok NAME" or "FAIL NAME: why" for each thing it checked, and exits 1 if one failed. It is then run
# again when all others are over, since a machine that is busy elsewhere can make checks of times fail.
set -u
cd "$(dirname "$0")/.." || exit 2

BUILD=$(realpath "${BUILD:-build}")
SIM=$BUILD/sim
PRELOAD=$BUILD/libcudapool_preload.so
SANITIZE=${SANITIZE:-}
TEST_TIMEOUT=${TEST_TIMEOUT:-$([ -n "$SANITIZE" ] && echo 900 || echo 300)}
# shellcheck disable=SC2206 # a command and its arguments
run_with=(${RUN_WITH:-})
prefix=()
libraries=${GUEST_LIBRARY_PATH:-${LD_LIBRARY_PATH:-}}

runtime() { # a sanitizer's library: its name for the dynamic linker
    readelf -d "$(${CC:-cc} -print-file-name="$1")" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p'
}

# The sanitizer's own library must be the first one in every process that has it.
case $SANITIZE in
address*)
    PRELOAD=$(runtime libasan.so):$PRELOAD
    # The leak check has its own run in valgrind: under a preload it reports the shell's memory.
    # Some tests preload a library of their own without thinking of the sanitizer's.
    export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:verify_asan_link_order=0:exitcode=99}
    ;;
thread)
    PRELOAD=$(runtime libtsan.so):$PRELOAD
    export TSAN_OPTIONS=${TSAN_OPTIONS:-exitcode=99}
    # ThreadSanitizer's address map does not bear all kernels' randomization of addresses.
    if setarch -R true 2>/dev/null; then
        prefix=(setarch -R)
    fi
    ;;
esac
[[ $SANITIZE != *undefined ]] || export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:exitcode=99}
export BUILD SIM PRELOAD SANITIZE

passed=0
failed=0
failures=()
again=()
complaints=()
output=$(mktemp)
# Figures of processes that the tests kill are nobody's.
figures=$(mktemp -d /dev/shm/cudapool-tests-XXXXXX 2>/dev/null || mktemp -d)
export XDG_RUNTIME_DIR=$figures
trap 'rm -rf "$output" "$figures"' EXIT

wanted() { # path, and the names on the command line
    local path=$1 name
    shift
    [ $# -gt 0 ] || return 0
    for name in "$@"; do
        [[ $path == *"$name"* ]] && return 0
    done
    return 1
}

# One program's counts, out of what it printed: Criterion's synthesis if there is one, the ok and
# FAIL lines otherwise. A program that failed without saying what counts as one failure, and one
# that succeeded without a word as one success.
count() { # status
    local synthesis tested
    synthesis=$(sed -n 's/.*Synthesis: Tested: \([0-9]*\) | Passing: \([0-9]*\) .*/\1 \2/p' \
        "$output" | tail -n 1)
    if [ -n "$synthesis" ]; then
        read -r tested ok <<<"$synthesis"
        bad=$((tested - ok))
    else
        ok=$(grep -c '^ok ' "$output")
        bad=$(grep -c '^FAIL ' "$output")
        [ "$1" -ne 0 ] || [ $((ok + bad)) -gt 0 ] || ok=1
    fi
    [ "$1" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
}

# Runs it once, shows what came of it, and leaves $status, $ok and $bad.
attempt() { # name, command
    local name=$1 start=$SECONDS
    shift
    timeout -k 5 "$TEST_TIMEOUT" "${prefix[@]}" "$@" >"$output" 2>&1 </dev/null
    status=$?
    count "$status"
    if [ "$bad" -eq 0 ]; then
        printf '  %-40s %d passed, 0 failed (%d s)\n' "$name" "$ok" $((SECONDS - start))
        return
    fi
    printf '  %-40s %d passed, %d failed, exit status %d%s\n' "$name" "$ok" "$bad" "$status" \
        "$([ "$status" -eq 124 ] && echo ": took more than $TEST_TIMEOUT s")"
    sed '/^ok /d; s/^/    | /' "$output"
}

run() { # name, command
    attempt "$@"
    if [ "$bad" -gt 0 ] && may_be_the_machine; then
        again+=("$(printf '%q ' "$@")")
        complaints+=("$1: $(complaint)")
    else
        settle "$1"
    fi
}

# What the last attempt came to counts.
settle() { # name
    passed=$((passed + ok))
    failed=$((failed + bad))
    [ "$bad" -eq 0 ] || failures+=("$1: $(complaint)")
}

# A machine with too much to do can make a check of times fail, but it makes no test program crash, and
# no sanitizer speak; and one that does not end has had its time.
may_be_the_machine() {
    [ "$status" -eq 1 ] && ! grep -aqE 'Sanitizer|runtime error: |CRASH!|Timed out' "$output"
}

# Such a program must pass twice in a row when all others are over; that it failed is told.
make_again() { # name, command
    attempt "$@"
    [ "$bad" -gt 0 ] || attempt "$@"
    settle "$1"
}

# What a program that failed said first of it, on one line.
complaint() {
    local said
    said=$(grep -aoE -m 1 '^FAIL .*|^\[FAIL\] .*|(WARNING|ERROR): [A-Za-z]*Sanitizer.*|runtime error: .*' "$output") ||
        said=$(tail -n 1 "$output")
    printf 'exit status %d: %.200s' "$status" "$said"
}

unit=$BUILD/tests/unit
if [ -n "$SANITIZE" ] || [ ${#run_with[@]} -gt 0 ]; then
    unit=$BUILD/tests/unit-plain
fi
echo "Unit tests"
for source in tests/unit/*/test_*.c; do
    test=$unit/${source#tests/unit/}
    test=${test%.c}
    if ! [ -e "$source" ] || ! wanted "$test" "$@"; then
        continue
    fi
    run "$(basename "$test")" env LD_LIBRARY_PATH="$libraries" "${run_with[@]}" "$test"
done

echo "Inputs of the fuzzers"
for corpus in tests/fuzz/corpus/*/; do
    target=$BUILD/tests/fuzz/$(basename "$corpus")
    wanted "$target" "$@" || continue
    run "fuzz/$(basename "$corpus")" env LD_LIBRARY_PATH="$libraries" "${run_with[@]}" "$target" "$corpus"
done

if [ -x "$BUILD/tests/conformance/conformance" ] && wanted conformance "$@"; then
    echo "Conformance, on the simulated driver"
    run conformance env LD_LIBRARY_PATH="$SIM:$libraries" SIMCUDA_DEVICES=2 \
        SIMCUDA_SHARED="$figures/devices" "${run_with[@]}" "$BUILD/tests/conformance/conformance"
fi

# What is done by one thread at a time, or for other tests' sake, says nothing to ThreadSanitizer.
for_threads() { # script
    [ "$SANITIZE" = thread ] || return 0
    case $(basename "$1") in
    bench.sh | documents.sh | interposition.sh | layers.sh | mutations.sh | races.sh) return 1 ;;
    reports.sh | terminal.sh | tool.sh) return 1 ;; # the command has no threads
    esac
}

echo "End to end"
for script in tests/e2e/*.sh; do
    if ! [ -x "$script" ] || ! wanted "$script" "$@" || ! for_threads "$script"; then
        continue
    fi
    run "$(basename "$script")" "$script"
done

[ ${#again[@]} -eq 0 ] || echo "Once more, what failed"
for command in "${again[@]}"; do
    eval "make_again $command"
done
[ ${#complaints[@]} -eq 0 ] || printf 'at first: %s\n' "${complaints[@]}"
[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
