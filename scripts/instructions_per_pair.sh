#!/usr/bin/env bash
# How many instructions an allocation that hits and its free cost inside the preload object, on the
# simulated driver: callgrind counts twice, for N and for 2 N pairs, and the difference is shared
# out. What happens inside the driver, libc, the program and the pool's own thread is left out, and so is
# the program's wait until that thread has left the driver, which is as long as the machine is busy. The
# clock is the driver's own (SIMCUDA_STEPPED), so that the same build gives the same count each time.
#
# usage: [BUILD=dir] instructions_per_pair.sh [LIMIT [ASYNC [PINNED [STREAMS [CROWDED [LEGACY]]]]]]
#
# exits 1 where a pair of cuMemAlloc and cuMemFree takes more than LIMIT, or one of cuMemAllocAsync
# and cuMemFreeAsync on one stream more than ASYNC, or one of cuMemHostAlloc and cuMemFreeHost more
# than PINNED, or one of cuMemAllocAsync and cuMemFreeAsync on the legacy stream more than LEGACY, or an
# allocation that the pool has nothing for, with its free, more than it may; or cuMemGetInfo more than it
# may, with 1000 blocks and with 20000; or the start of a program that does nothing, with the preload or by
# `cudapool run`; and, which takes longer and
# is only done where it is given, on 1000 streams in turn more than STREAMS, or more than CROWDED where
# these leave more than may be kept.
set -eu
cd "$(dirname "$0")/.."

limit=${1:-302}
limit_async=${2:-374}
limit_pinned=${3:-324}
limit_streams=${4:-}
limit_crowded=${5:-}
limit_legacy=${6:-740}
limit_miss=2512
limit_new_size=3680
limit_info=14300
limit_info_on_board=30000
limit_run=850000
limit_preload=60000
pairs=20000
build=$(realpath "${BUILD:-build}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Instructions of the first thread inside libcudapool_preload.so while the program runs that many pairs. In
# callgrind's file, ob= names the object that the following functions belong to, cob= a called one, and
# calls= is followed by the call's inclusive cost, which is not the caller's own.
count() { # program, pairs, and what else it is told; only inside the function $inside, if one is named
    local program=$1
    shift
    SIMCUDA_STEPPED=1 SIMCUDA_MEMORY=$memory LD_LIBRARY_PATH=$build/sim \
        LD_PRELOAD=$build/libcudapool_preload.so CUDAPOOL_REPORT=none \
        valgrind --quiet --tool=callgrind --separate-threads=yes --callgrind-out-file="$work/$1" \
        --compress-strings=no --compress-pos=no ${inside:+--toggle-collect="$inside"} "$build/tests/bench/$program" "$@" >"$work/$1.out" 2>&1 || {
        cat "$work/$1.out" >&2
        return 1
    }
    awk '/^ob=/ { ours = /libcudapool_preload\.so/ }
         /^fn=/ { waits = /^fn=(epoch_await_others|is_in_the_driver)$/ }
         /^calls=/ { skip = 1; next }
         /^[0-9+*-]/ { if (!skip && ours && !waits) sum += $2; skip = 0 }
         END { printf "%d\n", sum }' "$work/$1-01"
}

judge() { # name limit instructions, of so many calls
    awk -v name="$1" -v limit="$2" -v sum="$3" -v n="$4" 'BEGIN {
        good = (sum > 0 && sum / n <= limit)
        printf "%s %s: %.1f instructions (limit %d)\n", good ? "ok" : "FAIL", name, sum / n, limit
        exit !good }' || failed=1
}

guard() { # name limit program count, and what else the program is told
    local name=$1 limit=$2 program=$3 n=$4 once twice
    shift 4
    once=$(count "$program" "$n" "$@")
    twice=$(count "$program" $((2 * n)) "$@")
    judge "$name" "$limit" $((twice - once)) "$n"
}

# Counts the calls of one run, inside that function. Two runs would differ by chance: the pool's own thread
# collects blocks by the real clock, and a call looks at those that it has not collected yet.
guard_calls() { # name limit function program count, and what else the program is told
    local name=$1 limit=$2 inside=$3 program=$4 n=$5 all
    shift 5
    all=$(count "$program" "$n" "$@")
    judge "$name" "$limit" "$all" "$n"
}

# Counts what the command takes, and what the program it starts takes more than by itself.
guard_start() { # name limit command...
    local name=$1 limit=$2 all plain
    shift 2
    all=$(instructions "$@" /bin/true)
    plain=$(instructions /bin/true)
    judge "$name" "$limit" $((all - plain)) 1
}

instructions() { # command, of all its processes together
    valgrind --tool=callgrind --trace-children=yes --callgrind-out-file=/dev/null "$@" 2>&1 |
        sed -n 's/^==[0-9]*== Collected : //p' | awk '{ sum += $1 } END { printf "%d\n", sum }'
}

failed=0
inside=
memory=2GiB
# Chance is in two things: the pool's own thread queries fences by the real clock, and a look at the board costs
# more where more processes have ever been on it. So hits and cuMemGetInfo are counted without either.
alone='{"version": 1, "neighbours": {"enabled": false}}'
CUDAPOOL_CONFIG=$alone guard "pair that hits" "$limit" hit_pair $pairs
CUDAPOOL_CONFIG=$alone guard "stream-ordered pair that hits" "$limit_async" hit_pair $pairs async
CUDAPOOL_CONFIG=$alone guard "pinned pair that hits" "$limit_pinned" hit_pair $pairs pinned
CUDAPOOL_CONFIG=$alone guard "stream-ordered pair on the legacy stream that hits" "$limit_legacy" hit_pair $pairs async legacy
guard "miss and its free" $limit_miss miss 200
guard "miss of a new size and its free" $limit_new_size miss 40 sizes
CUDAPOOL_CONFIG=$alone guard_calls "cuMemGetInfo beside 1000 blocks" $limit_info cuMemGetInfo_v2 memory_info 2000 1000
CUDAPOOL_CONFIG=$alone guard_calls "cuMemGetInfo beside 20000 blocks" $limit_info cuMemGetInfo_v2 memory_info 2000 20000
guard_calls "cuMemGetInfo, with a board of 512 processes at most" $limit_info_on_board cuMemGetInfo_v2 memory_info 2000 1000
guard_start "cudapool run of a program that does nothing" $limit_run "$build/cudapool" run
guard_start "a program that does nothing, with the preload" $limit_preload \
    env LD_PRELOAD="$build/libcudapool_preload.so" CUDAPOOL_REPORT=none
if [ -n "$limit_streams" ]; then
    # Until each stream has what it needs, and nobody looks for events any more.
    guard "stream-ordered pair on 1000 streams" "$limit_streams" hit_pair 150000 async 1000
fi
if [ -n "$limit_crowded" ]; then
    memory=20GiB
    guard "stream-ordered pair on 1000 streams that crowd each other out" "$limit_crowded" hit_pair 40000 crowded 1000
fi
exit $failed
