#!/usr/bin/env bash
# The pool as a user sees it: real processes under the preload on the simulated driver, under every
# setting; what they are told, what the report says, what is held and given back.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

# A case of a program, under the settings in use.
memory() { # case
    case_on_pool pool_memory "$1"
}

expect_memory() { # case [name]
    expect "${2:-$1}" memory "$1"
}

# --- programs that bring their own ----------------------------------------------------------------

if [ -z "$SANITIZE" ]; then
    expect "a program with a malloc of its own, and no aligned_alloc" \
        on_pool CUDAPOOL_REPORT=none -- "$programs/own_malloc"
fi

# --- settings that cannot be used ----------------------------------------------------------------

without='; the program runs without the pool'
wrong() { # name, what the line says, settings
    printf '%s\n' "$3" >"$work/wrong.json"
    on_pool "CUDAPOOL_CONFIG=$work/wrong.json" -- "$programs/pool_memory" free_waits \
        >"$work/output" 2>"$work/stderr"
    local status=$?
    [ $status -eq 0 ] || fail "$1" "exit status $status: $(head -n 1 "$work/output")"
    expect_lines "$1" "$work/stderr" "cudapool: .*$work/wrong\.json.*$2.*$without"
}
wrong "a syntax error names its line" 'line 2, column' '{"version": 1,
"device": }'
wrong "an unknown key" 'growth_budged.*growth_budget' \
    '{"version": 1, "device": {"growth_budged": 1}}'
wrong "a wrong type" 'device.enabled.*found' '{"version": 1, "device": {"enabled": "yes"}}'
wrong "a value out of range" 'device.caps.reserve_ratio.*0.5' \
    '{"version": 1, "device": {"caps": {"reserve_ratio": 0.5}}}'
wrong "a size that is none" 'growth_budget.*12XB' \
    '{"version": 1, "device": {"growth_budget": "12XB"}}'
wrong "another version" 'version.*99' '{"version": 99}'
# The program's own exit status stands, with and without the pool.
printf '{"version": 99}\n' >"$work/wrong.json"
for file in "$work/wrong.json" ''; do
    on_pool "CUDAPOOL_CONFIG=$file" CUDAPOOL_REPORT=none -- "$programs/pool_memory" nonesuch \
        >/dev/null 2>&1
    expect "exit status unchanged, ${file:+wrong }settings" test $? -eq 1
done

# --- the report ----------------------------------------------------------------------------------

report=$work/report.json
counts() { # variable=value ...
    on_pool "$@" -- "$programs/pool_memory" counts
}
shows_buckets() {
    "$BUILD/cudapool" report "$report" | grep -E '^ *2 MiB .* 19 '
}
# With no thread beside it that asks, too, what is over.
expect "a program that counts" counts "CUDAPOOL_REPORT=$report" \
    'CUDAPOOL_CONFIG={"version": 1, "neighbours": {"enabled": false}}'
expect_numbers "the report's numbers" "$report" "totals.requests 23" "totals.hits.clean 2" \
    "totals.hits.queried 1" "totals.hits.barrier 0" "totals.hits.waited 0" "totals.misses 19" "totals.failures.memory 1" \
    "totals.frees 18" "totals.live_bytes $((1024 + 3 * 2097152))" \
    "totals.requested_bytes $((1900 + 19 * 2097152 - 1 + 600 * 1048576 + 1099511627776))" \
    "1024.requests 2" "1024.hits.clean 1" "1024.frees 1" "1024.live_bytes 1024" \
    "1024.requested_bytes 1900" "1024.rounded_bytes 2048" "2097152.requests 19" \
    "2097152.misses 17" "2097152.hits.queried 1" "2097152.frees 16" \
    "2097152.cached_bytes $((14 * 2097152))" "2097152.peak.live_bytes $((16 * 2097152))" \
    "2097152.peak.reserved_bytes $((17 * 2097152))" "0.requests 2" "0.misses 1" "0.failures.memory 1" "0.frees 1"
expect "they add up" adds_up "$report"
expect "and shows them" shows_buckets

expect "a report with %p, %h and %r" counts "CUDAPOOL_REPORT=$work/r-%p-%h-%r.json" SLURM_PROCID=7
expect "is where the names say" adds_up "$work"/r-[0-9]*-"$(hostname)"-7.json
for where in stderr none; do
    counts "CUDAPOOL_REPORT=$where" >"$work/stdout" 2>"$work/stderr"
    expect "CUDAPOOL_REPORT=$where, stdout untouched" test ! -s "$work/stdout"
done
expect "none is nothing" test ! -s "$work/stderr"

use_device '"growth_budget": 0'
expect "hits that wait" on_pool "CUDAPOOL_CONFIG=$settings" "CUDAPOOL_REPORT=$report" -- \
    "$programs/pool_memory" barrier_and_wait
expect_numbers "are counted" "$report" "totals.requests 3" "totals.hits.barrier 1" \
    "totals.hits.waited 1" "totals.misses 1" "barriers 1"
expect "and add up" adds_up "$report"

# --- limit, caps, eviction, reserve --------------------------------------------------------------

use_device '' '"limits": {"device_bytes": "8MiB"}'
expect_memory limit

# What a scheduler says of a container is the same.
limited() { # variable=value ...
    on_pool "CUDAPOOL_REPORT=$report" "$@" -- "$programs/pool_memory" limit
}
for variable in GPU_MEMORY_LIMIT=8388608 CUDA_DEVICE_MEMORY_LIMIT=8m CUDA_DEVICE_MEMORY_LIMIT_0=8192K; do
    expect "limit, $variable" limited "$variable"
    expect "the report says whose it is" grep -q "\"device_from\": \"${variable%=*}\"" "$report"
done
expect "the table, too" grep -qE '^  limits: 8 MiB for the process \(CUDA_DEVICE_MEMORY_LIMIT_0\), 8 MiB for all of the group container-[0-9]+ \(CUDA_DEVICE_MEMORY_LIMIT_0\)$' \
    <("$BUILD/cudapool" report "$report")
if [ -w /dev/shm ]; then
    expect "the board is joined, and the report knows" grep -q '"board": "joined"' "$report"
fi
use_device '' '"limits": {"device_bytes": "8MiB", "group": "tests"}'
expect "settings come before it" on_pool "CUDAPOOL_CONFIG=$settings" CUDAPOOL_REPORT=none GPU_MEMORY_LIMIT=2m -- \
    "$programs/pool_memory" limit
expect "another device's limit is none of this one's" \
    on_pool CUDAPOOL_REPORT=none CUDA_DEVICE_MEMORY_LIMIT_1=2m -- "$programs/pool_memory" counts
on_pool CUDAPOOL_REPORT=none GPU_MEMORY_LIMIT=12 CUDA_DEVICE_MEMORY_LIMIT_0=lots -- "$programs/pool_memory" counts \
    >"$work/output" 2>"$work/stderr"
expect "a limit that cannot be read is none" test $? -eq 0
expect_lines "and one line says so" "$work/stderr" \
    'cudapool: GPU_MEMORY_LIMIT: found "12", allowed are at least 1 MiB as bytes, or a number with k, m, g or t; the program runs without this limit'

use_device '"caps": {"cached": "4MiB"}'
expect_memory cap_bytes
use_device '"caps": {"blocks_per_bucket": 2}'
expect_memory cap_blocks
use_device '"evict": "largest_first", "caps": {"cached": "10MiB"}'
expect_memory evict_largest
use_device '"evict": "least_recently_used", "caps": {"cached": "10MiB"}'
expect_memory evict_oldest
use_device '"release_after_idle": "100ms"'
expect_memory idle
settings=
expect_memory never_idle
use_device '"buckets": {"largest": "1MiB"}'
expect_memory not_kept
exact='"buckets": {"policy": "exact"}'
use_device "$exact, \"growth_budget\": 0, \"caps\": {\"reserve_ratio\": 1.0}"
expect_memory peak_without_budget
use_device "$exact"
expect_memory peak_by_default

# --- waiting -------------------------------------------------------------------------------------

settings=
expect "free memory can be had, without the pool" on_driver SIMCUDA_MEMORY=16GiB -- \
    "$programs/pool_memory" free_memory_can_be_had
expect "free memory can be had" on_pool CUDAPOOL_REPORT=none SIMCUDA_MEMORY=16GiB -- \
    "$programs/pool_memory" free_memory_can_be_had
expect "without the pool a free waits" on_driver -- "$programs/pool_memory" free_waits
expect_memory free_does_not_wait
use_device '"free_synchronizes": true'
expect_memory free_waits "free_synchronizes"
use_device '"enabled": false'
expect_memory free_waits "not enabled: the plain free"

# --- buckets, pitch, cuMemFreeAsync --------------------------------------------------------------

settings=
expect_memory buckets_geometric
use_device '"buckets": {"steps_per_doubling": 2, "smallest": "4KiB"}'
expect_memory buckets_coarse
use_device '"buckets": {"policy": "pow2"}'
expect_memory buckets_pow2
use_device "$exact"
expect_memory buckets_exact
settings=
for case in beside_a_huge_request pitch pitch_errors free_async destroyed_in_vain; do
    expect "$case, without the pool" on_driver -- "$programs/pool_memory" $case
    expect_memory $case
    expect "$case, budget 0" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$here/configs/strict.json" \
        -- "$programs/pool_memory" $case
done
expect_memory free_async_does_not_wait

# --- pointers ------------------------------------------------------------------------------------

for case in address_range attribute attributes others wrong_frees buffer_ids buffer_ids_and_frees \
    one_call_each frees_without_a_context sharing sharing_freed; do
    expect "pointers: $case, without the pool" on_driver -- "$programs/pool_pointers" $case
    expect "pointers: $case" on_pool CUDAPOOL_REPORT=none -- "$programs/pool_pointers" $case
done
use_device '"growth_budget": 0'
expect "a barrier's block is shared when it is over" on_pool CUDAPOOL_REPORT=none \
    "CUDAPOOL_CONFIG=$settings" -- "$programs/pool_pointers" sharing_behind_barrier

# --- out of memory -------------------------------------------------------------------------------
# Memory full of cached blocks, for every call that takes some; then, for those that may take some
# on a real device too, a driver that is out of memory once, and one that always is.

room() { # full|faults call [variable=value]
    on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" SIMCUDA_MEMORY=96MiB SIMCUDA_DEVICES=2 \
        ${3:+"$3"} -- "$programs/pool_room" "$1" "$2" \
        "$here/tests/kernels.ptx" >"$work/output" 2>&1
}
answers() { # name, expected status, status
    if [ "$3" -eq "$2" ]; then
        ok "$1"
    else
        fail "$1" "status $3: $(tail -n 1 "$work/output")"
    fi
}
use_device '"caps": {"cached": "100%", "reserve_ratio": 100}'
for call in $(on_driver -- "$programs/pool_room" list); do
    case $call in
    # the simulated driver has only the name
    cuLaunch | cuLaunchGrid* | *MultiDevice | cuGL* | cuIpcOpen* | cuGraphics* | *External* | \
        *UnifiedFunction) then=3 ;;
    *)
        then=0
        room full "$call"
        answers "memory full of cached blocks: $call" 0 $?
        ;;
    esac
    first=1
    [ "$call" != cuMemAlloc_v2 ] || first=2 # the block that is cached comes first
    asked=$call
    case $call in
    cuMemAllocAsync* | cuMemAllocFromPoolAsync*) asked=cuMemAllocFromPoolAsync ;; # serves them all
    esac
    room faults "$call" "SIMCUDA_FAULTS=$asked=CUDA_ERROR_OUT_OF_MEMORY@$first"
    answers "out of memory once: $call" $then $?
    room faults "$call" "SIMCUDA_FAULTS=$asked=CUDA_ERROR_OUT_OF_MEMORY@$first+"
    answers "out of memory for good: $call" 2 $?
done

# --- managed memory, which never says that there is no room ----------------------------------------

managed() { # case
    on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$settings" SIMCUDA_MEMORY=1GiB -- \
        "$programs/pool_managed" "$1"
}
use_device '"caps": {"cached": "100%", "reserve_ratio": 100}, "growth_budget": "8MiB"'
for case in room_is_made room_is_there room_for_many more_than_there_is pending_is_left \
    pending_that_is_over stream_ordered_too freed_later \
    freed_later_in_a_streams_order ended_context; do
    [ $case = pending_is_left ] || expect "managed: $case, without the pool" on_driver \
        SIMCUDA_MEMORY=1GiB -- "$programs/pool_managed" $case
    expect "managed: $case" managed $case
done

# --- contexts, devices, captures -----------------------------------------------------------------

in_contexts() { # case [settings]
    on_pool CUDAPOOL_REPORT=none SIMCUDA_DEVICES=2 "CUDAPOOL_CONFIG=${2:-}" -- \
        "$programs/pool_contexts" "$1"
}
cases="destroyed primary_released primary_reset freed_elsewhere copied_by_another two_devices threads
    captures captures_that_break captures_over_pending destroyed_beside_another
    freed_in_a_destroyed_one copied_by_another_at_the_end copied_by_another_at_the_last_release
    copied_by_another_at_the_end_in_a_capture released_while_it_works"
use_device '"growth_budget": 0'
for case in $cases green_contexts; do
    expect "$case, without the pool" on_driver SIMCUDA_DEVICES=2 -- "$programs/pool_contexts" "$case"
    expect "$case" in_contexts "$case"
    expect "$case, budget 0" in_contexts "$case" "$settings"
done
use_device '"growth_budget": 0, "caps": {"cached": 0, "reserve_ratio": 1.0}'
expect "behind_the_programs_barrier" in_contexts behind_the_programs_barrier "$settings"

# --- older drivers -------------------------------------------------------------------------------
# Before cuCtxRecordEvent a free of the pool synchronises now and then; the rest is as ever.

for driver in sim-12.4 sim-old; do
    SIM=$BUILD/$driver
    settings=
    for case in never_idle buckets_geometric pitch pitch_errors; do
        expect_memory $case "$case, $driver"
    done
    use_device '' '"limits": {"device_bytes": "8MiB"}'
    expect_memory limit "limit, $driver"
    use_device '"caps": {"cached": "4MiB"}'
    expect_memory cap_bytes "cap_bytes, $driver"
    use_device "$exact, \"growth_budget\": 0, \"caps\": {\"reserve_ratio\": 1.0}"
    # Before cuMemFreeAsync nothing can be given back in an allocation.
    [ $driver = sim-old ] || expect_memory peak_without_budget "peak_without_budget, $driver"
    for case in address_range attribute attributes wrong_frees; do
        expect "pointers: $case, $driver" on_pool CUDAPOOL_REPORT=none -- \
            "$programs/pool_pointers" $case
    done
    for case in $cases; do
        expect "$case, $driver" in_contexts "$case"
        expect "$case, budget 0, $driver" in_contexts "$case" "$settings"
    done
done
finish
