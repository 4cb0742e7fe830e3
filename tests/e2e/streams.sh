#!/usr/bin/env bash
# Stream-ordered memory as a program sees it: on the simulated driver, under every setting that
# concerns it, and on drivers that lack functions.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"
settings=

# Writes a settings file from the inside of "stream_ordered", and other members.
use_streams() { # members of stream_ordered [other members]
    settings=$work/settings-$((RANDOM)).json
    printf '{"version": 1, "stream_ordered": {%s}%s}\n' "$1" "${2:+, $2}" >"$settings"
}
streams() { # case [variable=value ...]
    case_on_pool streams "$@"
}
without() { # case [variable=value ...]
    case_on_driver streams "$@"
}

for case in frees captures capture_that_forbids pools contexts_end; do
    expect "$case, without the pool" without $case
done
expect "out_of_memory, without the pool" without out_of_memory SIMCUDA_MEMORY=64MiB

for case in same_stream own_first stream_synchronised stream_polled context_synchronised \
    events_are_not_followed opportunistic switched_off_by_attributes default_streams per_thread_streams destroyed_streams_pass_on frees \
    freed_twice captures capture_that_forbids pools shared exported uses reaped contexts_end forked \
    early_launches; do
    expect "$case" streams $case
done
expect "out_of_memory" streams out_of_memory SIMCUDA_MEMORY=64MiB
for case in internal internal_stays_before_later_work; do
    expect "$case" streams $case SIMCUDA_MEMORY=80MiB
done

use_streams '"reuse": {"opportunistic": false, "internal_dependencies": false}'
expect "the two ways across streams switched off" streams switched_off
expect "the same stream still hits" streams same_stream
use_streams '"reuse": {"internal_dependencies": false}'
expect "destroyed_streams" streams destroyed_streams
use_streams '"caps": {"cached": "4MiB"}'
expect "capped" streams capped
use_streams '"caps": {"blocks_per_bucket": 4}'
expect "capped in number" streams capped
use_streams '"release_after_idle": "100ms"'
expect "idle" streams idle
use_streams '' '"limits": {"device_bytes": "8MiB"}'
expect "limited" streams limited

# Switched off, the driver answers; device memory has its own switch.
use_streams '"enabled": false'
for case in frees captures capture_that_forbids pools contexts_end; do
    expect "$case, switched off" without $case LD_PRELOAD="$PRELOAD" CUDAPOOL_REPORT=none \
        "CUDAPOOL_CONFIG=$settings" STREAMS_ARE_OFF=1
done
use_streams '' '"device": {"enabled": false}'
expect "same_stream, device memory switched off" streams same_stream
expect "captures, device memory switched off" streams captures
settings=

# Before cuCtxRecordEvent.
SIM=$BUILD/sim-12.4
for case in same_stream stream_synchronised default_streams \
    per_thread_streams destroyed_streams_pass_on frees captures contexts_end; do
    expect "$case, an older driver" streams $case
done
expect "internal, an older driver" streams internal SIMCUDA_MEMORY=80MiB
SIM=$BUILD/sim

report=$work/report.json
expect "a program that counts" on_pool "CUDAPOOL_REPORT=$report" -- "$programs/streams" counts
expect_numbers "the report's numbers" "$report" "totals.requests 102" "totals.hits.clean 100" \
    "totals.misses 2" "totals.frees 101" "1048576.requests 101" "1048576.hits.clean 100" \
    "3072.live_bytes 3072"
expect "the report adds up" adds_up "$report"

finish
