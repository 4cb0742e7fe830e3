#!/usr/bin/env bash
# What a memory pool says is used, and how large a pointer's memory is, beside threads that allocate, free
# and capture: as the program asked for it, without the pool and with it, in blocks and in segments.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

for case in beside_pairs beside_misses beside_captures; do
    expect "$case, without the pool" case_on_driver used_bytes $case
    settings=
    expect "$case" case_on_pool used_bytes $case
    use_device '"enabled": true' '"stream_ordered": {"buckets": {"policy": "split"}}'
    expect "$case, in segments" case_on_pool used_bytes $case
done

finish
