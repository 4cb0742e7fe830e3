#!/usr/bin/env bash
# Captures around cuMemAlloc and cuMemFree, with captures.allocate and without, on the simulated
# driver.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

graphs() { # case [variable=value ...]
    local case=$1
    shift
    on_pool CUDAPOOL_REPORT="$work/report.json" "CUDAPOOL_CONFIG=$settings" "$@" -- \
        "$programs/graphs" "$case"
}

# The count of a report's "graphs".
graph_count() { # key
    sed -n '/"graphs": {/,/}/s/.*"'"$1"'": \([0-9]*\).*/\1/p' "$work/report.json"
}

# Nothing is kept at the end, and nothing of a graph's was ever to be had.
nothing_is_left() { # case
    if [ "$(graph_count astray)" = 0 ] && [ "$(graph_count kept_bytes)" = 0 ]; then
        ok "$1: nothing is left"
    else
        fail "$1: nothing is left" "astray \"$(graph_count astray)\", kept \"$(graph_count kept_bytes)\""
    fi
}

use_device '' '"captures": {"allocate": true}'
for case in replays comes_back outlives fails abandoned rows pointers threads beside context_ends \
    forks two_contexts; do
    rm -f "$work/report.json"
    expect "$case" graphs $case
    nothing_is_left "$case"
    expect "$case: the report adds up" adds_up "$work/report.json"
done

expect "short_memory" graphs short_memory SIMCUDA_MEMORY=64MiB

# Nobody else has what a graph uses.
for case in launches last_launch given_away; do
    expect "races, $case" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" SIMCUDA_RACES=1 -- \
        "$programs/graph_races" $case
done
replays=("$BUILD/tests/gpu/graph_captures" replays=200 threads=2 captures=10 kept_mib=16)
expect "graph_captures" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" -- "${replays[@]}"
expect "graph_captures, race detector" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" \
    "SIMCUDA_RACES=$work/races" -- "${replays[@]}"
if grep -q "^simcuda races: 0 hazards, [1-9].* 0 errors" "$work/races"; then
    ok "graph_captures, nothing is reported"
else
    fail "graph_captures, nothing is reported" "$(tail -n 2 "$work/races" | tr '\n' ' ')"
fi
expect "graph_captures refused, plain driver" on_driver -- "$BUILD/tests/gpu/graph_captures" refused

# Settings that change how blocks travel.
for device in '"buckets": {"policy": "exact"}' '"growth_budget": 0' '"barriers": false' \
    '"caps": {"cached": 0}' '"free_synchronizes": true'; do
    use_device "$device" '"captures": {"allocate": true}'
    for case in replays fails threads; do
        expect "$case, $device" graphs $case
    done
done

# Without the setting, and without the pool, all is as the driver has it.
expect "refused, without the pool" on_driver -- "$programs/graphs" refused
use_device ''
expect "refused, by default" graphs refused
use_device '"enabled": false' '"captures": {"allocate": true}'
expect "refused, switched off" graphs refused
use_device '' '"captures": {"allocate": true}'

# Older drivers: without fences over a context, and without user objects.
use_device '' '"captures": {"allocate": true}'
for case in replays comes_back fails threads beside pointers; do
    SIM=$BUILD/sim-12.4 expect "$case, a driver of 12.4" graphs $case
done
SIM=$BUILD/sim-old expect "refused, an old driver" graphs refused

# Where no graph tells when it goes, too.
for call in cuUserObjectCreate cuGraphRetainUserObject cuStreamGetCaptureInfo_v3; do
    use_device '' '"captures": {"allocate": true}'
    expect "refused, where $call fails" graphs refused "SIMCUDA_FAULTS=$call=CUDA_ERROR_INVALID_VALUE@1+"
    if [ "$(graph_count without_owner)" = 6 ] && [ "$(graph_count captures)" = 0 ]; then
        ok "refused, where $call fails: no capture has an owner"
    else
        fail "refused, where $call fails: no capture has an owner" "$(graph_count without_owner) have none"
    fi
done

finish
