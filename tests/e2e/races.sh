#!/usr/bin/env bash
# The race detector of the simulated driver: its own cases, in real time and stepped; the programs
# of tests/gpu under it, with the pool and with a reuse that must be reported; and the same for
# pinned host memory, a case to a process.
#
# PINNED_CONFIG: settings with which the pool runs the cases of pinned memory besides its own.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

export SIMCUDA_MEMORY=512MiB # an emulator passes it on
gpu=$BUILD/tests/gpu

# The cases print their own lines.
cases() { # stepped, nothing or threads
    # shellcheck disable=SC2086 # no word is no argument
    on_driver "SIMCUDA_RACES=$work/cases" "SIMCUDA_STEPPED=$1" -- "$programs/races" $2 >"$work/output"
}
for stepped in 0 1; do
    for what in "" threads; do
        cases "$stepped" "$what" || failures=$((failures + 1))
        sed "s/^\(ok\|FAIL\) /\1 stepped=$stepped /" "$work/output"
    done
done

# A summary with these counts of hazards, errors of the program and waits that plain does not make,
# and with allocations.
summary_has() { # file, hazards, errors, waits
    grep -Eq "^simcuda races: $2 hazards, [1-9][0-9]* operations, [1-9][0-9]* allocations, $3 \
errors of the program, $4 waits" "$1" || {
        cat "$1"
        return 1
    }
}

is_clean() { # command
    rm -f "$work/races"
    "$@" || return 1
    summary_has "$work/races" 0 0 0
}

has_hazards() {
    rm -f "$work/races"
    "$@"
    summary_has "$work/races" '[1-9][0-9]*' '[0-9]+' '[0-9]+'
}

races=SIMCUDA_RACES=$work/races
hazard=("$gpu/hazard" threads=4 streams=4 rounds=16 us=500)
capture=("$gpu/capture" rounds=2 replays=4)
fill_memory=("$gpu/fill_memory" cycles=3 largest_mib=64 kernel_ms=50)

expect "hazard, plain driver" is_clean on_driver "$races" -- "${hazard[@]}"
expect "capture, plain driver" is_clean on_driver "$races" -- "${capture[@]}"
expect "contexts, plain driver" is_clean on_driver "$races" -- "$gpu/contexts" rounds=3
expect "progress, plain driver" is_clean on_driver "$races" -- "$gpu/progress" blocks=40 rounds=1
expect "overlap, plain driver" is_clean on_driver "$races" -- "$gpu/overlap" threads=4 rounds=20
expect "hazard, memory reused at once" has_hazards on_driver "$races" -- "${hazard[@]}" \
    reuse-at-once
for budget in 0B 8MiB 128MiB; do
    printf '{"version": 1, "device": {"growth_budget": "%s"}}\n' "$budget" >"$work/$budget.json"
    pool=(on_pool "$races" "CUDAPOOL_CONFIG=$work/$budget.json" "CUDAPOOL_REPORT=none" --)
    at="growth budget $budget"
    expect "hazard, $at" is_clean "${pool[@]}" "${hazard[@]}"
    expect "hazard, one thread, $at" is_clean "${pool[@]}" "$gpu/hazard" threads=1 streams=4 \
        rounds=40 us=500
    expect "hazard with captures, $at" is_clean "${pool[@]}" "${hazard[@]}" captures
    expect "capture, $at" is_clean "${pool[@]}" "${capture[@]}"
    expect "contexts, $at" is_clean "${pool[@]}" "$gpu/contexts" rounds=3
    expect "progress, $at" is_clean "${pool[@]}" "$gpu/progress" blocks=40 rounds=1
    expect "overlap, $at" is_clean "${pool[@]}" "$gpu/overlap" threads=4 rounds=20
    expect "overlap, one thread, $at" is_clean "${pool[@]}" "$gpu/overlap" threads=1 rounds=50
    expect "fill_memory, $at" is_clean "${pool[@]}" "${fill_memory[@]}"
    expect "linked, $at" is_clean "${pool[@]}" "$gpu/linked" steps=100 words=4096
done

pinned=$programs/pinned_races
cases_of() { # [safe]
    on_driver -- "$pinned" list "$@"
}
for case in $(cases_of) $(cases_of safe); do
    expect "pinned memory, $case, plain driver" is_clean on_driver "$races" -- "$pinned" "$case"
    expect "pinned memory, $case" is_clean on_pool "$races" CUDAPOOL_REPORT=none -- "$pinned" "$case"
    [ -z "${PINNED_CONFIG:-}" ] || expect "pinned memory, $case, $PINNED_CONFIG" is_clean on_pool \
        "$races" "CUDAPOOL_CONFIG=$PINNED_CONFIG" CUDAPOOL_REPORT=none -- "$pinned" "$case"
done
for case in $(cases_of); do
    expect "pinned memory, $case, memory reused at once" has_hazards on_driver "$races" -- \
        "$pinned" "$case" reuse-at-once
done
for case in $(cases_of safe); do
    expect "pinned memory, $case, reused at once, which is right" is_clean on_driver "$races" -- \
        "$pinned" "$case" reuse-at-once
done
finish
