#!/usr/bin/env bash
# Programs whose clock stands still, goes back or runs a thousand times too fast: they wait as long as
# they must, and no longer.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

if [ -n "$SANITIZE" ]; then
    skip clocks "a sanitizer stands between the clock and who reads it: the driver would get the false one"
    exit 0
fi

# More is freed than may be pending, and what is idle goes back soon.
use_device '"growth_budget": "32 MiB", "reserve_floor": 0, "release_after_idle": "1 s"'
for pace in stands back fast; do
    for case in fences out_of_memory idle; do
        expect "$case, the clock: $pace" case_on_pool clocks $case \
            "LD_PRELOAD=$first_of_all$programs/libclocks.so:$ours" FALSE_CLOCK=$pace SIMCUDA_MEMORY=512MiB
    done
done
finish
