#!/usr/bin/env bash
# The benchmark's parts on the simulated driver: what the recorder writes down.
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
        expect "the recorder accounts for every block" account_for "$work/$way"
    else
        expect_same "recorded alike: linked and $way" "$work/linked" "$work/$way"
    fi
done
record "$work/threads" -- "$BUILD/tests/gpu/overlap" threads=3 rounds=10 us=20 >"$work/output" 2>&1
# Each thread: 10 blocks and kernels, one kernel before, two blocks and kernels that check.
expect_account "recorded from threads" "$work/threads" "36 blocks, 0 left, 39 launches, 3 threads"
record "$work/limited" BENCH_RECORD_LIMIT=20 -- "$roundtrip" linked >"$work/output" 2>&1
expect_account "recorded up to a limit" "$work/limited" "20 blocks, 20 left, 0 launches, 1 threads"

finish
