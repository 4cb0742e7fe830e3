#!/usr/bin/env bash
# The driver's memory pools of managed and of host memory, on the simulated driver.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"
settings=

use_settings() { # members
    settings=$work/settings-$((RANDOM)).json
    printf '{"version": 1, %s}\n' "$1" >"$settings"
}
with() { # case [variable=value ...]
    case_on_pool mempools "$@"
}
without() { # case [variable=value ...]
    case_on_driver mempools "$@"
}

use_threshold() { # members of stream_ordered, a comma after each
    use_settings "$host, \"stream_ordered\": {$1\"unserved_release_threshold\": \"512MiB\"}"
}

for case in reads left set_before; do
    expect "$case, without the pool" without $case
done
expect "device_memory_is_short, without the pool" without device_memory_is_short SIMCUDA_MEMORY=64MiB

# The machine, or the control group, may be small.
host='"host": {"caps": {"cached": "64MiB"}}'
wild_alike() {
    without wild >"$work/without" && with wild >"$work/with" &&
        [ "$(wc -l <"$work/without")" -gt 500 ] && cmp "$work/without" "$work/with"
}

# By default the driver gets the calls about memory that the program makes, and no others.
memory_calls() { # log
    grep -o 'cuMem.*' "$1" | sed 's/address=[^ )]*//'
}
asked_alike() { # case
    without "$1" "SIMCUDA_LOG=$work/without.log" && with "$1" "SIMCUDA_LOG=$work/with.log" &&
        memory_calls "$work/without.log" >"$work/without" &&
        memory_calls "$work/with.log" >"$work/with" &&
        [ "$(wc -l <"$work/without")" -gt 20 ] && cmp "$work/without" "$work/with"
}
use_settings "$host"
for case in reads left set_before; do
    expect "$case, by default" with $case
done
for case in reads left; do
    expect "$case, by default: no call of the pool's own" asked_alike $case
done
expect "wild, by default: the driver's answers" wild_alike
starts_nothing() { # of settings that are not there the pool would complain as it starts
    with asks_early "CUDAPOOL_CONFIG=$work/none.json" 2>"$work/early" &&
        with left "CUDAPOOL_CONFIG=$work/none.json" 2>"$work/later" &&
        [ ! -s "$work/early" ] && [ -s "$work/later" ]
}
expect "whoever only asks starts nothing" starts_nothing

# With a threshold.
use_threshold ""
for case in reads kept set_before knows_when_asked_again trimmed come_and_go; do
    expect "$case" with $case
done
expect "wild: the driver's answers" wild_alike
expect "device_memory_is_short" with device_memory_is_short SIMCUDA_MEMORY=64MiB
expect "host_memory_is_short" with host_memory_is_short SIMCUDA_FAULTS=cuMemHostAlloc=2@2
use_threshold '"release_after_idle": "1500ms", '
expect "idle" with idle
use_threshold '"release_after_idle": "100ms", '
expect "idle_once" with idle_once
use_threshold '"driver_release_threshold": null, '
expect "whatever the device's own pool is told" with kept

host='"host": {"caps": {"cached": "1MiB"}}'
use_threshold ""
expect "host pools keep no more than may be cached of pinned memory" with host_memory_left
host='"host": {"enabled": false}'
use_threshold ""
expect "nor anything where that is switched off" with host_memory_left
host='"host": {"caps": {"cached": "64MiB"}}'
use_threshold '"enabled": false, '
expect "switched off" with left

finish
