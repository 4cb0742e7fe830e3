#!/usr/bin/env bash
# The pool's own thread: idle memory goes back by the clock, nothing wakes where nothing is cached, and
# the program may do whatever it likes meanwhile.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"
seconds=60
export CUDAPOOL_REPORT=none

ends_with() { # status, command
    local wanted=$1 status
    shift
    "$@"
    status=$?
    [ "$status" -eq "$wanted" ] || { echo "status $status, not $wanted"; return 1; }
}
house() { # case, status
    expect "$1" ends_with "${2:-0}" on_pool "CUDAPOOL_CONFIG=$settings" -- "$programs/housekeeper" "$1"
}

printf '{"version": 1, "%s": {"release_after_idle": "1s"}, "%s": {"release_after_idle": "1s"}}\n' \
    device stream_ordered >"$work/idle.json"
settings=$work/idle.json
for case in sleeps sleeps_stream_ordered sleeps_large thread_goes synchronises pending loops ends \
    has_none blocks_signals forks executes becomes_a_daemon captures changes_user; do
    house $case
done
house main_thread_goes 6

printf '{"version": 1}\n' >"$work/default.json"
settings=$work/default.json
[ -n "$SANITIZE" ] || house wakes_once_a_second

printf '{"version": 1, "neighbours": {"enabled": false}}\n' >"$work/off.json"
settings=$work/off.json
house is_switched_off

# --- neighbours ----------------------------------------------------------------------------------------

printf '{"version": 1, "neighbours": {"leave_free": "32MiB"}}\n' >"$work/neighbours.json"
settings=$work/neighbours.json
share() { # case, memory
    rm -f "$work/device"
    expect "$1" on_pool "CUDAPOOL_CONFIG=$settings" "SIMCUDA_SHARED=$work/device" "SIMCUDA_MEMORY=${2:-256MiB}" -- \
        "$programs/housekeeper" "$1"
}
for case in gives_asleep gives_in_a_loop leaves_free; do
    share $case
done
share fills_it_alone
share gives_what_is_pending 2GiB

# --- where no thread can be made ----------------------------------------------------------------------

settings=$work/idle.json
if [ -z "$SANITIZE${RUN_WITH:-}" ]; then
    house fills_limit
    house sandboxed_early
    house sandboxed_late
    house sandboxed_in_a_container
fi

# --- in the middle of what it does --------------------------------------------------------------------

printf '{"version": 1, "%s": {"release_after_idle": "10ms"}, "%s": {"release_after_idle": "10ms"}}\n' \
    device stream_ordered >"$work/soon.json"
settings=$work/soon.json
house contexts_end
for _ in 1 2 3 4 5; do
    house exits_in_a_handler 7
done

finish
