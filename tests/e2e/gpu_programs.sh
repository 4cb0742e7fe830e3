#!/usr/bin/env bash
# The programs of tests/gpu, scaled down, on the simulated driver: without the pool, with it, and
# with growth budgets from nothing to plenty. What each checks, its source says.
set -u

here=$(cd "$(dirname "$0")/../.." && pwd)
BUILD=${BUILD:-$here/build}
SIM=${SIM:-$BUILD/sim}
PRELOAD=${PRELOAD:-$BUILD/libcudapool_preload.so}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seconds=60
failures=0

# Runs a program with variables in its environment. Under an emulator (RUN_WITH) they are set for
# the program alone, which is for another processor than the emulator.
run_with() { # variable=value ... -- program arguments
    local emulator=() for_guest=() for_host=(env)
    # shellcheck disable=SC2206 # a command and its arguments
    emulator=(${RUN_WITH:-})
    set -- "LD_LIBRARY_PATH=$SIM${GUEST_LIBRARY_PATH:+:$GUEST_LIBRARY_PATH}" "$@"
    while [ "$1" != -- ]; do
        if [ ${#emulator[@]} -gt 0 ]; then
            for_guest+=(-E "$1")
        else
            for_host+=("$1")
        fi
        shift
    done
    shift
    timeout -k 5 "$seconds" "${for_host[@]}" "${emulator[@]}" "${for_guest[@]}" "$@"
}

expect() { # exit status, name, as run_with
    local expected=$1 name=$2 status
    shift 2
    run_with "$@" >"$work/output" 2>&1
    status=$?
    if [ "$status" -eq "$expected" ]; then
        echo "ok $name"
        return
    fi
    failures=$((failures + 1))
    echo "FAIL $name: exit status $status, not $expected: $(tail -n 3 "$work/output" | tr '\n' ' ')"
}

memory=SIMCUDA_MEMORY=512MiB
with_pool=("$memory" "LD_PRELOAD=$PRELOAD" CUDAPOOL_REPORT=none)
program() {
    echo "$BUILD/tests/gpu/$1"
}

# Without the pool the programs must pass, and the careless one be caught: else they test nothing.
hazard=(threads=4 streams=4 rounds=16 us=1500)
expect 0 "hazard, plain driver" "$memory" -- "$(program hazard)" "${hazard[@]}"
expect 1 "hazard, memory reused at once is noticed" "$memory" -- "$(program hazard)" \
    "${hazard[@]}" reuse-at-once
expect 0 "capture, plain driver" "$memory" -- "$(program capture)" rounds=2 replays=4
expect 0 "contexts, plain driver" "$memory" -- "$(program contexts)" rounds=2
expect 0 "progress, plain driver" "$memory" -- "$(program progress)" blocks=40 rounds=1
expect 0 "fill_memory, plain driver" "$memory" -- "$(program fill_memory)" cycles=3 \
    largest_mib=64 kernel_ms=100

for budget in 0 8MiB 128MiB; do
    config=$work/budget-$budget.json
    printf '{"version": 1, "device": {"growth_budget": "%s"}}\n' "$budget" >"$config"
    with=("${with_pool[@]}" "CUDAPOOL_CONFIG=$config")
    at="growth budget $budget"
    for threads in 1 4; do
        for streams in 1 8; do
            expect 0 "hazard, $threads threads with $streams streams, $at" "${with[@]}" -- \
                "$(program hazard)" threads=$threads streams=$streams rounds=16 us=1500
        done
    done
    expect 0 "hazard with captures, $at" "${with[@]}" -- "$(program hazard)" "${hazard[@]}" captures
    expect 0 "progress, $at" "${with[@]}" -- "$(program progress)" blocks=80 rounds=1
    expect 0 "fill_memory, $at" "${with[@]}" -- "$(program fill_memory)" cycles=3 largest_mib=64 \
        kernel_ms=100
    expect 0 "capture, $at" "${with[@]}" -- "$(program capture)" rounds=2 replays=4
    expect 0 "contexts, $at" "${with[@]}" -- "$(program contexts)" rounds=3
    expect 0 "overlap, $at" "${with[@]}" -- "$(program overlap)" threads=4 rounds=20 us=200
    expect 0 "overlap, one thread, $at" "${with[@]}" -- "$(program overlap)" threads=1 rounds=50
    expect 0 "linked, $at" "${with[@]}" -- "$(program linked)" steps=100 words=4096
done
[ $failures -eq 0 ]
