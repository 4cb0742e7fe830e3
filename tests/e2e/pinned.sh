#!/usr/bin/env bash
# Pinned host memory as programs use it: what is counted, memory that is short, idle blocks, a control
# group that is nearly full, and what else a process may do meanwhile; by the driver's own call, and by
# hand ("large": "huge_pages").
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"
seconds=60
pinned=$programs/pinned
export CUDAPOOL_REPORT=none

use_host() { # members of host; the name is $settings
    settings=$work/settings-$((RANDOM)).json
    printf '{"version": 1, "host": {%s}}\n' "$1" >"$settings"
}
ends_with() { # status, command
    local wanted=$1 status
    shift
    "$@"
    status=$?
    [ "$status" -eq "$wanted" ] || { echo "status $status, not $wanted"; return 1; }
}
pin() { # case [variable=value]
    on_pool "CUDAPOOL_CONFIG=$settings" ${2:+"$2"} -- "$pinned" "$1"
}

# --- what is counted ---------------------------------------------------------------------------------

report=$work/report.json
settings=
expect "a program that counts" on_pool "CUDAPOOL_REPORT=$report" -- "$pinned" counts
expect "its report has a kind for that" grep -q '"kind": "host"' "$report"
expect_numbers "with its numbers" "$report" "host.totals.requests 101" "host.totals.misses 2" \
    "host.totals.frees 100" "host.totals.live_bytes 3145728" "host.65536.requests 100" \
    "host.65536.misses 1" "host.3145728.live_bytes 3145728"
expect "which add up" adds_up "$report"
if [ -z "${RUN_WITH:-}" ]; then
    command_says() { # expression, arguments
        "$BUILD/cudapool" "${@:2}" >"$work/said" 2>&1 || return 1
        grep -Eq "$1" "$work/said" || { cat "$work/said"; return 1; }
    }
    expect "the table has the kind" command_says '^ *device 0.*host|pinned' report "$report"
    expect "CSV has it" command_says ',host,65536,' report --format csv "$report"
    expect "a page has it" command_says 'host' report --format html "$report"
fi

# --- with both ways of making large blocks ---------------------------------------------------------

for large in driver huge_pages; do
    # All that is freed is cached.
    keep="\"large\": \"$large\", \"caps\": {\"cached\": \"8GiB\", \"reserve_ratio\": 100}"
    use_host "$keep"
    for case in contents forks spawns_under_load is_interrupted threads_end freed_elsewhere is_cancelled; do
        [ $large != driver ] || expect "$case, without the pool" on_driver -- "$pinned" $case
        expect "$case, $large" pin $case
    done
    for case in exits_under_load executes_under_load exits_in_a_handler; do
        for round in 1 2 3; do
            expect "$case, $large, $round" ends_with 7 pin $case
        done
    done
    if [ -z "$SANITIZE${RUN_WITH:-}" ]; then
        expect "sandboxed, $large" pin sandboxed
        expect "sandboxed_strictly, $large" pin sandboxed_strictly
    fi
    for case in makes_room makes_room_to_register makes_room_for_threads; do
        expect "$case, $large" pin $case SIMCUDA_HOST_MEMORY=64MiB
    done
    use_host "\"large\": \"$large\", \"buckets\": {\"largest\": 0}"
    expect "freed_elsewhere, nothing kept, $large" pin freed_elsewhere
    use_host "$keep, \"release_after_idle\": \"1s\""
    expect "idle, $large" pin idle
done

# --- locks that the GPU's work needs, and a GPU that always has some ----------------------------------

locks() { # case [variable=value]
    on_pool "CUDAPOOL_CONFIG=$settings" ${2:+"$2"} -- "$programs/pinned_locks" "$1"
}
settings=
for case in allocates_beside_host_functions frees_a_large_one_with_a_lock; do
    expect "$case, without the pool" on_driver -- "$programs/pinned_locks" $case
    expect "$case" locks $case
done
use_host '"caps": {"cached": "8MiB"}'
expect "frees_with_a_lock" locks frees_with_a_lock
settings=
expect "makes_room_beside_work" locks makes_room_beside_work SIMCUDA_HOST_MEMORY=64MiB

# --- a control group that is nearly full -------------------------------------------------------------

# The process's own group has a new one below it, with a limit; of version 1, or of version 2 where that
# may have groups with memory.
group_limit=$((256 << 20))
make_group() {
    local own base
    own=$(sed -n 's/^[0-9]*:\([^:]*,\)\{0,1\}memory\(,[^:]*\)\{0,1\}://p' /proc/self/cgroup | head -n 1)
    for base in "/sys/fs/cgroup/memory$own" /sys/fs/cgroup/memory; do
        group=$base/cudapool-test-$$
        [ -e "$base/memory.limit_in_bytes" ] || continue
        mkdir "$group" 2>/dev/null || continue
        limit_file=$group/memory.limit_in_bytes
        { echo $group_limit >"$limit_file"; } 2>/dev/null && return
        rmdir "$group"
    done
    own=$(sed -n 's/^0:://p' /proc/self/cgroup)
    for base in "/sys/fs/cgroup$own" /sys/fs/cgroup; do
        group=$base/cudapool-test-$$
        grep -qw memory "$base/cgroup.subtree_control" 2>/dev/null || continue
        mkdir "$group" 2>/dev/null || continue
        limit_file=$group/memory.max
        { echo $group_limit >"$limit_file" && echo 0 >"$group/memory.swap.max"; } 2>/dev/null && return
        rmdir "$group"
    done
    group=
    return 1
}
in_group() { # case
    (
        echo $BASHPID >"$group/cgroup.procs" || exit 77
        pin "$1"
    )
}

skipped=
if [ -n "$SANITIZE${RUN_WITH:-}" ] || [ "$(id -u)" -ne 0 ] || ! make_group; then
    skipped="no cgroup can be made"
else
    trap 'rm -rf "$work"; rmdir "$group"' EXIT
    use_host '"caps": {"cached": "100%", "reserve_ratio": 100}, "growth_budget": "64MiB"'
    { in_group grows_beside_live; } >"$work/output" 2>&1
    status=$?
    [ $status -eq 137 ] || skipped="no cgroup can be made that binds (status $status)"
fi
if [ -n "$skipped" ]; then
    skip "a control group that is nearly full" "$skipped"
else
    ok "a control group ends who has more than it may have"
    expect "but not for what is cached" in_group grows_beside_cached
    use_host '"caps": {"cached": "100%", "reserve_ratio": 100}, "growth_budget": "64MiB", "large": "huge_pages"'
    expect "nor for what was made by hand" in_group grows_beside_cached
fi
finish
