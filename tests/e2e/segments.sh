#!/usr/bin/env bash
# Blocks that are cut out of larger ones (device.buckets.policy: split): what is told of them, what never
# reaches the driver, sizes that never come back; and what the other policies pass, the conformance suite
# and the scenarios of kinds.c, with this one.
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
use_device "$split" '"limits": {"device_bytes": "8MiB"}'
expect "a limit is not passed by a segment" case_on_pool segments limited

# --- sizes that never come back -------------------------------------------------------------------

report=$work/report.json
use_device "$split"
sizes() { # arguments
    on_pool "CUDAPOOL_CONFIG=$settings" "CUDAPOOL_REPORT=$report" SIMCUDA_MEMORY=80GiB -- "$BUILD/tests/gpu/sizes" "$@"
}
few_driver_calls() { # pairs
    numbers "$report" | awk -v pairs="$1" '$1 == "kind" { of = $2 } of ~ /"device"/ && $1 == "totals.driver.calls" { calls = $2 }
        END { print calls " calls for " pairs " pairs"; exit !(calls > 0 && calls <= pairs * 5 / 1000) }'
}
pairs=$([ -n "$SANITIZE" ] && echo 4000 || echo 60000)
expect "what blocks hold, while their neighbours come and go" sizes pairs=4000 live=64 check
# 1.24 times where nobody else wants the processor; then fences may seem to be not over.
expect "hardly more memory than the program holds, and less than PyTorch's allocator takes" \
    sizes "pairs=$pairs" live=64 bound percent=135
expect "sizes that never come back" sizes "pairs=$pairs" live=16
[ -n "$SANITIZE" ] || expect "hardly ask the driver" few_driver_calls "$pairs"
expect "the report tells of cuts" grep -qE '"cuts": [1-9]' "$report"

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
for kind in stream_ordered host; do
    expect "$kind memory is not cut" refused "$kind\.buckets\.policy: found \"split\", allowed are geometric, pow2 and exact" \
        "{\"version\": 1, \"$kind\": {$split}}"
done
expect "segments are whole pages" refused 'device\.segments\.small: found 3145728, allowed are multiples of 2097152' \
    '{"version": 1, "device": {"segments": {"small": "3MiB"}}}'
expect "and large ones no smaller than small ones" refused 'device\.segments\.large: found 2097152, allowed are .* from 4194304 on' \
    '{"version": 1, "device": {"segments": {"small": "4MiB", "large": "2MiB"}}}'

# --- what the others pass -------------------------------------------------------------------------

# They count bytes of blocks, and segments are larger; or want the same address for another size.
counts_bytes=" reuse context_ends forked out_of_memory trimmed several_threads address_anew "
while read -r kind scenario variables; do
    if [ "$kind" != device ] || [ -n "$variables" ] || [[ $counts_bytes == *" $scenario "* ]]; then
        continue
    fi
    for driver in sim sim-12.4; do
        SIM=$BUILD/$driver expect "$scenario, $driver" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" -- \
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
