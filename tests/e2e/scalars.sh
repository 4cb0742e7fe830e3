#!/usr/bin/env bash
# Device scalars, and peaks that a program begins anew, on the simulated driver.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

expect_shown device_scalars.md device_scalars.c
scalars=$programs/device_scalars
for case in example ahead beside captured green answers; do
    expect "scalars, $case" on_pool CUDAPOOL_REPORT=none -- "$scalars" $case
done
for case in example ahead beside; do
    expect "scalars, $case, race detector" on_pool CUDAPOOL_REPORT=none SIMCUDA_RACES=1 -- "$scalars" $case
    expect "scalars, $case, captures may allocate" on_pool CUDAPOOL_REPORT=none \
        'CUDAPOOL_CONFIG={"version": 1, "captures": {"allocate": true, "memory_nodes": "pool"}}' -- "$scalars" $case
    expect "scalars, $case, device memory is the driver's" on_pool CUDAPOOL_REPORT=none \
        'CUDAPOOL_CONFIG={"version": 1, "device": {"enabled": false}}' -- "$scalars" $case
    SIM=$BUILD/sim-12.4 expect "scalars, $case, a driver of 12.4" on_pool CUDAPOOL_REPORT=none -- "$scalars" $case
done
expect "scalars, off" on_pool CUDAPOOL_DISABLE=1 -- "$scalars" without
expect "scalars, without the pool" on_driver -- "$scalars" without

for case in device streams both; do
    expect "peaks, $case" on_pool CUDAPOOL_REPORT=none -- "$programs/peaks" $case
done
expect "peaks, device, no streams" on_pool CUDAPOOL_REPORT=none \
    'CUDAPOOL_CONFIG={"version": 1, "stream_ordered": {"enabled": false}}' -- "$programs/peaks" device
expect "peaks, off" on_pool CUDAPOOL_DISABLE=1 -- "$programs/peaks" without
expect "peaks, without the pool" on_driver -- "$programs/peaks" without

finish
