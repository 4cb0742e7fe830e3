#!/usr/bin/env bash
# How a program ends is its own affair: where the report goes and where not, and that it neither waits,
# nor stops, nor ends the program, nor changes its status, nor asks malloc for memory.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

program=$programs/endings
unset CUDAPOOL_FIGURES CUDAPOOL_REPORT CUDAPOOL_CONFIG
export CUDAPOOL_FIGURES=none
own="the program's own words"

ends_with_7() { # command
    "$@"
    local status=$?
    [ $status -eq 7 ] || { echo "status $status, not 7"; return 1; }
}
on_seven() { # ...: on_pool, with a program that ends so
    ends_with_7 on_pool "$@"
}

# --- the descriptor 2 that was there at the start ----------------------------------------------------

json='CUDAPOOL_CONFIG={"version": 1, "report": {"at_exit": "json"}}'
exact='CUDAPOOL_CONFIG={"version": 1, "device": {"buckets": {"policy": "exact"}}}' # many rows
bad='CUDAPOOL_CONFIG={"devise": 1}'
on_seven -- "$program" plain 2>"$work/stderr"
expect "a program whose stderr stays what it was has a report there" grep -q 'hits' "$work/stderr"
on_seven "$json" -- "$program" plain 2>"$work/stderr"
expect "or JSON" has_requests "$work/stderr"
for setting in CUDAPOOL_REPORT=stderr CUDAPOOL_REPORT=/dev/stderr "$json" "$bad"; do
    rm -f "$work/file"
    on_seven "$setting" -- "$program" opens "$work/file" 2>&- >"$work/output"
    expect_lines "the file that got number 2 has nothing of ours (${setting:0:24})" "$work/file" "$own"
    for how in reopens moves; do
        on_seven "$setting" -- "$program" $how "$work/file" 2>"$work/stderr"
        expect_lines "nor one that $how (${setting:0:24})" "$work/file" "$own"
        expect_lines "and what 2 was has nothing either" "$work/stderr"
    done
done

# --- nobody reads, or may write ------------------------------------------------------------------------

if [ -z "${RUN_WITH:-}" ]; then
    # The program itself takes long under a sanitizer, and where the machine is busy.
    time_of() { # command: milliseconds go to $work/time
        local start
        start=$(date +%s%N)
        "$@"
        local status=$?
        echo $((($(date +%s%N) - start) / 1000000)) >"$work/time"
        return "$status"
    }
    unread() { # kind, how the report goes, [case]: it ends with its status, soon, and what was written is in lines
        local kind=$1 setting=$2
        ends_with_7 on_driver -- "$program" watch "$kind" 5000 env "LD_PRELOAD=$PRELOAD" SIMCUDA_DEVICES=8 \
            "$exact" "$setting" "$program" "${3:-sizes}" >"$work/written" || return 1
        # Other kinds than pipes take parts of lines.
        [[ $kind != pipe ]] || [ ! -s "$work/written" ] || [ "$(tail -c 1 "$work/written" | tr '\n' x)" = x ] ||
            { echo "cut in the middle of a line: $(tail -n 1 "$work/written")"; return 1; }
    }
    on_copies() { # command
        SIM=$for_all PRELOAD=$for_all/$(basename "$ours") program=$for_all/$(basename "$program") "$@"
    }
    for kind in pipe full socket terminal; do
        for setting in CUDAPOOL_REPORT=stderr "$json" CUDAPOOL_REPORT=/dev/stderr; do
            expect "nobody reads: $kind, ${setting:0:28}" unread $kind "$setting"
        done
    done
    unread pipe CUDAPOOL_REPORT=stderr
    expect "what a pipe has room for is there" test "$(wc -c <"$work/written")" -gt 50000
    if [ -z "$SANITIZE${COVERAGE:-}" ]; then
        if [ "$(id -u)" -eq 0 ] && reach_all "$program" "$ours" "$BUILD/libcudapool_config.so" "$SIM/libcuda.so.1"; then
            expect "nobody reads another user's pipe" on_copies unread shared CUDAPOOL_REPORT=stderr
        else
            skip "nobody reads another user's pipe" "there is no other user who can be tried"
        fi
    fi
    expect "in the background of a terminal that stops writers" unread background CUDAPOOL_REPORT=stderr plain
    expect "where the table is all the same" grep -q '^allocations and frees took' "$work/written"
    expect "and JSON there" unread background CUDAPOOL_REPORT=/dev/tty
    mkfifo "$work/fifo"
    expect "a report to a FIFO that nobody has opened" on_seven "CUDAPOOL_REPORT=$work/fifo" -- "$program" plain

    # At most 100 ms, against a program whose report nobody wants: of several runs the fastest, and of as many
    # more as a busy machine needs.
    note_fastest() { # file of milliseconds, kind
        time_of ends_with_7 on_driver -- "$program" watch full 5000 env "LD_PRELOAD=$PRELOAD" \
            "$2" "$program" plain >/dev/null || return 1
        if [ ! -s "$1" ] || [ "$(cat "$work/time")" -lt "$(cat "$1")" ]; then
            cp "$work/time" "$1"
        fi
    }
    is_cheap() {
        local tries more
        for tries in {1..60}; do
            [ "$tries" -gt 6 ] || note_fastest "$work/without" CUDAPOOL_REPORT=none || return 1
            note_fastest "$work/with" CUDAPOOL_REPORT=stderr || return 1
            more=$(($(cat "$work/with") - $(cat "$work/without")))
            [ "$tries" -lt 6 ] || [ "$more" -gt 130 ] || return 0
        done
        echo "$more ms"
        return 1
    }
    [ -n "$SANITIZE" ] || expect "which costs at most 100 ms" is_cheap
    if [ -z "${COVERAGE:-}" ] && [ "$SANITIZE" != thread ]; then # which write to files themselves
        limited() { # setting: no file may have a byte
            (ulimit -f 0 && on_seven "$1" -- "$program" plain 2>>"$work/limited")
        }
        : >"$work/limited"
        for setting in CUDAPOOL_REPORT=stderr "$json" "CUDAPOOL_REPORT=$work/limited.json"; do
            expect "a limit on the size of files (${setting:0:28})" limited "$setting"
        done
    fi
fi

# --- exit in a signal handler, inside malloc -------------------------------------------------------------

if [ -z "$SANITIZE" ]; then
    inside_malloc() { # function, setting
        on_seven SIMCUDA_DEVICES=2 "$2" -- "$programs/endings_malloc" "$1" 2>"$work/stderr"
    }
    printf '{"version": 1, "report": {"at_exit": "table", "file": "%s"}}\n' "$work/table" >"$work/table.json"
    for function in malloc calloc realloc free; do
        for setting in CUDAPOOL_REPORT=stderr "$json" "CUDAPOOL_REPORT=$work/inside.json" \
            "CUDAPOOL_CONFIG=$work/table.json" CUDAPOOL_REPORT=/no/such/file "CUDAPOOL_FIGURES=$work"; do
            expect "exit inside $function, ${setting:0:32}" inside_malloc $function "$setting"
        done
        expect "with a table, $function" grep -q '^allocations and frees took' "$work/table"
        expect "and JSON, $function" has_requests "$work/inside.json"
        rm -f "$work/table" "$work/inside.json"
    done
fi
finish
