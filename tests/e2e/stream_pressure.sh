#!/usr/bin/env bash
# Stream-ordered memory where there is little of it, on the simulated driver.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

with() { # case [variable=value ...]
    local case=$1
    shift
    on_pool CUDAPOOL_REPORT=none SIMCUDA_RACES=1 "$@" -- "$programs/stream_pressure" "$case"
}
for case in out_of_memory_beside_a_kernel out_of_memory_beside_a_kernel_after_small_frees \
    out_of_memory_beside_a_kernel_blocking out_of_memory_after_a_release; do
    expect "$case" with $case
    SIM=$BUILD/sim-12.4 expect "$case, an older driver" with $case
done
for case in out_of_device_memory_beside_a_kernel out_of_memory_is_told_at_once \
    out_of_memory_beside_later_work_of_many; do
    expect "$case" with $case
done
for case in in_order_is_not_waited_for out_of_memory_after_little_was_freed out_of_memory_puts_nothing_into_the_stream \
    out_of_memory_behind_own_work out_of_memory_behind_the_legacy_streams_work; do
    expect "$case" with $case SIMCUDA_MEMORY=64MiB
done

expect freed_memory_is_free with freed_memory_is_free

limit=$work/limit.json
printf '{"version": 1, "limits": {"device_bytes": "64MiB"}}\n' >"$limit"
for case in the_limit_is_told_at_once at_the_limit_pending_memory_is_in_use; do
    expect "$case" with $case "CUDAPOOL_CONFIG=$limit"
done

settings=$work/settings.json
printf '{"version": 1, "stream_ordered": {"driver_release_threshold": null, "reserve_floor": 0}}\n' >"$settings"
for case in sizes_come_and_go sizes_come_and_go_on_a_blocking_stream \
    sizes_come_and_go_on_the_legacy_stream sizes_come_and_go_unwaited threads_come_and_go \
    many_streams_once_each; do
    expect "$case" with $case "CUDAPOOL_CONFIG=$settings"
    expect "$case, on a large device" with $case "CUDAPOOL_CONFIG=$settings" SIMCUDA_MEMORY=32GiB
done

finish
