#!/usr/bin/env bash
# Blocks that are cut out of larger ones (buckets.policy: split, of device and of stream-ordered memory): what
# is told of them, what never reaches the driver, sizes that never come back; and what the other policies
# pass, the conformance suite and the scenarios of kinds.c, with this one.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"
seconds=100

split='"buckets": {"policy": "split"}'
use_device "$split"
for case in pointers exports past_the_pool in_stream_order captured few_calls context_ends; do
    expect "$case" case_on_pool segments $case
done
expect "no room for a segment" case_on_pool segments no_room_for_a_segment SIMCUDA_MEMORY=16MiB
expect "segments go back" case_on_pool segments segments_go_back SIMCUDA_MEMORY=64MiB

both=("$split" "\"stream_ordered\": {$split}")
use_device "${both[@]}"
for case in async_pointers async_exports async_few_calls async_captured async_outlives async_in_another_context; do
    expect "$case" case_on_pool segments $case SIMCUDA_RACES=1
done
for case in legacy_orders_blocking_streams legacy_orders_per_thread_streams freed_on_another_blocking_stream \
    frees_are_waited_for frees_behind_a_barrier_are_waited_for frees_stand_between_blocking_streams \
    allocation_behind_a_barrier allocation_behind_a_green_barrier plain_free_of_what_was_used_again \
    legacy_allocation_holds_nobody_up destroyed_pool_holds_nobody_up \
    use_after_a_destroyed_stream use_after_a_stream_that_was_followed context_ends_during_a_capture \
    release_that_ends_nothing use_on_a_stream_that_is_captured memory_pools_come_and_go \
    current_pool_is_destroyed handle_of_a_destroyed_stream; do
    expect "orders among streams: $case" case_on_pool stream_hazards $case SIMCUDA_RACES=1
done
for case in idle idle_by_the_clock; do
    use_device "$split" "\"stream_ordered\": {$split, \"release_after_idle\": \"100ms\"}"
    expect "segments of streams, $case" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" -- \
        "$programs/kinds" stream_ordered $case
done
use_device "${both[@]}"
expect "segments of streams go back" case_on_pool segments async_segments_go_back SIMCUDA_MEMORY=64MiB

use_device "$split" '"limits": {"device_bytes": "8MiB"}'
expect "a limit is not passed by a segment" case_on_pool segments limited

# --- sizes that never come back -------------------------------------------------------------------

report=$work/report.json
use_device "$split"
sizes() { # arguments
    on_pool "CUDAPOOL_CONFIG=$settings" "CUDAPOOL_REPORT=$report" SIMCUDA_MEMORY=80GiB -- "$BUILD/tests/gpu/sizes" "$@"
}
few_driver_calls() { # pairs, kind, calls for 1000 pairs
    numbers "$report" | awk -v pairs="$1" -v kind="\"$2\"" -v most="$3" '$1 == "kind" { of = $2 } index(of, kind) && $1 == "totals.driver.calls" { calls = $2 }
        END { print calls " calls for " pairs " pairs"; exit !(calls > 0 && calls <= pairs * most / 1000) }'
}
pairs=$([ -n "$SANITIZE" ] && echo 4000 || echo 60000)
expect "what blocks hold, while their neighbours come and go" sizes pairs=4000 live=64 check
# 1.24 times where nobody else wants the processor; then fences may seem to be not over.
expect "hardly more memory than the program holds, and less than PyTorch's allocator takes" \
    sizes "pairs=$pairs" live=64 bound percent=135
expect "sizes that never come back" sizes "pairs=$pairs" live=16
[ -n "$SANITIZE" ] || expect "hardly ask the driver" few_driver_calls "$pairs" device 5
expect "the report tells of cuts" grep -qE '"cuts": [1-9]' "$report"

use_device "${both[@]}"
expect "in a stream's order: what blocks hold" sizes pairs=4000 live=64 async check
expect "in a stream's order: hardly more than the program holds" sizes "pairs=$pairs" live=64 async bound percent=130
expect "in a stream's order: sizes that never come back" sizes "pairs=$pairs" live=16 async
[ -n "$SANITIZE" ] || expect "in a stream's order: hardly ask the driver" few_driver_calls "$pairs" stream_ordered 5
expect "the report tells of a stream's cuts" grep -qE '"cuts": [1-9]' "$report"

# --- settings -------------------------------------------------------------------------------------

refused() { # what the line says, settings
    local status
    "$BUILD/cudapool" check - <<<"$2" >"$work/output" 2>&1
    status=$?
    if [ "$status" -ne 2 ] || ! grep -Eq "$1" "$work/output"; then
        cat "$work/output"
        return 1
    fi
}
expect "pinned memory is not cut" refused "host\.buckets\.policy: found \"split\", allowed are geometric, pow2 and exact" \
    "{\"version\": 1, \"host\": {$split}}"
expect "segments of streams are whole pages, too" refused 'stream_ordered\.segments\.small: found 3145728, allowed are multiples of 2097152' \
    '{"version": 1, "stream_ordered": {"segments": {"small": "3MiB"}}}'
expect "segments are whole pages" refused 'device\.segments\.small: found 3145728, allowed are multiples of 2097152' \
    '{"version": 1, "device": {"segments": {"small": "3MiB"}}}'
expect "and large ones no smaller than small ones" refused 'device\.segments\.large: found 2097152, allowed are .* from 4194304 on' \
    '{"version": 1, "device": {"segments": {"small": "4MiB", "large": "2MiB"}}}'
all_four() {
    "$BUILD/cudapool" check - <<<'{"version": 1, "device": {"segments": {"small": "3MiB", "large": "5MiB"}},
        "stream_ordered": {"segments": {"small": "3MiB", "large": "7MiB"}}}' >"$work/output" 2>&1
    [ $? -eq 2 ] && [ "$(grep -Ec '(device|stream_ordered)\.segments\.(small|large): found' "$work/output")" -eq 4 ]
}
expect "and each one that is wrong is told" all_four

# --- what the others pass -------------------------------------------------------------------------

# They count bytes of blocks, and segments are larger; or want the same address for another size.
counts_bytes=" reuse context_ends forked out_of_memory trimmed several_threads address_anew "
while read -r kind scenario variables; do
    if [ "$kind" = host ] || [ -n "$variables" ] || [[ $counts_bytes == *" $scenario "* ]]; then
        continue
    fi
    for driver in sim sim-12.4; do
        SIM=$BUILD/$driver expect "$kind $scenario, $driver" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" -- \
            "$programs/kinds" "$kind" "$scenario"
    done
done < <(on_driver -- "$programs/kinds")
conforms() {
    on_driver SIMCUDA_DEVICES=2 SIMCUDA_SHARED="$work/devices" "CONFORMANCE_FACTS=$work/facts" -- \
        "$BUILD/tests/conformance/conformance" >/dev/null || return 1
    on_pool "CUDAPOOL_CONFIG=$settings" CUDAPOOL_REPORT=none SIMCUDA_DEVICES=2 CONFORMANCE_WITH_POOL=1 \
        SIMCUDA_SHARED="$work/devices" "CONFORMANCE_FACTS=$work/facts" -- "$BUILD/tests/conformance/conformance" |
        grep -v '^ok\|^fact\|^note'
    return "${PIPESTATUS[0]}"
}
[ -n "$SANITIZE" ] || expect "the conformance suite" conforms

finish
