#!/usr/bin/env bash
# Orders among streams that a pool can lose: on the simulated driver, whose race detector looks on.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

with() { # case [variable=value ...]
    local case=$1
    shift
    on_pool CUDAPOOL_REPORT=none SIMCUDA_RACES=1 "$@" -- "$programs/stream_hazards" "$case"
}
without() { # case [variable=value ...]
    local case=$1
    shift
    on_driver SIMCUDA_RACES=1 "$@" -- "$programs/stream_hazards" "$case"
}

for case in legacy_orders_blocking_streams legacy_orders_per_thread_streams \
    synchronise_after_the_legacy_stream query_after_the_legacy_stream \
    event_after_the_legacy_stream trimmed_after_the_legacy_stream \
    allocation_after_the_legacy_stream freed_on_another_blocking_stream \
    event_that_the_legacy_stream_waits_for waits_end_before_the_legacy_streams_later_work \
    frees_are_waited_for frees_behind_a_barrier_are_waited_for frees_stand_between_blocking_streams \
    waits_end_before_a_later_barrier allocation_behind_a_barrier synchronise_behind_a_barrier \
    allocation_behind_a_green_barrier plain_free_of_what_was_used_again \
    destroyed_in_a_bare_thread destroyed_without_a_context \
    trim_behind_a_barrier flags_between_streams \
    legacy_allocation_holds_nobody_up destroyed_pool_holds_nobody_up; do
    expect "$case, without the pool" without $case
    expect "$case" with $case
done

for case in use_after_a_destroyed_stream \
    use_after_a_stream_that_was_followed captured_early_launch nested_barrier_is_seen \
    reaped_as_it_ends reaped_after_the_legacy_stream \
    context_ends_during_a_capture release_that_ends_nothing \
    release_that_ends_nothing_in_a_capture release_beside_a_reap release_beside_out_of_memory \
    use_before_a_free_in_a_capture \
    use_on_a_stream_that_is_captured use_on_a_lost_stream_in_a_capture memory_pools_come_and_go \
    current_pool_is_destroyed no_stream_is_destroyed; do
    expect "$case" with $case
done

for case in handle_of_a_destroyed_stream current_pool_changes_before_the_free; do
    expect "$case, without the pool" without $case
    expect "$case" with $case
done
expect "stream_of_another_device, without the pool" without stream_of_another_device SIMCUDA_DEVICES=2
expect "stream_of_another_device" with stream_of_another_device SIMCUDA_DEVICES=2

# Before cuCtxRecordEvent.
SIM=$BUILD/sim-12.4
for case in legacy_orders_blocking_streams legacy_orders_per_thread_streams \
    synchronise_after_the_legacy_stream query_after_the_legacy_stream \
    allocation_after_the_legacy_stream freed_on_another_blocking_stream \
    event_that_the_legacy_stream_waits_for waits_end_before_the_legacy_streams_later_work \
    frees_are_waited_for frees_stand_between_blocking_streams plain_free_of_what_was_used_again destroyed_in_a_bare_thread \
    legacy_allocation_holds_nobody_up destroyed_pool_holds_nobody_up use_after_a_destroyed_stream \
    use_after_a_stream_that_was_followed context_ends_during_a_capture \
    use_on_a_lost_stream_in_a_capture release_that_ends_nothing; do
    expect "$case, an older driver" with $case
done
SIM=$BUILD/sim

finish
