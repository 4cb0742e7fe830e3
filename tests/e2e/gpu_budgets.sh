#!/usr/bin/env bash
# The programs of tests/gpu, scaled down, on the simulated driver, with growth budgets from nothing to plenty
# and with memory that is to stay hot. gpu_programs.sh runs them without the pool.
# shellcheck source=tests/e2e/gpu_programs_lib.sh disable=SC2317
. "$(dirname "$0")/gpu_programs_lib.sh"

for budget in 0B 8MiB 128MiB; do
    printf '{"version": 1, "device": {"growth_budget": "%s"}}\n' "$budget" >"$work/$budget.json"
    with_budget() { # command; with device memory of $memory
        rm -f "$work/report.json"
        on_pool SIMCUDA_MEMORY="${memory:-$SIMCUDA_MEMORY}" "CUDAPOOL_CONFIG=$work/$budget.json" "CUDAPOOL_REPORT=$work/report.json" -- "$@" &&
            has_requests "$work/report.json"
    }
    at="growth budget $budget"
    for threads in 1 4; do
        for streams in 1 8; do
            expect "hazard, $threads threads with $streams streams, $at" with_budget \
                "$programs/hazard" threads=$threads streams=$streams rounds=16 us=1500
        done
    done
    expect "hazard with captures, $at" with_budget "${hazard[@]}" captures
    expect "progress, $at" with_budget "$programs/progress" blocks=80 rounds=1
    expect "fill_memory, $at" with_budget "${fill_memory[@]}"
    expect "tight, $at" with_budget "${tight[@]}"
    expect "managed, $at" with_budget "$programs/managed"
    expect "tight with kernels, $at" with_budget "${tight[@]}" kernels
    memory=4GiB expect "soak, $at" with_budget "${soak[@]}"
    expect "capture, $at" with_budget "${capture[@]}"
    expect "contexts, $at" with_budget "$programs/contexts" rounds=3
    expect "overlap, $at" with_budget "$programs/overlap" threads=4 rounds=20
    expect "overlap, one thread, $at" with_budget "$programs/overlap" threads=1 rounds=50
    expect "linked, $at" with_budget "$programs/linked" steps=100 words=4096
done

# Memory that is to stay hot: the blocks behind barriers, and the work that the pool does not see.
echo '{"version": 1, "device": {"hot_bytes": "1MiB"}}' >"$work/hot.json"
for program in "hot_hazard rounds=20 copy_mib=16" "overlap threads=1 rounds=50" "overlap threads=4 rounds=20" \
    "capture rounds=2 replays=4" "progress blocks=80 rounds=1"; do
    # shellcheck disable=SC2086 # a program and its arguments
    expect "$program, hot memory" on_pool SIMCUDA_MEMORY=4GiB SIMCUDA_RACES=1 "CUDAPOOL_CONFIG=$work/hot.json" \
        CUDAPOOL_REPORT=none -- $programs/$program
done

finish
