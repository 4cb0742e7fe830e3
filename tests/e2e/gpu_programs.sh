#!/usr/bin/env bash
# The programs of tests/gpu, scaled down, on the simulated driver: without the pool, and with it. What each
# checks, its source says. gpu_budgets.sh runs them with other settings.
# shellcheck source=tests/e2e/gpu_programs_lib.sh disable=SC2317
. "$(dirname "$0")/gpu_programs_lib.sh"

# A careless program need not meet its bad luck at the first try, nor soon on a busy machine: each
# try is twice as long as the one before.
is_caught() { # name of the argument that says how long, its first value, command
    local name=$1 length=$2 tries
    shift 2
    for tries in 1 2 3 4 5; do
        "$@" "$name=$length"
        case $? in
        0) length=$((2 * length)) ;;
        1) return 0 ;;
        *) break ;;
        esac
    done
    echo "$tries tries"
    return 1
}

# Without the pool the programs must pass, and the careless one be caught: else they test nothing.
expect "hazard, plain driver" on_driver -- "${hazard[@]}"
expect "hazard notices memory that is reused at once" is_caught rounds 16 on_driver -- "${hazard[@]}" \
    reuse-at-once
expect "soak, plain driver" on_driver SIMCUDA_MEMORY=4GiB -- "${soak[@]}"
expect "soak notices memory that is reused at once" is_caught seconds 1 on_driver SIMCUDA_MEMORY=4GiB \
    -- "${soak[@]}" largest_mib=16 percent=50 unordered
expect "capture, plain driver" on_driver -- "${capture[@]}"
expect "contexts, plain driver" on_driver -- "$programs/contexts" rounds=2
expect "progress, plain driver" on_driver -- "$programs/progress" blocks=40 rounds=1
expect "fill_memory, plain driver" on_driver -- "${fill_memory[@]}"
expect "tight, plain driver" on_driver -- "${tight[@]}"
expect "managed, plain driver" on_driver -- "$programs/managed"
pinned=("$programs/pinned" hazard rounds=100 us=1000)
expect "pinned hazard, plain driver" on_driver -- "${pinned[@]}" threads=4 contexts
if [ "$SANITIZE" != thread ]; then # which notices it first
    expect "pinned hazard notices memory that is reused at once" is_caught rounds 50 on_driver -- \
        "${pinned[@]}" reuse-at-once
fi
expect "host_facts, plain driver" on_driver -- "$programs/host_facts" most_mib=16 pair_ms=5

for busy in kernels host_functions memory_waits; do
    give_back=("$programs/give_back" "busy=$busy" ms=100 mib=16)
    expect "give_back beside $busy, plain driver" on_driver -- "${give_back[@]}"
    expect "give_back beside $busy" on_pool CUDAPOOL_REPORT=none -- "${give_back[@]}"
done
for contexts in "" contexts; do
    expect "pinned hazard $contexts" on_pool CUDAPOOL_REPORT=none -- "${pinned[@]}" threads=4 $contexts
done
for mode in "staging mib=2 rounds=5 threads=4" "staging_once mib=2 rounds=5 threads=4" "mixed rounds=20" \
    "mixed_once rounds=20" "large most_mib=16" "peak live_mib=32" "pairs pair_ms=5 most_threads=4"; do
    # shellcheck disable=SC2086 # a word for each argument
    expect "pinned $mode" on_pool CUDAPOOL_REPORT=none -- "$programs/pinned" $mode
done
host_functions=("$programs/host_functions" threads=2 rounds=50 most_kib=8192)
expect "host_functions, plain driver" on_driver -- "${host_functions[@]}"
expect "host_functions" on_pool CUDAPOOL_REPORT=none -- "${host_functions[@]}"
expect "misses" on_pool CUDAPOOL_REPORT=none SIMCUDA_MEMORY=4GiB -- "$programs/misses" count=3000 \
    bytes=65536 mixed

# Here the addresses come back in all ways but the one behind the program's events.
streams=("$programs/stream_ordered" pairs=500 threads=4 rounds=20 stress=10 large=64)
expect "stream_ordered, plain driver" on_driver -- "${streams[@]}"
expect "stream_ordered" on_pool CUDAPOOL_REPORT=none -- "${streams[@]}" cases-must-hit
expect "stream_ordered, race detector" on_pool CUDAPOOL_REPORT=none SIMCUDA_RACES=1 -- \
    "${streams[@]}"
# Processes that share a device: what one has freed, the other gets as without the pool.
neighbours=("$programs/neighbours")
on_shared() { # on_driver or on_pool, case and its arguments
    local how=$1
    shift
    rm -f "$work/shared"
    $how CUDAPOOL_REPORT=none SIMCUDA_MEMORY=1400MiB "SIMCUDA_SHARED=$work/shared" \
        ${idle:+"CUDAPOOL_CONFIG={\"version\": 1, \"device\": {\"release_after_idle\": \"$idle\"}}"} \
        -- "${neighbours[@]}" "$@"
}
if [ -z "${RUN_WITH:-}" ]; then # they start themselves again
    for case in sleeping "sleeping kind=async" waiting hitting "behind kernel_ms=700" \
        "stopped silent_ms=2000" "unaware pace_ms=400" "turns rounds=10"; do
        # shellcheck disable=SC2086 # words
        expect "neighbours, $case, plain driver" on_shared on_driver $case
        # shellcheck disable=SC2086
        expect "neighbours, $case" on_shared on_pool $case
    done
    idle=1s expect "neighbours, idle" on_shared on_pool idle idle_ms=1000 giving_ms=3000
    expect "neighbours, wakeups" on_shared on_pool wakeups
    expect "neighbours, group" on_shared on_pool group processes=20 each_mib=16 seconds=3
fi

# Its rows are the facts that the pool leans on: with the pool in front nothing may change but what
# the rows themselves expect.
expect "conformance, plain, writes its facts" on_driver SIMCUDA_DEVICES=2 \
    SIMCUDA_SHARED="$work/devices" "CONFORMANCE_FACTS=$work/facts" -- "$BUILD/tests/conformance/conformance"
expect "conformance, pool" on_pool SIMCUDA_DEVICES=2 CONFORMANCE_WITH_POOL=1 \
    SIMCUDA_SHARED="$work/devices" "CONFORMANCE_FACTS=$work/facts" -- "$BUILD/tests/conformance/conformance"

# What the runner on a GPU says where its time is up: each section once, and nothing of other programs.
if [ -z "${RUN_WITH:-}" ]; then
    env "LD_LIBRARY_PATH=$SIM" BUILD="$BUILD" SECONDS_IN_ALL=-1 "$here/tests/gpu/run.sh" "$work/gpu" captures \
        give_back misses >/dev/null 2>&1
    expect "a run whose time is up is not complete" test $? -eq 1
    not_started='not started, the time is up'
    grep -v '^$' "$work/gpu/table.txt" >"$work/table"
    expect_lines "each section says so once" "$work/table" '.* UTC' \
        "capture, plain, and what follows in this section: $not_started" \
        "give_back, plain, all connections, nothing, and what follows in this section: $not_started" \
        "30000 allocations of 4 KiB, and what follows in this section: $not_started" \
        '0 failed, 23 not started or cut short, [0-9]+ s'
fi
finish
