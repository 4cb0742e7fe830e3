#!/usr/bin/env bash
# Driver calls that fail: every function that the pool calls, one call at a time, from some call on,
# and at random, with each plausible error. The program must be answered as without the pool: a call
# that the pool makes on its own behalf never surfaces, nothing crashes or hangs, nothing leaks, no
# data is touched too early, and the report still adds up.
#
# usage: faults.sh             all of them
#        faults.sh FAULTS...   runs with SIMCUDA_FAULTS=FAULTS, and what is wrong about each
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"
seconds=20

codes="OUT_OF_MEMORY NOT_INITIALIZED DEINITIALIZED ILLEGAL_ADDRESS NOT_SUPPORTED
    STREAM_CAPTURE_UNSUPPORTED UNKNOWN"

every=1 # a sanitizer or an emulator takes its time: one run in so many
[ -z "$SANITIZE${RUN_WITH:-}" ] || every=20

# --- one run ---------------------------------------------------------------------------------------

# Compares what the program says with what it says without faults. A call by the program to the very
# function that fails may fail, with that error (cuMemAllocPitch is served by cuMemAlloc, and the wait
# of free_synchronizes is a part of the free); so may, then, what follows from it. An error that
# stays in the context is everybody's from then on. Where events can no longer be asked about at
# all, no context is current, or the driver takes nothing back or does not trim its pools, memory may
# run out.
judge() { # without with faults
    awk -v faults="$3" '
        BEGIN {
            count = split(faults, list, ",")
            number["OUT_OF_MEMORY"] = 2; number["NOT_INITIALIZED"] = 3; number["DEINITIALIZED"] = 4
            number["ILLEGAL_ADDRESS"] = 700; number["NOT_SUPPORTED"] = 801
            number["STREAM_CAPTURE_UNSUPPORTED"] = 900; number["UNKNOWN"] = 999
            number["NOT_READY"] = 600
            for (i = 1; i <= count; i++) {
                split(list[i], parts, /=CUDA_ERROR_|[@%]/)
                code[parts[1]] = number[parts[2]]
                if (parts[2] == "ILLEGAL_ADDRESS" || parts[2] == "UNKNOWN") sticky = number[parts[2]]
                if (list[i] ~ /^(cuCtxGetCurrent|cuEventQuery|cuCtxSynchronize|cuMemPoolTrimTo).*[+%]/) lost = 1
                if (parts[1] ~ /^cuMem(Alloc|Free)/) memory = 1
                if (parts[1] ~ /^cu(Event(Create|Query|Record)|CtxRecordEvent)/) unfenced = 1
            }
        }
        FNR == NR { expected[FNR] = $0; lines = FNR; next }
        {
            read = FNR
            split(expected[FNR], was)
            if ($1 != was[1]) { print "line " FNR ": " $0 ", expected " expected[FNR]; bad = 1; exit }
            if ($1 in code && $2 == code[$1]) {
                failed = 1
                if ($1 == "cuMemFreeAsync") outlives = 1 # the memory of pools is of no context
                next
            }
            if ($0 == expected[FNR]) next
            if (failed && ($2 == "-" || $1 in code)) next
            if (failed && "cuMemFree_v2" in code && $2 == 2) next # what was not freed is not there
            # Of a stream-ordered allocation the driver is asked by another name.
            if ($1 == "cuMemAllocAsync" && $2 == 2 && code["cuMemAllocFromPoolAsync"] == 2) {
                failed = 1; next
            }
            if ($1 == "cuMemAllocPitch_v2" && $2 == code["cuMemAlloc_v2"]) { failed = 1; next }
            if ($1 == "cuMemFree_v2" && $2 == code["cuCtxSynchronize"]) { failed = 1; next }
            if ("cuCtxSynchronize" in code && $1 == "thread") { failed = 1; next }
            if (sticky && ($2 == 700 || $2 == 999 || (poisoned && $2 == "-"))) { poisoned = 1; next }
            if ((sticky || lost) && $1 ~ /^(thread|allocations)$/ && FNR < lines) next
            if ((sticky || outlives) && $1 == "allocations") next
            if ("cuMemFree_v2" in code && $1 == "allocations" && FNR < lines) next
            if ((lost || "cuMemFree_v2" in code || "cuMemFreeAsync" in code) && $2 == 2) {
                failed = 1; next
            }
            if (poisoned && $1 != "mismatches" && $1 != "active" && FNR < lines) next
            if (memory && $1 == "thread") { failed = 1; next }
            if (failed && $1 == "allocations" && FNR < lines) next
            # The pool returns no pinned memory of a context that it has stepped aside from, or that
            # it cannot ask for its work. It asks when a clock says so: which call fails then differs.
            if ((unfenced || sticky || "cuMemFreeHost" in code) &&
                $1 ~ /^cuMem(HostAlloc|AllocHost_v2)$/ && $2 == 2) {
                failed = 1; next
            }
            if (("cuDevicePrimaryCtxRelease_v2" in code || "cuDevicePrimaryCtxGetState" in code) &&
                $1 ~ /^(active|allocations)$/) next
            print "line " FNR ": " $0 ", expected " expected[FNR]; bad = 1; exit
        }
        END {
            if (!bad && read < lines && !failed && !poisoned) {
                print "ends after line " read; bad = 1
            }
            exit bad
        }' "$1" "$2"
}

run_program() { # output variable=value ...
    local to=$1
    shift
    "$@" -- "$programs/faults" >"$to" 2>"$to.error"
}

# Says what is wrong, and of which faults: those are long.
try() { # faults
    local out=$work/run-$BASHPID status
    rm -f "$out" "$out.json"
    run_program "$out" on_pool SIMCUDA_MEMORY=64MiB SIMCUDA_HOST_MEMORY=64MiB "SIMCUDA_FAULTS=$1" \
        "CUDAPOOL_CONFIG=$work/faults.json" "CUDAPOOL_REPORT=$out.json"
    status=$?
    if [ $status -ne 0 ]; then
        echo "exit status $status: $(head -n 1 "$out.error"): $1"
    elif [ -s "$out.error" ]; then
        echo "says $(head -n 1 "$out.error"): $1"
    elif ! judge "$work/plain" "$out" "$1" >"$out.why"; then
        echo "$(cat "$out.why"): $1"
    elif [ -e "$out.json" ] && ! adds_up "$out.json" >"$out.why"; then
        echo "$(head -n 2 "$out.why" | tr '\n' ' '): $1"
    fi
}

# --- which runs ------------------------------------------------------------------------------------

calls_by_name() { # log
    sed 's/^[0-9]* //; s/(.*//' "$1" | sort | uniq -c | awk '{ print $2, $1 }'
}

# Functions that the pool calls more often than the program without it, and how often in all.
pool_calls() {
    run_program "$work/unused" on_driver SIMCUDA_MEMORY=64MiB SIMCUDA_HOST_MEMORY=64MiB "SIMCUDA_LOG=$work/plain.log"
    run_program "$work/unused" on_pool SIMCUDA_MEMORY=64MiB SIMCUDA_HOST_MEMORY=64MiB "SIMCUDA_LOG=$work/pool.log" \
        CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$work/faults.json"
    calls_by_name "$work/plain.log" >"$work/plain.calls"
    calls_by_name "$work/pool.log" |
        awk 'FNR == NR { plain[$1] = $2; next } $2 > plain[$1]' "$work/plain.calls" - |
        grep -v '^cuCtxPopCurrent_v2 ' # whoever cannot get rid of a context is lost
    # Fewer of these than without the pool, and all of them the pool'"'"'s.
    calls_by_name "$work/pool.log" | grep -E '^cuMem((Alloc|Free|AllocPitch)_v2|HostAlloc|AllocHost_v2|FreeHost) '
}

# One call at a time: dense at first, then ever fewer; and all from one on.
single_faults() {
    local name count code first
    while read -r name count; do
        for code in $codes; do
            for first in 1 2 3 5 8 13 21 34 55 89 144; do
                [ $first -gt "$count" ] || echo "$name=CUDA_ERROR_$code@$first"
            done
            echo "$name=CUDA_ERROR_$code@1+" "$name=CUDA_ERROR_$code@$((count / 2 + 1))+"
        done
    done <"$work/calls"
    for first in 1 2 3 5 8 13 21 34; do
        echo "cuEventQuery=CUDA_ERROR_NOT_READY@$first"
    done
}

random_faults() {
    local seed
    for seed in $(seq 1 40); do
        awk -v seed="$seed" -v codes="$codes" 'BEGIN {
                srand(seed); count = split(codes, code)
            }
            rand() < 0.4 {
                printf "%s%s=CUDA_ERROR_%s%%%d:%d", comma, $1, code[1 + int(rand() * count)],
                    1 + int(rand() * 10), seed
                comma = ","
            }
            END { print "" }' "$work/calls"
    done | grep .
}

export -f judge run_program try run_with on_driver on_pool numbers adds_up
settings_for_all_rungs='{"version": 1, "device": {"growth_budget": "2MiB",
    "buckets": {"largest": "32MiB"}, "caps": {"cached": "100%"}}}'

all_of_them() { # name of the faults; one on each line of stdin
    local wrong=$work/wrong
    awk -v every="$every" 'NR % every == 0' >"$work/faults"
    # shellcheck disable=SC2016 # for the other shell
    xargs -P 2 -n 16 bash -c 'for fault; do try "$fault"; done' try <"$work/faults" >"$wrong"
    if [ -s "$wrong" ]; then
        fail "$1" "$(wc -l <"$wrong") of $(wc -l <"$work/faults"); the first: $(head -n 3 "$wrong" | tr '\n' ';')"
        [ -z "${FAULTS_KEEP:-}" ] || cat "$wrong" >>"$FAULTS_KEEP"
    else
        ok "$1 ($(wc -w <"$work/faults") runs)"
    fi
}

# Everything, on one driver and under one set of settings; the program on that driver, without the
# pool and without faults, says what is expected.
under_faults() { # name driver settings codes
    codes=$4
    export SIM=$BUILD/$2
    printf '%s\n' "$3" >"$work/faults.json"
    run_program "$work/plain" on_driver SIMCUDA_MEMORY=64MiB SIMCUDA_HOST_MEMORY=64MiB
    pool_calls | sort -u >"$work/calls"
    expect "$1: the pool makes calls of its own" test "$(wc -l <"$work/calls")" -gt 12
    expect "$1: without faults nothing is wrong" test -z "$(try '')"
    all_of_them "$1: driver calls that fail" < <(single_faults)
    all_of_them "$1: driver calls that fail at random" < <(random_faults)
}

export work programs seconds PRELOAD GUEST_LIBRARY_PATH RUN_WITH
if [ $# -gt 0 ]; then
    printf '%s\n' "$settings_for_all_rungs" >"$work/faults.json"
    run_program "$work/plain" on_driver SIMCUDA_MEMORY=64MiB SIMCUDA_HOST_MEMORY=64MiB
    for fault; do
        try "$fault"
    done
else
    under_faults "faults" sim "$settings_for_all_rungs" "$codes"
    synchronising=${settings_for_all_rungs/'"device": {'/'"device": {"free_synchronizes": true, '}
    under_faults "frees that synchronise" sim "$synchronising" "NOT_SUPPORTED"
    under_faults "before cuCtxRecordEvent" sim-12.4 "$settings_for_all_rungs" "DEINITIALIZED"
fi
finish
