#!/usr/bin/env bash
# How many instructions an allocation that hits and its free cost inside the preload object, on the
# simulated driver: callgrind counts twice, for N and for 2 N pairs, and the difference is shared
# out. What happens inside the driver, libc and the program is left out, and so are the samples of the
# figures' history, with the sums over streams: how many are taken is decided by the clock.
#
# usage: [BUILD=dir] instructions_per_pair.sh [LIMIT [ASYNC [PINNED [STREAMS [CROWDED [LEGACY]]]]]]
#
# exits 1 where a pair of cuMemAlloc and cuMemFree takes more than LIMIT, or one of cuMemAllocAsync
# and cuMemFreeAsync on one stream more than ASYNC, or one of cuMemHostAlloc and cuMemFreeHost more
# than PINNED, or one of cuMemAllocAsync and cuMemFreeAsync on the legacy stream more than LEGACY, or an
# allocation that the pool has nothing for, with its free, more than it may; and, which takes longer and
# is only done where it is given, on 1000 streams in turn more than STREAMS, or more than CROWDED where
# these leave more than may be kept.
set -eu
cd "$(dirname "$0")/.."

# What is done once in so many microseconds makes the same build differ by a few: 277 to 280.
limit=${1:-286}
limit_async=${2:-376}
limit_pinned=${3:-316}
limit_streams=${4:-}
limit_crowded=${5:-}
limit_legacy=${6:-760}
limit_miss=2440
limit_new_size=3640
pairs=20000
build=$(realpath "${BUILD:-build}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Instructions inside libcudapool_preload.so while the program runs that many pairs. In callgrind's
# file, ob= names the object that the following functions (fn=) belong to, cob= and cfn= a called
# one, calls= is followed by the call's inclusive cost, which is not the caller's own.
count() { # pairs, and what else tests/bench/hit_pair.c says
    SIMCUDA_MEMORY=$memory LD_LIBRARY_PATH=$build/sim LD_PRELOAD=$build/libcudapool_preload.so CUDAPOOL_REPORT=none \
        valgrind --quiet --tool=callgrind --callgrind-out-file="$work/$1" --compress-strings=no \
        --compress-pos=no "$build/tests/bench/${program:-hit_pair}" "$@" >"$work/$1.out" 2>&1 || {
        cat "$work/$1.out" >&2
        return 1
    }
    awk '/^ob=/ { ours = /libcudapool_preload\.so/ }
         /^fn=/ { sample = /^fn=(figures_sample_now|figures_sum|figures_next|history_add|copy_sample|stream_sum)$/ }
         /^calls=/ { skip = 1; next }
         /^[0-9+*-]/ { if (!skip && ours && !sample) sum += $2; skip = 0 }
         END { printf "%d\n", sum }' "$work/$1"
}

# A few calls are made once in so many microseconds, whatever the program does meanwhile: on a busy
# machine there are more of them, so that it is tried again.
guard() { # name limit, and what else hit_pair.c says
    for _ in 1 2 3; do
        ! measure "$@" || return 0
    done
    return 1
}

measure() { # likewise
    local name=$1 limit=$2 once twice
    shift 2
    once=$(count $pairs "$@")
    twice=$(count $((2 * pairs)) "$@")
    awk -v d=$((twice - once)) -v n=$pairs -v limit="$limit" -v name="$name" 'BEGIN {
        per_pair = d / n
        printf "%.1f instructions per %s that hits (limit %d)\n", per_pair, name, limit
        exit !(per_pair > 0 && per_pair <= limit) }'
}

failed=0
memory=2GiB
guard pair "$limit" || failed=1
guard "stream-ordered pair" "$limit_async" async || failed=1
guard "pinned pair" "$limit_pinned" pinned || failed=1
guard "stream-ordered pair on the legacy stream" "$limit_legacy" async legacy || failed=1
# Of misses: of a block of a size that is in use, and of one of a new size, with its free.
guard_misses() { # name limit count [sizes]
    local name=$1 limit=$2 misses=$3 program=miss once twice
    shift 3
    once=$(count "$misses" "$@")
    twice=$(count $((2 * misses)) "$@")
    awk -v d=$((twice - once)) -v n="$misses" -v limit="$limit" -v name="$name" 'BEGIN {
        printf "%.1f instructions per %s (limit %d)\n", d / n, name, limit
        exit !(d > 0 && d / n <= limit) }'
}
guard_misses "miss and its free" "$limit_miss" 200 || failed=1
guard_misses "miss of a new size and its free" "$limit_new_size" 40 sizes || failed=1
if [ -n "$limit_streams" ]; then
    # Until each stream has what it needs, and nobody looks for events any more.
    pairs=150000
    guard "stream-ordered pair on 1000 streams" "$limit_streams" async 1000 || failed=1
fi
if [ -n "$limit_crowded" ]; then
    pairs=40000
    memory=20GiB
    guard "stream-ordered pair on 1000 streams that crowd each other out" "$limit_crowded" crowded 1000 || failed=1
fi
exit $failed
