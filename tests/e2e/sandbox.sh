#!/usr/bin/env bash
# Programs that enter a sandbox after the pool has started, in which an open ends the process: they end
# as without the pool, and so does one that has closed all descriptors besides.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

if [ -n "$SANITIZE" ] || [ -n "${RUN_WITH:-}" ]; then
    skip "sandboxes" "the sanitizer, or the emulator, opens files itself"
    exit 0
fi
ends_with_7() { # variable=value ... -- program argument
    "$@"
    [ $? -eq 7 ]
}
for case in pinned pinned_before device in_stream_order; do
    expect "$case, without the pool" ends_with_7 on_driver -- "$programs/sandbox" $case
    expect "$case" ends_with_7 on_pool -- "$programs/sandbox" $case
    expect "$case, its descriptors closed" ends_with_7 on_pool CLOSE_ALL=1 -- "$programs/sandbox" $case
    expect "$case, a report into a file" ends_with_7 on_pool "CUDAPOOL_REPORT=$work/report" -- \
        "$programs/sandbox" $case
    cp "$work/output" "$work/said"
    expect "is on stderr" grep -q 'requests, ' "$work/said"
done

# Another process caches on the device, and is looked at where memory is short. (Each has a device of its
# own of the same name: the simulated driver opens a file for one that is shared.)
on_pool -- "$programs/neighbours" take=100 free touch="$work/ready" sleep=5000 >"$work/neighbour" 2>&1 &
on_pool -- "$programs/neighbours" await="$work/ready" >/dev/null 2>&1
expect "device, beside a neighbour" ends_with_7 on_pool -- "$programs/sandbox" device
wait
finish
