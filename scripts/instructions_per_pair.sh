#!/usr/bin/env bash
# How many instructions an allocation that hits and its free cost inside the preload object, on the
# simulated driver: callgrind counts twice, for N and for 2 N pairs, and the difference is shared
# out. What happens inside the driver, libc and the program is left out, and so are the samples of the
# figures' history: how many are taken is decided by the clock.
#
# usage: [BUILD=dir] instructions_per_pair.sh [LIMIT [ASYNC [PINNED [STREAMS]]]]
#
# exits 1 where a pair of cuMemAlloc and cuMemFree takes more than LIMIT, or one of cuMemAllocAsync
# and cuMemFreeAsync on one stream more than ASYNC, or one of cuMemHostAlloc and cuMemFreeHost more
# than PINNED; and, which takes longer and is only done where it is given, on 1000 streams in turn more
# than STREAMS.
set -eu
cd "$(dirname "$0")/.."

# What is done once in so many microseconds makes the same build differ by a few: 282 to 285.
limit=${1:-290}
limit_async=${2:-450}
limit_pinned=${3:-700}
limit_streams=${4:-}
pairs=20000
build=$(realpath "${BUILD:-build}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Instructions inside libcudapool_preload.so while the program runs that many pairs. In callgrind's
# file, ob= names the object that the following functions (fn=) belong to, cob= and cfn= a called
# one, calls= is followed by the call's inclusive cost, which is not the caller's own.
count() { # pairs [pinned | async [streams]]
    SIMCUDA_MEMORY=2GiB LD_LIBRARY_PATH=$build/sim LD_PRELOAD=$build/libcudapool_preload.so CUDAPOOL_REPORT=none \
        valgrind --quiet --tool=callgrind --callgrind-out-file="$work/$1" --compress-strings=no \
        --compress-pos=no "$build/tests/bench/hit_pair" "$@" >"$work/$1.out" 2>&1 || {
        cat "$work/$1.out" >&2
        return 1
    }
    awk '/^ob=/ { ours = /libcudapool_preload\.so/ }
         /^fn=/ { sample = /^fn=(figures_sample_now|figures_sum|figures_next|history_add|copy_sample)$/ }
         /^calls=/ { skip = 1; next }
         /^[0-9+*-]/ { if (!skip && ours && !sample) sum += $2; skip = 0 }
         END { printf "%d\n", sum }' "$work/$1"
}

# A few calls are made once in so many microseconds, whatever the program does meanwhile: on a busy
# machine there are more of them, so that it is tried again.
guard() { # name limit [pinned | async [streams]]
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
guard pair "$limit" || failed=1
guard "stream-ordered pair" "$limit_async" async || failed=1
guard "pinned pair" "$limit_pinned" pinned || failed=1
if [ -n "$limit_streams" ]; then
    # Until each stream has what it needs, and nobody looks for events any more.
    pairs=150000
    guard "stream-ordered pair on 1000 streams" "$limit_streams" async 1000 || failed=1
fi
exit $failed
