#!/usr/bin/env bash
# A few random programs, always the same: threads that take turns, compared with the run without
# the pool; threads that run freely; both where captures may allocate; processes that share a device, without the pool, too, where
# the rule that they are held to must hold; and processes of a group, which share its limit. `make random` runs many.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

if [ -n "${RUN_WITH:-}" ]; then
    skip random "the programs start themselves again, which an emulator does not follow"
    exit 0
fi

random=$BUILD/tests/random/random
count=$([ -n "$SANITIZE" ] && echo 5 || echo 20)
expect "threads that take turns" "$random" seeds=1-20 programs="$count" jobs=2
expect "threads that run freely" "$random" free seeds=1-20 programs="$count" jobs=2
expect "captures that allocate, in turns" "$random" graphs seeds=1-40 programs="$count" jobs=2
expect "captures that allocate, freely" "$random" free graphs seeds=1-20 programs="$count" jobs=2
expect "processes that share a device, without the pool" "${random%random}neighbours" plain seeds=1-2 \
    seconds=1
expect "processes that share a device" "${random%random}neighbours" seeds=1-5 seconds=1.5
expect "processes of a group" "${random%random}neighbours" group seeds=1-5 seconds=1.5
[ -n "$SANITIZE" ] || expect "64 processes of a group" "${random%random}neighbours" group processes=64 seeds=6-7 seconds=1.5
finish
