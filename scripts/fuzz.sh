#!/usr/bin/env bash
# Runs the coverage-guided fuzzers that `make fuzz` has built from the corpus in tests/fuzz/corpus
# and from what earlier runs have found (kept below the build directory). An input that breaks a promise
# is kept there too, and its name is printed; exits 1 where there was one.
#
# usage: [BUILD=dir] [AT_A_TIME=2] fuzz.sh [SECONDS_EACH] [target...]
set -u
cd "$(dirname "$0")/.." || exit 2

build=$(realpath "${BUILD:-build-fuzz}")
seconds=${1:-60}
[ $# -eq 0 ] || shift
if [ $# -eq 0 ]; then
    mapfile -t targets < <(ls tests/fuzz/corpus)
    set -- "${targets[@]}"
fi
work=$build/fuzzing
export build seconds work
export ASAN_OPTIONS=quarantine_size_mb=32:malloc_limit_mb=4096
export UBSAN_OPTIONS=print_stacktrace=1

fuzz() { # target, the name of its directory in the corpus
    local name log dictionary options
    name=$1
    log=$work/$name.log
    dictionary=tests/fuzz/dictionaries/$name
    options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1
        -artifact_prefix="$work/finding-$name-")
    [ ! -e "$dictionary" ] || options+=(-dict="$dictionary")
    mkdir -p "$work/$name"
    if "$build/fuzzers/$name" "${options[@]}" "$work/$name" "tests/fuzz/corpus/$name" \
        >"$log" 2>&1 </dev/null; then
        printf 'ok %-16s %9d executions\n' "$name" "$(executions "$log")"
    else
        printf 'FAIL %s:\n' "$name"
        tail -n 60 "$log" | sed 's/^/    | /'
    fi
}

executions() { # log
    sed -n 's/^stat::number_of_executed_units: *//p' "$@" | awk '{ sum += $1 } END { print sum + 0 }'
}
export -f fuzz executions

mkdir -p "$work"
rm -f "$work"/*.log
printf '%s\n' "$@" | xargs -P "${AT_A_TIME:-2}" -I TARGET bash -c 'fuzz TARGET' | tee "$work/summary"
findings=$(grep -c '^FAIL' "$work/summary")
echo "$# fuzzers, $seconds s each: $(executions "$work"/*.log) executions, $findings findings"
[ "$findings" -eq 0 ]
