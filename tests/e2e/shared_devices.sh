#!/usr/bin/env bash
# The simulated driver's devices that several processes share.
# shellcheck source=tests/e2e/interposition_lib.sh
. "$(dirname "$0")/interposition_lib.sh"

# shellcheck disable=SC2317 # called through expect
shared() { # case
    rm -f "$work/device" "$work/tally"
    on_driver SIMCUDA_SHARED="$work/device" TALLY="$work/tally" SIMCUDA_MEMORY=64MiB \
        SIMCUDA_DEVICES=2 -- "$programs/shared_devices" "$1"
}

for case in held_by_another managed ends executes forks uuids room_for_all rivals killed_rivals; do
    expect "$case" shared "$case"
done
"$SIM/shared" "$work/device" >"$work/held"
expect_lines "nothing is left, and all of it was in use" "$work/held" \
    "device 0 total 67108864 held 0 peak 67108864"

# One line on stderr says what is wrong, and cuInit fails.
refused() { # name, what is said, variables
    local name=$1 what=$2
    shift 2
    on_driver SIMCUDA_MEMORY=64MiB "$@" -- "$programs/shared_devices" obey >"$work/stdout" 2>"$work/stderr" </dev/null
    expect_lines "$name" "$work/stderr" "simulated CUDA driver: SIMCUDA_SHARED=.*: $what"
}
refused "another size" "other processes have devices of another size \\(SIMCUDA_MEMORY\\)" \
    SIMCUDA_SHARED="$work/device" SIMCUDA_MEMORY=32MiB
echo something >"$work/other"
refused "another file" "an empty file is allowed, or one that such processes share" \
    SIMCUDA_SHARED="$work/other"
refused "no file" "a file that can be written is allowed" SIMCUDA_SHARED="$work/missing/device"
finish
