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

for case in reads left set_before; do
    expect "$case, without the pool" without $case
done
expect "device_memory_is_short, without the pool" without device_memory_is_short SIMCUDA_MEMORY=64MiB

wild_alike() {
    without wild >"$work/without" && with wild >"$work/with" &&
        [ "$(wc -l <"$work/without")" -gt 500 ] && cmp "$work/without" "$work/with"
}

# The driver gets the calls about memory that the program makes, and no others.
memory_calls() { # log
    grep -o 'cuMem.*' "$1" | sed 's/address=[^ )]*//'
}
asked_alike() { # case
    without "$1" "SIMCUDA_LOG=$work/without.log" && with "$1" "SIMCUDA_LOG=$work/with.log" &&
        memory_calls "$work/without.log" >"$work/without" &&
        memory_calls "$work/with.log" >"$work/with" &&
        [ "$(wc -l <"$work/without")" -gt 20 ] && cmp "$work/without" "$work/with"
}
for case in reads left set_before; do
    expect "$case" with $case
done
for case in reads left; do
    expect "$case: no call of the pool's own" asked_alike $case
done
expect "wild: the driver's answers" wild_alike
starts_nothing() { # of settings that are not there the pool would complain as it starts
    with asks_early "CUDAPOOL_CONFIG=$work/none.json" 2>"$work/early" &&
        with left "CUDAPOOL_CONFIG=$work/none.json" 2>"$work/later" &&
        [ ! -s "$work/early" ] && [ -s "$work/later" ]
}
expect "device_memory_is_short" with device_memory_is_short SIMCUDA_MEMORY=64MiB
expect "whoever only asks starts nothing" starts_nothing

use_settings '"stream_ordered": {"enabled": false}'
expect "switched off" with left

finish
