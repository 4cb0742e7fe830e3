#!/usr/bin/env bash
# How many calls reach the driver where the pool cannot help, on the simulated driver.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

with() { # case [variable=value ...]
    local case=$1
    shift
    on_pool CUDAPOOL_REPORT=none SIMCUDA_MEMORY=40GiB "$@" -- "$programs/stream_calls" "$case"
}
without() { # case [variable=value ...]
    local case=$1
    shift
    on_driver SIMCUDA_MEMORY=40GiB "$@" -- "$programs/stream_calls" "$case"
}

for case in to_another_stream to_one_that_is_behind to_the_legacy_stream \
    to_the_legacy_stream_that_is_behind to_a_blocking_stream_that_is_behind until_it_catches_up \
    many_sizes many_sizes_on_many_streams many_sizes_on_a_thousand_streams \
    time_on_a_thousand_streams streams_come_and_go; do
    expect "$case, without the pool" without $case
    # ThreadSanitizer slows the pool and not the simulated GPU, so that other streams' work is over when
    # these begin: they take blocks of each other's, which costs most of a call more in a pair.
    case "$case $SANITIZE" in
    # What is timed there is the sanitizer, which looks at each of a thousand streams' words.
    "streams_come_and_go thread" | "time_on_a_thousand_streams thread") ;;
    *) expect "$case" with $case ;;
    esac
done

finish
