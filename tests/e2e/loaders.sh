#!/usr/bin/env bash
# Programs in whose process another run time replaces dlopen, malloc or the clock, or runs the code
# itself: with settings and a report, they end as without the pool, the settings have their effect,
# and the report has each of their requests.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

if [ -n "$SANITIZE" ] || [ -n "${RUN_WITH:-}" ]; then
    echo "skip other run times: the pool itself has a sanitizer's, or an emulator's"
    exit 0
fi
seconds=180 # that a program may take: emulated code on a busy machine
cudapool=$BUILD/cudapool
off=$work/off.json report=$work/report.json
printf '{"device": {"enabled": false}}\n' >"$off"
unset CUDAPOOL_CONFIG CUDAPOOL_REPORT LD_PRELOAD

# The address map of ThreadSanitizer and MemorySanitizer does not bear all kernels' randomization.
prefix=()
! setarch -R true 2>/dev/null || prefix=(setarch -R)

# Runs a command on the simulated driver. The pool or the settings are what the command sets.
on_sim() { # variable=value ... command
    timeout -k 5 "$seconds" "${prefix[@]}" env "LD_LIBRARY_PATH=$SIM" SIMCUDA_MEMORY=64MiB "$@"
}
ends_with_7() { # command
    local status
    "$@"
    status=$?
    [ $status -eq 7 ] || {
        echo "exit status $status"
        return 1
    }
}
number_in_report() { # name
    sed -n "s/^ *\"$1\": \([0-9]*\),*$/\1/p" "$report" | head -n 1
}
# The program makes 40 requests. Whether some are hits is what the settings decide.
is_served() { # some or none, command
    local hits=$1
    shift
    rm -f "$report"
    ends_with_7 "$@" || return 1
    [ "$(number_in_report requests)" -eq 40 ] && if [ "$hits" = some ]; then
        [ "$(number_in_report misses)" -lt 40 ]
    else
        [ "$(number_in_report misses)" -eq 40 ]
    fi
}

# A program under some run time.
around=() # variables of its environment
try_all() { # name, library that stands before the pool or "", command that runs the program
    local name=$1 first=$2
    shift 2
    if ! ends_with_7 on_sim "${around[@]}" "$@" linked >"$work/output" 2>&1; then
        echo "skip $name: it does not work here without the pool: $(head -n 1 "$work/output")"
        return
    fi
    expect "$name, cudapool run" is_served some \
        on_sim "${around[@]}" "$cudapool" run --report "$report" "$@" linked
    expect "$name, cudapool run with settings, the driver by dlopen" is_served none \
        on_sim "${around[@]}" "$cudapool" run --config "$off" --report "$report" "$@" dlopen
    expect "$name, LD_PRELOAD with settings" is_served none \
        on_sim "${around[@]}" "LD_PRELOAD=${first:+$first:}$ours" "CUDAPOOL_CONFIG=$off" \
        "CUDAPOOL_REPORT=$report" "$@" linked
}

# --- sanitizers -----------------------------------------------------------------------------------

try_sanitizer() { # compiler, options
    local program=$work/sanitized name="$1 $2" first=
    if ! command -v "$1" >/dev/null; then
        echo "skip $name: there is no $1"
        return
    fi
    # shellcheck disable=SC2086 # options
    if ! "$1" -std=gnu17 -D_GNU_SOURCE= -I. -O1 -g $2 tests/e2e/loaders.c -o "$program" \
        "$SIM/libcuda.so.1" -ldl 2>"$work/output"; then
        echo "skip $name: it cannot be built: $(head -n 1 "$work/output")"
        return
    fi
    # The library that the program names, where the dynamic linker finds it.
    first=$(on_sim ldd "$program" | sed -n 's/^.*lib[a-z_]*san.* => \([^ ]*\) .*/\1/p' | head -n 1)
    try_all "$name" "$first" "$program"
}
cd "$here" || exit 2
for options in -fsanitize=address -fsanitize=thread; do
    try_sanitizer gcc $options
    try_sanitizer clang $options
done
try_sanitizer clang -fsanitize=memory

# --- memcheck, rr ---------------------------------------------------------------------------------

program=$programs/loaders
try_under() { # what it runs under, with its arguments
    if command -v "$1" >/dev/null; then
        try_all "$1" "" "$@" "$program"
    else
        echo "skip $1: it is not installed"
    fi
}
export _RR_TRACE_DIR=$work/recorded
expect "the program without any of them" ends_with_7 on_sim "$program" linked
try_under valgrind -q --error-exitcode=99
try_under rr record -n

# --- preloaded libraries: allocators and clocks ---------------------------------------------------

find_library() { # name: its path
    local path
    path=$(ldconfig -p | sed -n "s|^.*$1 .* => ||p" | head -n 1)
    [ -n "$path" ] || path=$(find /usr/lib/*/faketime -name "$1" 2>/dev/null | head -n 1)
    [ -n "$path" ] && echo "$path"
}
try_with() { # library, variable=value ...
    local library
    if library=$(find_library "$1"); then
        around=("LD_PRELOAD=$library" "${@:2}")
        try_all "$1" "$library" "$program"
        around=()
    else
        echo "skip $1: it is not installed"
    fi
}
try_with libtcmalloc.so.4
try_with libjemalloc.so.2
try_with libfaketime.so.1 "FAKETIME=@401-01-01 00:00:00"
try_with libfaketime.so.1 "FAKETIME=2020-01-01 00:00:00" # stands still
try_with libfaketime.so.1 "FAKETIME=+0 x1000"

# --- audit libraries --------------------------------------------------------------------------------

around=("LD_AUDIT=$programs/libaudit.so")
try_all "an audit library that sees calls return" "" "$program"
expect "the same, the pool switched off" ends_with_7 on_sim "${around[@]}" "LD_PRELOAD=$ours" CUDAPOOL_DISABLE=1 \
    "$program" linked
around=()

# --- the program's own malloc, and its own use of our JSON library ---------------------------------

# jansson is loaded once in a process: what it gives the pool is the program's malloc's.
if library=$(find_library libjansson.so.4); then
    printf '{"device": {"barriers": 1.5}}\n' >"$work/bad.json"
    expect "a program's own malloc and jansson, a number that is wrong" on_pool \
        "CUDAPOOL_CONFIG=$work/bad.json" -- "$programs/own_malloc" "$library"
    cp "$work/output" "$work/said"
    expect "is told" grep -q 'bad\.json: device\.barriers: found 1\.5, allowed is true or false' "$work/said"
    for round in 1 2 3; do
        rm -f "$report"
        expect "other threads are in jansson at the end, $round" on_pool "CUDAPOOL_REPORT=$report" -- \
            "$programs/own_malloc" "$library"
        expect "there is a report, $round" has_requests "$report"
    done
else
    echo "skip a program's own malloc and jansson: there is no libjansson.so.4"
fi
finish
