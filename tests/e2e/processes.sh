#!/usr/bin/env bash
# The preload object as a guest in other people's processes: those that never use CUDA, that fork,
# that run with more rights, that end in the middle of things; and what it says, and when.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

roundtrip=("$programs/interposition_roundtrip" linked)
table='.*hits.*' # a line of the report

# Runs the round trip with variables; its stderr goes to $work/stderr.
said_with() { # variable=value ...
    on_pool "$@" -- "${roundtrip[@]}" 2>"$work/stderr"
}

# --- a program that never uses CUDA ----------------------------------------------------------------

never=/bin/true
[ -z "${RUN_WITH:-}" ] || never=$programs/interposition_missing # /bin/true is for this processor
expect "a program without CUDA runs" run_with "LD_PRELOAD=$PRELOAD" CUDAPOOL_CONFIG=/nonexistent \
    -- "$never"
if [ -z "$SANITIZE${COVERAGE:-}" ] && [ -z "${RUN_WITH:-}" ]; then
    if command -v strace >/dev/null && strace -o /dev/null "$never" 2>/dev/null; then
        opened() { # variable=value
            env "$1" CUDAPOOL_CONFIG=/nonexistent strace -f -qq -o "$work/trace" -e \
                'trace=?open,openat,?creat,?fork,?vfork,clone,?clone3,write,writev,socket' "$never"
            sed -E 's/^[0-9]+ +//; s/ = .*//' "$work/trace"
        }
        opened NOTHING= >"$work/without"
        opened "LD_PRELOAD=$ours" | grep -v -e libcudapool_preload.so -e libdl.so.2 >"$work/with"
        expect_same "and opens nothing, writes nothing, starts nothing" "$work/without" "$work/with"
    else
        skip "a program without CUDA opens nothing" "there is no strace, or it may trace nothing here"
    fi
fi

# --- what it says ----------------------------------------------------------------------------------

expect "a report by default" said_with
expect "which is a table" grep -Eq "$table" "$work/stderr"
expect "none if so wished" said_with CUDAPOOL_REPORT=none
expect_lines "which is nothing at all" "$work/stderr"
expect "switched off" said_with CUDAPOOL_DISABLE=1
expect_lines "without a word" "$work/stderr"
for value in 0 ''; do
    expect "not switched off by \"$value\"" said_with "CUDAPOOL_DISABLE=$value"
    expect "and a table, \"$value\"" grep -Eq "$table" "$work/stderr"
done
expect "to stderr" said_with CUDAPOOL_REPORT=stderr
expect "a table there" grep -Eq "$table" "$work/stderr"
expect "to a file" said_with "CUDAPOOL_REPORT=$work/report-%p-%h-%r-%%.json"
expect_lines "and nothing to stderr" "$work/stderr"
expect "with names filled in" has_requests "$work"/report-[0-9]*-*-0-%.json
printf '{"version": 1, "report": {"at_exit": "table", "file": "%s"}}\n' "$work/table" \
    >"$work/table.json"
expect "a table to a file" said_with "CUDAPOOL_CONFIG=$work/table.json"
expect "which is there" grep -Eq "$table" "$work/table"
expect_lines "and not on stderr" "$work/stderr"

without='; the program runs without the pool'
expect "no such settings file" said_with "CUDAPOOL_CONFIG=$work/nonexistent.json"
expect_lines "is one line" "$work/stderr" "cudapool: .*$work/nonexistent.json.*$without"
printf '{"version": 1,\n "devise": {}}\n' >"$work/wrong.json"
expect "wrong settings" said_with "CUDAPOOL_CONFIG=$work/wrong.json"
expect_lines "are one line" "$work/stderr" "cudapool: .*$work/wrong.json.*devise.*$without"
expect "an unknown escape" said_with 'CUDAPOOL_REPORT=report-%q'
expect_lines "is one line" "$work/stderr" "cudapool: CUDAPOOL_REPORT: .*report-%q.*$without"
expect "a report to stdout" said_with CUDAPOOL_REPORT=/dev/stdout
cp "$work/output" "$work/stdout"
expect "is there" has_requests "$work/stdout"
expect_lines "and not on stderr" "$work/stderr"
long=$(printf '%%p%%p%.0s' {1..1000})
expect "a report with a name that grows too long" said_with "CUDAPOOL_REPORT=$work/$long"
sed 1q "$work/stderr" >"$work/line"
expect_lines "is said in a line" "$work/line" "cudapool: report: .*: File name too long"
expect "and told on stderr instead" grep -Eq "$table" "$work/stderr"
expect "a report that cannot be written" said_with "CUDAPOOL_REPORT=$work/no/such/directory/file"
sed 1q "$work/stderr" >"$work/line"
expect_lines "is said in a line, too" "$work/line" "cudapool: report: .*$work/no/such/directory/file.*"
expect "and told on stderr" grep -Eq "$table" "$work/stderr"
expect "threads that all find the settings wrong" on_pool "CUDAPOOL_CONFIG=$work/wrong.json" -- \
    "$programs/interposition_race"
expect_lines "say so once" "$work/output" "cudapool: .*devise.*$without"
cp "$ours" "$work/libcudapool_preload.so"
printf '{"version": 1}\n' >"$work/empty.json"
on_driver "LD_PRELOAD=$first_of_all$work/libcudapool_preload.so" \
    "CUDAPOOL_CONFIG=$work/empty.json" -- "${roundtrip[@]}" 2>"$work/stderr"
expect_lines "without the settings reader" "$work/stderr" \
    "cudapool: .*$work/libcudapool_config.so.*$without"

# The settings reader is found beside a preload object that was named by a relative path, wherever
# the program has gone since.
relative() {
    cd "$BUILD" && on_driver "LD_PRELOAD=${first_of_all}./libcudapool_preload.so" \
        "CUDAPOOL_CONFIG=$work/table.json" -- "${roundtrip[@]}" linked /
}
rm -f "$work/table"
expect "preloaded by a relative path" relative
expect "and the settings were read" grep -Eq "$table" "$work/table"
cd "$here" || exit 1

# --- compute-sanitizer -----------------------------------------------------------------------------

# The real one is not here. This one's launcher has its collector loaded, which sees each allocation of the
# program's only if the pool steps aside.
aside="cudapool: compute-sanitizer is at work$without"
mkdir -p "$work/compute-sanitizer" "$work/nsight" "$work/alone"
for file in compute-sanitizer/{libTreeLauncherTargetInjection,libInterceptorInjectionTarget,libsanitizer-collection}.so \
    nsight/libTreeLauncherTargetInjection.so alone/libsanitizer-collection.so; do
    cp "$programs/libinterposition_sanitizer.so" "$work/$file"
done
counted() { # what is preloaded, variable=value ...
    local library=$1
    shift
    on_driver "LD_PRELOAD=$PRELOAD:$work/$library" "$@" -- "$programs/counted" device >"$work/counted" 2>"$work/stderr"
}
for library in compute-sanitizer/{libTreeLauncherTargetInjection,libInterceptorInjectionTarget,libsanitizer-collection}.so \
    alone/libsanitizer-collection.so; do
    expect "under compute-sanitizer, $library" counted "$library"
    requests=$(awk '$1 == "device" && $2 == "all" && $3 == "requests" { print $4 }' "$work/counted")
    expect_lines "it sees what the program allocates, $library" "$work/stderr" "$aside" "sanitizer: $requests allocations"
done
expect "compute-sanitizer's variable is enough" said_with NV_SANITIZER_INJECTION_PORT_BASE=1
expect_lines "for one line" "$work/stderr" "$aside"
expect "a profiler's launcher" counted nsight/libTreeLauncherTargetInjection.so
expect "is no reason to step aside" grep -Eq "$table" "$work/stderr"

# --- processes that fork ---------------------------------------------------------------------------

for case in before after nested vfork; do
    rm -f "$work"/fork-*
    expect "fork, $case" on_pool "CUDAPOOL_REPORT=$work/fork-%p.json" -- \
        "$programs/interposition_fork" $case /bin/true
    expect "one report, $case" test "$(find "$work" -name 'fork-*.json' | wc -l)" -eq 1
done

# --- how it ends -----------------------------------------------------------------------------------

for round in 1 2 3; do
    expect "exit while others allocate, $round" on_pool -- "$programs/interposition_race" exit
done
if [ -z "${RUN_WITH:-}" ]; then
    # A pipe whose reader is gone; bash ignores nothing here, so a SIGPIPE would end the program.
    { on_pool -- "${roundtrip[@]}" 2>&1 >/dev/null; echo $? >"$work/status"; } | true
    expect "nobody reads stderr" test "$(cat "$work/status")" -eq 0
    on_pool -- "${roundtrip[@]}" 2>&-
    expect "stderr is closed" test $? -eq 0
fi

# --- AT_SECURE -------------------------------------------------------------------------------------
# The dynamic linker ignores LD_PRELOAD then; a program that is linked with the preload object has
# it all the same.

secure() {
    reach_all "$ours" "$SIM/libcuda.so.1" || return 77
    # shellcheck disable=SC2086 # a command and its options
    ${CC:-cc} -D_GNU_SOURCE -I"$here" "$here/tests/e2e/interposition_secure.c" -o "$for_all/secure" \
        -Wl,--no-as-needed "$ours" "$SIM/libcuda.so.1" -Wl,-rpath,"$for_all" &&
        chmod u+s,a+rx "$for_all/secure" || return
    setpriv --reuid 65534 --clear-groups env CUDAPOOL_DISABLE=1 CUDAPOOL_CONFIG=/nonexistent \
        "CUDAPOOL_REPORT=$work/secure.json" "$for_all/secure" 2>"$work/stderr"
}

if [ -z "$SANITIZE" ] && [ -z "${RUN_WITH:-}" ]; then
    status=77 # which such a program exits with where it was not given more rights
    if [ "$(id -u)" -eq 0 ]; then
        secure >"$work/output" 2>&1
        status=$?
    fi
    if [ $status -eq 77 ]; then
        skip "AT_SECURE" "no program can be started with more rights here"
    else
        expect "AT_SECURE" test $status -eq 0
        expect "our environment is not looked at" grep -Eq "$table" "$work/stderr"
        expect "nor written to" test ! -e "$work/secure.json"
    fi
fi
finish
