#!/usr/bin/env bash
# How processes end, fork and are torn at, and programs that use the driver as nobody should, without
# and with the pool.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

life=$programs/process_life
use_device '"growth_budget": 0, "caps": {"cached": "64MiB"}'
tight=$settings

# expect_end NAME STATUS COMMAND...: a process that ends with this status, not by the timeout.
expect_end() {
    local name=$1 wanted=$2 status
    shift 2
    "$@" >"$work/output" 2>&1
    status=$?
    if [ $status -eq "$wanted" ]; then
        ok "$name"
    else
        fail "$name" "exit status $status, not $wanted: $(tail -n 2 "$work/output" | tr '\n' ' ')"
    fi
}

everywhere() { # case status [variable=value]
    expect_end "$1, without the pool" "$2" on_driver ${3:+"$3"} -- "$life" "$1"
    expect_end "$1" "$2" on_pool CUDAPOOL_REPORT=none ${3:+"$3"} -- "$life" "$1"
    expect_end "$1, tight" "$2" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$tight" \
        ${3:+"$3"} -- "$life" "$1"
}

# --- ends ------------------------------------------------------------------------------------------

for round in 1 2 3; do
    rm -f "$work/report.json"
    expect_end "exit in a thread while others allocate, $round" 7 on_pool \
        "CUDAPOOL_REPORT=$work/report.json" -- "$life" exit_in_thread
    expect "with a report, $round" has_requests "$work/report.json"
done
end=(on_pool "CUDAPOOL_REPORT=$work/none.json" -- "$life")
expect_end "_exit" 8 "${end[@]}" end_by_exit
if [ -z "$SANITIZE" ]; then # which has its own way of ending then
    expect_end "abort" 134 bash -c "ulimit -c 0; $(declare -f on_pool on_driver run_with)
        $(declare -p end seconds PRELOAD SIM); \"\${end[@]}\" end_by_abort"
fi
expect_end "SIGKILL" 137 "${end[@]}" end_by_kill
expect "none of which writes a report" test ! -e "$work/none.json"
everywhere late_frees 0
everywhere late_frees_quick 9
expect "the driver closed and opened again" on_pool CUDAPOOL_REPORT=none -- \
    "$programs/process_life_library" "$programs/libprocess_life.so"
expect "and without the pool" on_driver -- "$programs/process_life_library" \
    "$programs/libprocess_life.so"
expect_end "a library whose constructor waits for a thread" 0 on_pool CUDAPOOL_REPORT=none -- \
    "$programs/process_life_plugin" "$programs/libprocess_life_plugin.so"
expect_end "and without the pool" 0 on_driver -- \
    "$programs/process_life_plugin" "$programs/libprocess_life_plugin.so"

# --- lives -----------------------------------------------------------------------------------------

everywhere fork_under_load 0
expect_end fork_and_load 0 on_pool CUDAPOOL_REPORT=none \
    "LD_PRELOAD=$PRELOAD:$programs/libprocess_life_linker.so" -- "$life" fork_and_load
everywhere reset 0
everywhere callbacks 0
everywhere callbacks_swap 0

# --- as nobody should --------------------------------------------------------------------------------

everywhere double_frees 0
everywhere wild_pointers 0
everywhere sizes 0 SIMCUDA_MEMORY=20GiB
everywhere streams 0
everywhere contexts 0
finish
