#!/usr/bin/env bash
# The benchmark on the simulated driver: what the recorder writes down, what the worker answers, and
# that all of it runs and gives what it promises. How long anything takes is not looked at.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

bench=$BUILD/tests/bench

# --- the recorder ---------------------------------------------------------------------------------

record() { # trace, variables..., -- program arguments
    local trace=$1
    shift
    rm -f "$trace"
    on_driver "LD_PRELOAD=$first_of_all$bench/librecord.so" "BENCH_RECORD=$trace" "$@"
}

# Every free names a live block and every allocation a free place; says how many blocks there were,
# and in how many threads.
account_for() { # trace
    awk 'NR == 1 { if ($0 != "cudapool-trace 1") exit 3; next }
         /^[aA] / { if ($2 in live || $3 < 1) exit 4; live[$2]; blocks++ }
         /^[fF] / { if (!($2 in live)) exit 5; delete live[$2] }
         /^t / { threads[$2] }
         /^l / { launches += $3 }
         END { left = 0; for (slot in live) left++
               printf "%d blocks, %d left, %d launches, %d threads\n", blocks, left, launches, \
                   length(threads) }' "$1"
}

expect_account() { # name, trace, account
    local account
    account=$(account_for "$2")
    if [ "$account" = "$3" ]; then
        ok "$1"
    else
        fail "$1" "found \"$account\", not \"$3\""
    fi
}

roundtrip=$BUILD/tests/e2e/interposition_roundtrip
for way in linked dlsym default lookup old_lookup; do
    record "$work/$way" -- "$roundtrip" $way >"$work/output" 2>&1
    if [ $way = linked ]; then
        expect_account "every block is recorded" "$work/$way" \
            "480 blocks, 0 left, 0 launches, 1 threads"
    else
        expect_same "recorded alike: linked and $way" "$work/linked" "$work/$way"
    fi
done
record "$work/threads" -- "$BUILD/tests/gpu/overlap" threads=3 rounds=10 us=20 >"$work/output" 2>&1
# Each thread: 10 blocks and kernels, one kernel before, two blocks and kernels that check.
expect_account "recorded from threads" "$work/threads" "36 blocks, 0 left, 39 launches, 3 threads"
record "$work/limited" BENCH_RECORD_LIMIT=20 -- "$roundtrip" linked >"$work/output" 2>&1
expect_account "recorded up to a limit" "$work/limited" "20 blocks, 20 left, 0 launches, 1 threads"

# --- the floor ------------------------------------------------------------------------------------

on_floor() { # variables..., -- program arguments
    on_driver FLOOR_BYTES=$((1 << 30)) "LD_PRELOAD=$first_of_all$bench/libfloor.so" "$@"
}
asks_once=SIMCUDA_FAULTS=cuMemAlloc_v2=CUDA_ERROR_OUT_OF_MEMORY@2+
expect "a program runs on the floor, which asks the driver once" \
    on_floor SIMCUDA_MEMORY=2GiB $asks_once -- "$BUILD/tests/gpu/overlap" threads=1 rounds=10 us=20
expect "without room for the floor, on the driver" \
    on_floor SIMCUDA_MEMORY=1GiB -- "$BUILD/tests/gpu/overlap" threads=1 rounds=10 us=20

expect "cold memory comes first" on_floor SIMCUDA_MEMORY=2GiB $asks_once FLOOR_COLD=$((16 << 20)) -- \
    "$BUILD/tests/gpu/overlap" threads=1 rounds=40 us=20
expect "and where there is no more, what was freed" on_floor SIMCUDA_MEMORY=2GiB $asks_once FLOOR_COLD=$((2 << 30)) -- \
    "$BUILD/tests/gpu/overlap" threads=1 rounds=1200 us=1

# --- the time in calls ----------------------------------------------------------------------------

on_driver "LD_PRELOAD=$first_of_all$bench/libtimes.so:$PRELOAD" TIMES_REPORT="$work/times" -- \
    "$BUILD/tests/e2e/interposition_roundtrip" lookup >"$work/output" 2>&1
count='\{"calls": 480, "nanoseconds": [0-9]+, "long_calls": [0-9]+, "long_nanoseconds": [0-9]+\}'
expect_lines "calls are counted, in front of the pool" "$work/times" \
    "\{\"cuMemAlloc_v2\": $count, \"cuMemFree_v2\": $count\}"

# --- the worker, and the comparison ---------------------------------------------------------------

worker() { # allocator, command
    on_driver SIMCUDA_MEMORY=8GiB -- "$bench/worker/worker" "$1" <<<"$2"
}

expect_answer() { # name, extended regular expression, allocator, command
    local found
    found=$(worker "$3" "$4" 2>"$work/output" | tail -n 1)
    if [[ $found =~ ^\{$2\}$ ]]; then
        ok "$1"
    else
        fail "$1" "found \"$found\", not \"$2\""
    fi
}

expect_answer "an unknown command" '"error": "foo: no such command"' driver foo
expect_answer "a number that is none" '"error": ".*threads=two: must be a number"' driver \
    "pairs threads=two"
expect_answer "too many threads" '"error": "threads must be 1 to 256, .*"' driver "pairs threads=300"
expect_answer "sizes that are none" '"error": "sizes=large .*"' driver "pairs sizes=large"
expect_answer "an odd number across threads" '"error": ".*must be even"' driver "cross threads=3"
expect_answer "an unknown allocator" '"error": ".*must be driver, async, .*"' nothing introduce
expect_answer "a library that is not there" '"error": ".*/none.so.*"' library:/none.so introduce
expect_answer "blocks that stay" '"blocks": 300, "seconds": [0-9.]*' driver "live blocks=300"

# A replay makes every allocation of the trace, and leaves none: the driver sees them.
replays() { # trace, driver calls that must have been made
    local log=$work/calls found
    rm -f "$log"
    on_driver SIMCUDA_LOG="$log" -- "$bench/worker/worker" driver \
        <<<"replay file=$1 ms=0 passes=1" >"$work/answer" 2>"$work/output"
    found=$(for call in cuMemAlloc_v2 cuMemFree_v2; do grep -c " $call(" "$log"; done | tr '\n' ' ')
    echo "$found"
    [ "$found" = "$2" ]
}

printf 'cudapool-trace 1\n# %s\n' "live before, a step that is marked, and its end" >"$work/steps"
printf '%s\n' "t 0" "a 0 1000" "a 1 2000" "l 0 3" m "f 1" "a 1 5000" "t 1" "A 2 100 1" "l 1 2" "s 1" \
    "t 0" "f 2" c m "f 0" "f 1" >>"$work/steps"
# Two before; two in each of the passes, the first of which does not count.
expect "a trace is replayed, and nothing left" replays "$work/steps" "6 6 "
expect_answer "what a replay says" \
    '"pass_ns": [0-9]+, "passes": 4, "allocations": 2, "ns_an_allocation": [0-9.]+' driver \
    "replay file=$work/steps ms=0 passes=4"
printf '%s\n' "a 0 10" "q 3" >>"$work/steps"
expect_answer "a line that is none of a trace" '"error": ".*/steps:21: not a line of a trace"' driver \
    "replay file=$work/steps"
printf 'anything\n' >"$work/no_trace"
expect_answer "a file that is no trace" '"error": ".*:1: not a line of a trace"' driver \
    "replay file=$work/no_trace"
expect_answer "a trace that is not there" '"error": "/none: No such file.*"' driver "replay file=/none"
for trace in "$here"/tests/bench/traces/*.trace; do
    expect "blocks of $(basename "$trace")" account_for "$trace"
done

# All of it, a few milliseconds each.
if [ -n "${RUN_WITH:-}" ]; then
    skip "the benchmark runs" "its programs are for another processor"
elif ! command -v python3 >/dev/null; then
    skip "the benchmark runs" "there is no python3"
else
    expect "the benchmark runs" env LD_LIBRARY_PATH= SIM="$SIM" PRELOAD="$PRELOAD" \
        "$here/tests/bench/bench.py" "$work/out" --quick
    expect "the benchmark's JSON and charts" python3 "$here/tests/e2e/bench_output.py" "$work/out"
fi

finish
