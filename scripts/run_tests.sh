#!/usr/bin/env bash
# Runs what `make test` has built: unit tests, the inputs of the fuzzers, conformance on the simulated
# driver, end-to-end scripts. Several run at a time. Prints a line for each that ends, the output of what
# failed, and every 15 silent seconds what is still running. Closes with a line for each program that
# failed and "N passed, M failed, K skipped".
#
# usage: BUILD=dir [SANITIZE=kind] run_tests.sh [name...]    (names: only tests whose path has one)
#   TEST_TIMEOUT   seconds that one test program or script may take (default 600, and 1800 with a
#                  sanitizer)
#   JOBS           how many run at a time (default: one more than there are processors, since most sleep
#                  now and then). One, where no test can have a /dev/shm of its own: the processes of a
#                  user meet there.
#   ALL            1: with ThreadSanitizer also what has no threads
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
# "ok NAME", "FAIL NAME: why" or "skip NAME: why" for each thing it checked, and exits 1 if one failed.
# No test is tried twice: what fails where the machine is busy must be written differently.
set -u
cd "$(dirname "$0")/.." || exit 2

BUILD=$(realpath "${BUILD:-build}")
SIM=$BUILD/sim
PRELOAD=$BUILD/libcudapool_preload.so
SANITIZE=${SANITIZE:-}
TEST_TIMEOUT=${TEST_TIMEOUT:-$([ -n "$SANITIZE" ] && echo 1800 || echo 600)}
SILENCE=15
# shellcheck disable=SC2206 # a command and its arguments
run_with=(${RUN_WITH:-})
prefix=()
machine=$(uname -m)
libraries=${GUEST_LIBRARY_PATH:-${LD_LIBRARY_PATH:-}}

# A sanitizer's library: gcc's by its name for the dynamic linker, which does not look where clang's are.
runtime() { # name with gcc, name with clang
    local file
    file=$(${CC:-cc} -print-file-name="$2")
    if [[ $file == */* ]]; then
        echo "$file"
        return
    fi
    readelf -d "$(${CC:-cc} -print-file-name="$1")" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p'
}

# The sanitizer's own library must be the first one in every process that has it.
case $SANITIZE in
address*)
    PRELOAD=$(runtime libasan.so "libclang_rt.asan-$machine.so"):$PRELOAD
    # The leak check has its own run in valgrind: under a preload it reports the shell's memory.
    # Some tests preload a library of their own without thinking of the sanitizer's.
    export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:verify_asan_link_order=0:exitcode=99}
    ;;
thread)
    PRELOAD=$(runtime libtsan.so "libclang_rt.tsan-$machine.so"):$PRELOAD
    export TSAN_OPTIONS=${TSAN_OPTIONS:-exitcode=99}
    # ThreadSanitizer's address map does not bear all kernels' randomization of addresses.
    if setarch -R true 2>/dev/null; then
        prefix=(setarch -R)
    fi
    ;;
esac
[[ $SANITIZE != *undefined ]] || export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:exitcode=99}
export BUILD SIM PRELOAD SANITIZE

# --- where a test runs ------------------------------------------------------------------------------

# The processes of a user meet in /dev/shm: each test has one of its own, where the kernel allows it.
# Figures of processes that are killed go with it.
own_shm='mount -t tmpfs -o mode=1777 tmpfs /dev/shm && mkdir -m 700 /dev/shm/runtime &&
    XDG_RUNTIME_DIR=/dev/shm/runtime exec "$@"'
apart=()
for how in "" "--user --map-current-user --keep-caps"; do
    # shellcheck disable=SC2086 # words
    if unshare $how --mount sh -c "$own_shm" sh true 2>/dev/null; then
        read -r -a apart <<<"unshare $how --mount sh -c"
        apart+=("$own_shm" sh)
        break
    fi
done
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
if [ ${#apart[@]} -eq 0 ]; then
    JOBS=1
    export XDG_RUNTIME_DIR=$results/runtime
    mkdir -m 700 "$XDG_RUNTIME_DIR"
fi
JOBS=${JOBS:-$(($(nproc) + 1))}

# --- what there is to run ---------------------------------------------------------------------------

names=()
commands=()
add() { # name, command
    names+=("$1")
    shift
    commands+=("$(printf '%q ' "$@")")
}

wanted() { # path, and the names on the command line
    local path=$1 name
    shift
    [ $# -gt 0 ] || return 0
    for name in "$@"; do
        [[ $path == *"$name"* ]] && return 0
    done
    return 1
}

# What is done by one thread at a time, or for other tests' sake, says nothing to ThreadSanitizer.
for_threads() { # script
    [ "$SANITIZE" = thread ] && [ -z "${ALL:-}" ] || return 0
    case $(basename "$1") in
    bench.sh | documents.sh | interposition.sh | layers.sh | mutations.sh | races.sh) return 1 ;;
    reports.sh | terminal.sh | tool.sh) return 1 ;; # the command has no threads
    esac
}

# Scripts come first: the longest of them decide how long the whole takes.
add_scripts() { # names
    local script
    for script in $(scripts_longest_first); do
        if [ -x "$script" ] && wanted "$script" "$@" && for_threads "$script"; then
            add "$(basename "$script")" "$script"
        fi
    done
}
scripts_longest_first() {
    local long='gpu_programs gpu_budgets settings_effects housekeeper pinned random segments neighbours locks faults graphs'
    {
        # shellcheck disable=SC2086 # words
        printf 'tests/e2e/%s.sh\n' $long
        printf '%s\n' tests/e2e/*.sh
    } | awk '!seen[$0]++'
}

add_conformance() { # names
    [ -x "$BUILD/tests/conformance/conformance" ] && wanted conformance "$@" || return 0
    add conformance env LD_LIBRARY_PATH="$SIM:$libraries" SIMCUDA_DEVICES=2 \
        SIMCUDA_SHARED="$results/devices" "${run_with[@]}" "$BUILD/tests/conformance/conformance"
}

add_unit_tests() { # names
    local unit=$BUILD/tests/unit source test
    if [ -n "$SANITIZE" ] || [ ${#run_with[@]} -gt 0 ]; then
        unit=$BUILD/tests/unit-plain
    fi
    for source in tests/unit/*/test_*.c; do
        test=$unit/${source#tests/unit/}
        test=${test%.c}
        if [ -e "$source" ] && wanted "$test" "$@"; then
            add "$(basename "$test")" env LD_LIBRARY_PATH="$libraries" "${run_with[@]}" "$test"
        fi
    done
}

add_inputs_of_fuzzers() { # names
    local corpus target
    for corpus in tests/fuzz/corpus/*/; do
        target=$BUILD/tests/fuzz/$(basename "$corpus")
        if wanted "$target" "$@"; then
            add "fuzz/$(basename "$corpus")" env LD_LIBRARY_PATH="$libraries" "${run_with[@]}" \
                "$target" "$corpus"
        fi
    done
}

# --- running it -------------------------------------------------------------------------------------

running=() # the start of each that runs, by its number, in seconds of this script
processes=()
mkfifo "$results/ended"
exec 9<>"$results/ended"

start() { # number
    running[$1]=$SECONDS
    {
        timeout -k 5 "$TEST_TIMEOUT" "${prefix[@]}" "${apart[@]}" bash -c "exec ${commands[$1]}" \
            >"$results/$1.log" 2>&1 </dev/null 9>&-
        echo "$1 $?" >&9
    } &
    processes[$1]=$!
}

# shellcheck disable=SC2317 # called by a trap
stop() {
    trap - INT TERM
    pkill -TERM -P "$(IFS=,; echo "${processes[*]}")" 2>/dev/null # timeout, which passes it on
    exit 130
}
trap stop INT TERM

say_what_runs() {
    local number text=
    for number in "${!running[@]}"; do
        text+="${text:+, }${names[$number]} $((SECONDS - running[number])) s"
    done
    echo "  running: $text"
}

passed=0
failed=0
skipped=0
done=0
failures=()

# One program's counts, out of what it printed: Criterion's synthesis if there is one, the ok, FAIL and
# skip lines otherwise. A program that failed without saying what counts as one failure, and one that
# succeeded without a word as one success.
count() { # status, file
    local synthesis tested
    synthesis=$(sed -n 's/.*Synthesis: Tested: \([0-9]*\) | Passing: \([0-9]*\) .*/\1 \2/p' "$2" |
        tail -n 1)
    left=$(grep -ac '^skip ' "$2")
    if [ -n "$synthesis" ]; then
        read -r tested ok <<<"$synthesis"
        bad=$((tested - ok))
    else
        ok=$(grep -ac '^ok ' "$2")
        bad=$(grep -ac '^FAIL ' "$2")
        [ "$1" -ne 0 ] || [ $((ok + bad + left)) -gt 0 ] || ok=1
    fi
    [ "$1" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
}

complaints='^FAIL .*|^\[FAIL\] .*|^.*\.c:[0-9]+: failed: .*|^[a-z_]+::[a-z_0-9]+ (failed|crashed)$'
complaints+='|(WARNING|ERROR): [A-Za-z]*Sanitizer.*|runtime error: .*'

# What a program that failed said first of it, on one line.
complaint() { # status, file
    local said
    said=$(grep -aoE -m 1 "$complaints" "$2") || said=$(tail -n 1 "$2")
    printf 'exit status %d: %.200s' "$1" "$said"
}

# Shows what came of one, and adds it up.
settle() { # number, status
    local name=${names[$1]} log=$results/$1.log ok bad left
    count "$2" "$log"
    passed=$((passed + ok))
    failed=$((failed + bad))
    skipped=$((skipped + left))
    done=$((done + 1))
    printf '  %3d of %d  %-28s %4d passed, %d failed%s (%d s)\n' "$done" "${#names[@]}" "$name" "$ok" "$bad" \
        "$([ "$left" -eq 0 ] || echo ", $left skipped")" $((SECONDS - running[$1]))
    grep -a '^skip ' "$log" | sed 's/^/    | /'
    unset "running[$1]" "processes[$1]"
    [ "$bad" -gt 0 ] || return 0
    [ "$2" -ne 124 ] || echo "    | took more than $TEST_TIMEOUT s"
    sed '/^ok /d; /^skip /d; s/^/    | /' "$log"
    failures+=("$name: $(complaint "$2" "$log")")
}

add_scripts "$@"
add_conformance "$@"
add_unit_tests "$@"
add_inputs_of_fuzzers "$@"
echo "${#names[@]} test programs, $JOBS at a time"
next=0
partial=
while [ "$done" -lt ${#names[@]} ]; do
    while [ ${#running[@]} -lt "$JOBS" ] && [ "$next" -lt ${#names[@]} ]; do
        start "$next"
        next=$((next + 1))
    done
    if IFS= read -r -t $SILENCE -u 9 line; then
        line=$partial$line
        partial=
        settle "${line% *}" "${line#* }"
    else
        partial+=$line # the time may be up in the middle of a line
        say_what_runs
    fi
done
[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
