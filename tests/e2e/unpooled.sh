#!/usr/bin/env bash
# Memory that the pool does not serve: cuMemCreate, arrays, managed memory, graphs'. It counts against every
# limit together with the pool's, and the report tells it.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

limit='"limits": {"device_bytes": "256MiB"}'
quiet='"report": {"at_exit": "none"}'

limited() { # case...
    on_pool CUDAPOOL_REPORT=none SIMCUDA_MEMORY=1GiB \
        "CUDAPOOL_CONFIG={\"version\": 1, $limit, $quiet}" -- "$programs/unpooled" "$@"
}

for kind in physical array array3d mipmapped managed plain async; do
    expect "$kind stops at the limit" limited limit $kind
done
for case in sum lifetimes arrays contexts graphs failures threads; do
    expect "$case" limited $case
done

# A scheduler's limit is one of the container's group.
by_scheduler() { # kind
    on_pool CUDAPOOL_REPORT=none SIMCUDA_MEMORY=1GiB "$1=$((256 << 20))" -- "$programs/unpooled" limit "$2"
}
for variable in GPU_MEMORY_LIMIT CUDA_DEVICE_MEMORY_LIMIT; do
    for kind in physical array managed; do
        expect "$kind stops at $variable" by_scheduler $variable $kind
    done
done

# What the program is told that a device has in all: limits.tell_total.
total() { # limits, MiB, variable...
    on_pool CUDAPOOL_REPORT=none SIMCUDA_MEMORY=1GiB "${@:3}" \
        "CUDAPOOL_CONFIG={\"version\": 1, \"limits\": {$1}}" -- "$programs/unpooled" total "$2"
}
by_setting='"device_bytes": "256MiB"'
expect "a scheduler's limit is the total" total "" 300 GPU_MEMORY_LIMIT=300m
expect "a scheduler's limit is the total, told always" total '"tell_total": "always"' 300 GPU_MEMORY_LIMIT=300m
expect "a scheduler's limit is the total, told never" total '"tell_total": "never"' 1024 GPU_MEMORY_LIMIT=300m
expect "a setting's limit is not the total" total "$by_setting" 1024
expect "a setting's limit is the total, told always" total "$by_setting, \"tell_total\": \"always\"" 256
expect "without a limit the total is the device's" total '"tell_total": "always"' 1024
expect "without the pool as well" on_driver SIMCUDA_MEMORY=1GiB -- "$programs/unpooled" total 1024

# Half of the limit is taken by another process of the group.
in_group() { # case...
    on_pool CUDAPOOL_REPORT=none SIMCUDA_MEMORY=1GiB "CUDAPOOL_CONFIG={\"version\": 1, $quiet,
        \"limits\": {\"group\": \"unpooled-$$\", \"group_bytes\": \"256MiB\"}}" -- "$programs/unpooled" "$@"
}
for case in sum lifetimes contexts graphs threads; do
    expect "$case, of a group" in_group $case
done

# Processes of a group that end at any moment. The driver knows how much they have ever held together.
one_of_many() { # number
    in_group group "$1" >/dev/null 2>&1
    local status=$? # SIGALRM ends those with odd numbers
    [ "$status" -eq 0 ] || { [ $(($1 % 2)) -eq 1 ] && [ "$status" -eq $((128 + 14)) ]; } || echo "process $1: $status"
}
many_processes() {
    local number
    export SIMCUDA_SHARED=$work/shared
    for number in {1..12}; do
        one_of_many "$number" &
    done >"$work/wrong"
    wait
    if [ -s "$work/wrong" ]; then
        cat "$work/wrong" >&2
        return 1
    fi
    "$BUILD/sim/shared" -w "$SIMCUDA_SHARED" && "$BUILD/sim/shared" "$SIMCUDA_SHARED" >"$work/held" || return
    awk '$1 == "device" && $7 == "peak" && $8 > 160 * 2 ^ 20 { most = $8 }
         END { print "at most " most; exit most == 0 || most > 256 * 2 ^ 20 }' "$work/held"
}
expect "12 processes of a group, half of which are killed, keep to its limit" many_processes
# What the dead had comes back within a second.
all_of_it() {
    local try
    for try in {1..30}; do
        [ "$try" -eq 1 ] || sleep 0.1
        in_group limit physical >/dev/null 2>&1 && return
    done
    in_group limit physical
}
expect "what the dead had is the others'" all_of_it

faulty() { # fault
    SIMCUDA_FAULTS=$1 limited faulty
}
for function in cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemRetainAllocationHandle cuArrayCreate_v2 \
    cuArray3DCreate_v2 cuMipmappedArrayCreate cuArrayDestroy cuMipmappedArrayDestroy cuMemAllocManaged; do
    for call in 1 2 3 4; do
        expect "$function fails, call $call" faulty "$function=CUDA_ERROR_NOT_SUPPORTED@$call"
    done
done

without_limit() {
    on_pool CUDAPOOL_REPORT=none SIMCUDA_MEMORY=1GiB "CUDAPOOL_CONFIG={\"version\": 1$1}" -- "$programs/unpooled" free
}
expect "without a limit" without_limit ""
expect "without a limit and without a report" without_limit ", $quiet"

# The report has what the program has counted.
told() {
    on_pool SIMCUDA_MEMORY=1GiB "CUDAPOOL_REPORT=$work/report.json" \
        "CUDAPOOL_CONFIG={\"version\": 1, $limit}" -- "$programs/unpooled" told >"$work/counted" || return
    python3 - "$work/report.json" >"$work/reported" <<'END'
import json, sys
unpooled = json.load(open(sys.argv[1]))["devices"][0]["unpooled"]
for kind in ("physical", "arrays", "managed", "graphs"):
    of = unpooled[kind]
    print(kind, "live", of["live_bytes"], "peak", of["peak_bytes"], "refused", of["refused"])
END
    diff "$work/counted" "$work/reported"
}
expect "the report has what was counted" told

finish
