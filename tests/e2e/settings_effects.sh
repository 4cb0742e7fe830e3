#!/usr/bin/env bash
# Every setting that decides about memory has its effect: a program that counts for itself (effects.c) is run
# under two values of it, and sees two things. What the others do, tests/CLAIMS.md names tests for.
# shellcheck source=tests/e2e/interposition_lib.sh
. "$(dirname "$0")/interposition_lib.sh"
if [ -n "${RUN_WITH:-}" ]; then
    skip settings_effects "the command is for another processor"
    exit 0
fi
unset CUDAPOOL_FIGURES CUDAPOOL_REPORT CUDAPOOL_CONFIG
memory=1GiB

# shellcheck disable=SC2317 # called through expect
sees() { # what the program must print, options of run -- kind and steps
    local wanted=$1 options=()
    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    on_driver "SIMCUDA_MEMORY=$memory" -- "$BUILD/cudapool" run --report none "${options[@]}" -- \
        "$programs/effects" "$@" >"$work/seen" 2>&1
    grep -Eqx "asked [0-9]+ held [0-9]+ refused [0-9]+.*" "$work/seen" && grep -Eq "$wanted" "$work/seen" && return
    echo "$(tail -n 1 "$work/seen"), not $wanted"
    return 1
}

# differs SETTING VALUE WHAT VALUE WHAT [OTHER_SETTING=VALUE...] -- KIND STEP...
differs() {
    local setting=$1 values=("$2" "$4") wanted=("$3" "$5") others=() i
    shift 5
    while [ "$1" != -- ]; do
        others+=(--set "$1")
        shift
    done
    for i in 0 1; do
        expect "$setting: ${values[i]}" sees "${wanted[i]}" "${others[@]}" --set "$setting=${values[i]}" "$@"
    done
}

# --- what the kinds have in common -------------------------------------------------------------------

for kind in device stream_ordered host; do
    budget=device.growth_budget=0
    bound=$kind.reserve_floor=0
    if [ $kind = host ]; then
        budget=host.growth_budget=0
        bound=$budget
    fi
    differs $kind.enabled true "asked 1 " false "asked 2 " -- $kind take=1M free sync take=1M
    differs $kind.buckets.policy geometric "asked 1 " exact "asked 2 " -- $kind take=1000000 free sync take=1040000
    differs $kind.buckets.policy geometric "asked 2 " pow2 "asked 1 " -- $kind take=1100000 free sync take=1900000
    differs $kind.buckets.steps_per_doubling 8 "asked 2 " 1 "asked 1 " -- $kind take=1100000 free sync take=1900000
    differs $kind.buckets.smallest 512 "asked 2 " 1MiB "asked 1 " -- $kind take=1000 free sync take=900000
    differs $kind.buckets.largest 1MiB "asked 1 " 512KiB "asked 2 " -- $kind take=1M free sync take=1M
    differs $kind.caps.cached 64MiB "asked 6 " 2MiB "asked 10 " -- $kind take=1M*6 free sync take=1M*6
    differs $kind.caps.blocks_per_bucket 1024 "asked 6 " 2 "asked (9|10) " -- $kind take=1M*6 free sync take=1M*6
    # 8 blocks of 4 MiB, and then others of other sizes: what was most in use is 32 MiB.
    differs $kind.caps.reserve_ratio 100 "held 69632 " 1 "held ([0-9]{4}|[12][0-9]{4}|3[0-6][0-9]{3}) " $budget $bound \
        stream_ordered.driver_release_threshold=0 -- $kind take=4M*8 free sync take=5M*6 free sync take=6M
    # Blocks of 2, 5 and 3 MiB are freed, one after the other, where 9 MiB may be cached.
    differs $kind.evict largest_first "asked 3 held 5120 " least_recently_used "asked 4 held 10240 " \
        $kind.caps.cached=9MiB -- $kind take=2M take=5M take=3M free=1 sync nap=50 free=1 sync nap=50 free sync take=2M
    expect "$kind.release_after_idle: 1h" sees "held 16384 refused 0\$" --set $kind.release_after_idle=1h -- \
        $kind take=16M free sync back=1500
    expect "$kind.release_after_idle: 100ms" sees "held 0 refused 0 back\$" --set $kind.release_after_idle=100ms -- \
        $kind take=16M free sync back=30000
    [ $kind != host ] || continue
    differs $kind.reserve_floor 0 "held ([12][0-9]{4}|3[0-6][0-9]{3}) " 64MiB "held 63488 " $budget $kind.caps.reserve_ratio=1 \
        stream_ordered.driver_release_threshold=0 -- $kind take=4M*8 free sync take=5M*6
    differs $kind.segments.small 2MiB "asked 3 " 4MiB "asked 2 " $kind.buckets.policy=split -- $kind take=512K*8
    differs $kind.segments.large 20MiB "asked 2 " 8MiB "asked 5 " $kind.buckets.policy=split -- $kind take=4M*5
done

# --- device memory -------------------------------------------------------------------------------------

differs device.growth_budget 128MiB "asked 2 " 0 "asked 1 " -- device take=4M busy free take=4M idle
differs device.barriers true "asked 1 .*0\$" false "asked 2 |behind" device.growth_budget=0 -- \
    device take=1M busy free behind take=1M idle
differs device.free_synchronizes false "0\$" true "behind" -- device take=1M busy behind free sync
differs device.hot_bytes 0 "asked ([5-9]?[0-9]{2,}) " 4MiB "asked [1-9] " device.caps.reserve_ratio=100 -- \
    device launch=2000000 use=1M*100 idle
differs limits.device_bytes 32MiB "refused 0" 8MiB "asked [0-9]+ held 8192 refused 8" -- device take=1M*16
differs limits.device_bytes 32MiB "refused 0" 8MiB "asked [0-9]+ held 8192 refused 8" -- stream_ordered take=1M*16
expect "limits.device_bytes: pinned memory is none of it" sees "refused 0" --set limits.device_bytes=8MiB -- host take=1M*16
memory=256MiB
expect "a share is one of the device" sees "asked 10 " --set device.caps.cached=1% -- device take=1M*6 free sync take=1M*6
memory=1GiB

# --- stream-ordered memory -----------------------------------------------------------------------------

# Each way across streams by itself; another stream has looked for a block in vain before.
none="stream_ordered.reuse.opportunistic=false stream_ordered.reuse.internal_dependencies=false"
looked="take=1M busy free on=1 take=1M free idle on=0"
# shellcheck disable=SC2086 # words
{
    differs stream_ordered.reuse.opportunistic true "asked 3 " false "asked 4 " $none -- \
        stream_ordered $looked take=2M launch=1 free nap=1000 on=1 take=2M idle
    memory=80MiB
    differs stream_ordered.reuse.internal_dependencies true "refused 0" false "refused 1" $none -- \
        stream_ordered $looked take=40M busy free on=1 behind take=40M idle
    memory=1GiB
}
differs stream_ordered.driver_release_threshold 0 "0\$" 512MiB "kept\$" stream_ordered.buckets.smallest=1 \
    stream_ordered.buckets.largest=0 -- stream_ordered take=8M free sync kept

# --- pinned memory -------------------------------------------------------------------------------------

differs host.growth_budget 32MiB "asked 2 " 0 "asked 1 " -- host take=4M launch=400000 free take=4M idle
differs host.free_synchronizes false "0\$" true "behind" -- host take=1M busy behind free sync
differs host.large driver "refused 0\$" huge_pages "mapped\$" -- host take=4M mapped

# --- the files of configs --------------------------------------------------------------------------------

preset() { # name, what, kind and steps
    expect "$1: ${*:3}" sees "$2" --config "$1" -- "${@:3}"
}
sizes="take=1000000 free sync take=1040000"
wider="take=1100000 free sync take=1300000"
budget="take=20M busy free on=1 behind take=20M idle"
pinned="take=4M*30 free sync take=4M*30"
waits="take=4M busy behind free"
# shellcheck disable=SC2086 # words
{
    preset default "asked 1 " device $sizes
    preset low-memory "asked 2 " device $sizes
    preset throughput "asked 1 " device $sizes
    preset strict "asked 2 " device $sizes
    preset default "asked 2 " device $wider
    preset throughput "asked 1 " device $wider
    preset default "asked 2 held 40960 " device $budget
    preset low-memory "asked 1 held 20480 " device $budget
    preset throughput "asked 2 held 40960 " device $budget
    preset default "asked 30 " host $pinned
    preset low-memory "asked (3[1-9]|[4-6][0-9]) " host $pinned
    preset throughput "asked 30 " host $pinned
    preset strict "asked (3[1-9]|[4-6][0-9]) " host $pinned
    preset default "0\$" device $waits
    preset strict "behind\$" device $waits
    preset default "held 131072 " device take=64M*2 free sync back=1500
    preset low-memory "held 0 .*back\$" device take=64M*2 free sync back=30000
    memory=4GiB
    preset default "asked 1 " device take=300M free sync take=300M
    preset low-memory "asked 2 " device take=300M free sync take=300M
    preset default "asked 4 " device take=100M*4 free sync take=100M*4
    preset low-memory "asked 6 " device take=100M*4 free sync take=100M*4
    preset strict "asked 8 " device take=100M*4 free sync take=100M*4
}
finish
