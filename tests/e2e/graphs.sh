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

for case in short_memory gone_beside again again_by_clones; do
    expect "$case" graphs $case SIMCUDA_MEMORY=64MiB
done

# Nobody else has what a graph uses.
for case in launches last_launch last_update given_away; do
    expect "races, $case" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" SIMCUDA_RACES=1 -- \
        "$programs/graph_races" $case
done
# Executables have no user object, and keep what they use.
for case in made copied updated not_updated refused moved captured_again spoilt elsewhere; do
    rm -f "$work/report.json"
    expect "executables, $case" on_pool CUDAPOOL_REPORT="$work/report.json" "CUDAPOOL_CONFIG=$settings" -- \
        "$programs/graph_executables" $case
    nothing_is_left "executables, $case"
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

# What captured streams allocate in place of memory nodes.
nodes() { # case [variable=value ...]
    local case=$1
    shift
    on_pool CUDAPOOL_REPORT="$work/report.json" "CUDAPOOL_CONFIG=$settings" "$@" -- \
        "$programs/memory_nodes" "$case"
}
use_device '' '"captures": {"allocate": true, "memory_nodes": "pool"}'
for case in replays own_stream relaunched launched_twice comes_back branches child other_graph before \
    before_and_used before_and_context_ends fails abandoned pointers threads; do
    rm -f "$work/report.json"
    expect "memory nodes, $case" nodes $case
    nothing_is_left "memory nodes, $case"
    expect "memory nodes, $case: the report adds up" adds_up "$work/report.json"
done
expect "executables, held" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" -- \
    "$programs/graph_executables" held
for case in replays own_stream relaunched branches other_graph threads; do
    SIM=$BUILD/sim-12.4 expect "memory nodes, $case, a driver of 12.4" nodes $case
    expect "memory nodes, $case, plain driver" on_driver -- "$programs/memory_nodes" $case
done
leftovers() { # case memory
    expect "leftovers, $1" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" \
        "SIMCUDA_MEMORY=$2" -- "$programs/graph_leftovers" "$1"
}
leftovers held 64MiB
leftovers held_and_idle 1GiB
leftovers outputs 1GiB
leftovers spoilt 256MiB
# What the report counts of captured allocations: all the driver's, or all in the place of nodes.
counted() { # memory_nodes: driver or pool, the count that has some, the one that has none
    use_device '' '"captures": {"allocate": true, "memory_nodes": "'"$1"'"}'
    expect "memory nodes, $1" on_pool CUDAPOOL_REPORT="$work/report.json" "CUDAPOOL_CONFIG=$settings" -- \
        "$BUILD/tests/gpu/memory_nodes" replays=3 threads=1
    if [ "$(graph_count "$2")" -gt 0 ] && [ "$(graph_count "$3")" = 0 ]; then
        ok "memory nodes, $1: the report counts them"
    else
        fail "memory nodes, $1: the report counts them" "$2 $(graph_count "$2"), $3 $(graph_count "$3")"
    fi
}
counted driver memory_nodes in_place_of_nodes
counted pool in_place_of_nodes memory_nodes
expect_shown graph_pools.md graph_pools.c
for case in example answers; do
    expect "pools of captures, $case" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" -- \
        "$programs/graph_pools" $case
done
expect "pools of captures, race detector" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" \
    SIMCUDA_RACES=1 -- "$programs/graph_pools" example
expect "pools of captures, off" on_pool CUDAPOOL_REPORT=none -- "$programs/graph_pools" without
expect "pools of captures, without the pool" on_driver -- "$programs/graph_pools" without
for case in chain branches set_back two_graphs given_twice; do
    expect "races of memory nodes, $case" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" \
        SIMCUDA_RACES=1 -- "$programs/memory_node_races" $case
done
replays=("$BUILD/tests/gpu/memory_nodes" replays=30 threads=2)
expect "memory_nodes, plain driver" on_driver -- "${replays[@]}"
expect "memory_nodes" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" -- "${replays[@]}"
expect "memory_nodes, race detector" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" \
    "SIMCUDA_RACES=$work/races" -- "${replays[@]}"
if grep -q "^simcuda races: 0 hazards, [1-9].* 0 errors" "$work/races"; then
    ok "memory_nodes, nothing is reported"
else
    fail "memory_nodes, nothing is reported" "$(tail -n 2 "$work/races" | tr '\n' ' ')"
fi

# Settings that change how blocks travel.
for device in '"buckets": {"policy": "exact"}' '"growth_budget": 0' '"barriers": false' \
    '"caps": {"cached": 0}' '"free_synchronizes": true'; do
    use_device "$device" '"captures": {"allocate": true}'
    for case in replays fails threads; do
        expect "$case, $device" graphs $case
    done
    use_device "$device" '"captures": {"allocate": true, "memory_nodes": "pool"}'
    for case in replays relaunched before fails threads; do
        expect "memory nodes, $case, $device" nodes $case
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

# What the driver does not tell of captures costs memory, or makes nodes, and no program its result.
use_device '' '"captures": {"allocate": true, "memory_nodes": "pool"}'
for call in cuGraphNodeGetDependencies cuStreamGetCtx cuDeviceGetMemPool cuDeviceGetDefaultMemPool \
    cuStreamGetId cuStreamGetCaptureInfo_v3 cuUserObjectCreate; do
    for case in relaunched other_graph threads; do
        expect "memory nodes, $case, where $call fails" nodes $case \
            "SIMCUDA_FAULTS=$call=CUDA_ERROR_INVALID_VALUE@1+"
    done
done

finish
