#!/usr/bin/env bash
# Calls that are out of memory beside work that does not end, on the simulated driver.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"
seconds=120
export CUDAPOOL_REPORT=none

refused() { # case call [variable=value ...]
    local case=$1 call=$2
    shift 2
    rm -f "$work/device-$case-$call"
    on_pool SIMCUDA_MEMORY=1GiB SIMCUDA_SHARED="$work/device-$case-$call" "$@" -- \
        "$programs/refusals" "$case" "$call"
}

# Waits of 10 s go on beside each other.
run() { # case call [variable=value ...]
    refused "$@" >"$work/$1-$2" 2>&1
    echo $? >"$work/$1-$2.status"
}
names=()
begin() { # case call [variable=value ...]
    names+=("$1 $2")
    run "$@" &
}
finish_all() {
    local name
    wait
    for name in "${names[@]}"; do
        cat "$work/${name/ /-}"
        expect "$name" test "$(cat "$work/${name/ /-}.status")" -eq 0
    done
    names=()
}

for call in alloc pitch create array array3d mipmapped; do
    for case in freed_in_order never_enough; do
        refused "$case" "$call" >"$work/output" 2>&1
        status=$?
        cat "$work/output"
        expect "$case $call" test $status -eq 0
    done
done
for call in async pool; do
    refused never_enough $call >"$work/output" 2>&1
    status=$?
    cat "$work/output"
    expect "never_enough $call" test $status -eq 0
done
for call in alloc create async; do
    begin enough_but_never_over $call
    begin enough_and_over_soon $call
done
for call in alloc create array; do
    begin freed_in_order_before_a_plain_free $call
    begin freed_in_order_after_a_plain_free $call
    begin stream_ordered_freed_plainly $call
done
echo '{"version": 1, "stream_ordered": {"enabled": false}}' >"$work/unserved.json"
begin stream_ordered_freed_plainly pitch CUDAPOOL_CONFIG="$work/unserved.json"
begin beside_managed_memory alloc
echo '{"version": 1, "device": {"growth_budget": 0}}' >"$work/barriers.json"
for call in alloc create async; do
    begin behind_the_pools_barrier $call CUDAPOOL_CONFIG="$work/barriers.json"
done
begin pinned alloc SIMCUDA_HOST_MEMORY=64MiB
for call in context module; do
    begin of_unknown_size $call SIMCUDA_OVERHEAD=128MiB SIMCUDA_MEMORY=2GiB
done
finish_all

if [ -w /dev/shm ]; then
    for call in alloc async create array; do
        begin neighbours_freed_in_order $call
        begin neighbours_never_enough $call
    done
    for call in alloc create; do
        begin neighbours_enough_but_never_over $call
        begin neighbours_enough_and_over_soon $call
    done
    finish_all
fi
finish
