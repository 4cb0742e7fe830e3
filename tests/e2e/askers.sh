#!/usr/bin/env bash
# What a process that is out of memory gets of others, and what a group of processes may hold.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"
export CUDAPOOL_REPORT=none

asker() { # case
    rm -f "$work/device"
    on_pool SIMCUDA_SHARED="$work/device" SIMCUDA_MEMORY=1GiB "CUDAPOOL_CONFIG=$settings" -- \
        "$programs/askers" "$1"
}

# All that is freed is cached, whatever its size.
keep='"largest": "100%"}, "caps": {"cached": "100%", "reserve_ratio": 100}'
all="\"device\": {\"buckets\": {$keep}, \"stream_ordered\": {\"buckets\": {$keep}"
printf '{"version": 1, %s}\n' "$all" >"$work/settings.json"
settings=$work/settings.json
for case in is_given in_stream_order for_an_array is_stopped is_killed behind_a_kernel \
    of_each_other by_many_threads counts_as_free; do
    expect "$case" asker $case
done

# With nothing that drivers could keep, nobody is asked in vain.
printf '{"version": 1, %s}\n' "${all%?}, \"driver_release_threshold\": 0}" >"$work/little.json"
settings=$work/little.json
expect is_too_little asker is_too_little

printf '{"version": 1, %s}\n' "${all/{/{\"growth_budget\": 0, }" >"$work/barrier.json"
settings=$work/barrier.json
expect behind_a_barrier asker behind_a_barrier

printf '{"version": 1, %s, "limits": {"group": "e2e", "group_bytes": "256MiB"}}\n' "$all" \
    >"$work/group.json"
settings=$work/group.json
expect of_a_group asker of_a_group
expect "a group of rivals" asker of_a_group_of_rivals
"$SIM/shared" "$work/device" >"$work/held"
expect "uses all of its limit, and is never over it" grep -q '^device 0 .* peak 268435456$' "$work/held"
finish
