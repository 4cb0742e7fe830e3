#!/usr/bin/env bash
# The settings files of the fuzzers' corpus, in two readers: what `cudapool check` calls valid starts
# the pool, and what it refuses is refused by the preload object in the same words, in one line, and
# the program runs on without the pool.
# shellcheck source=tests/e2e/interposition_lib.sh
. "$(dirname "$0")/interposition_lib.sh"

without='; the program runs without the pool'
valid=0
refused=0
for file in "$here"/tests/fuzz/corpus/settings/*; do
    name=$(basename "$file")
    # A report in the settings would be written to where it says.
    on_pool "CUDAPOOL_CONFIG=$file" CUDAPOOL_REPORT=none -- "$programs/pool_pointers" \
        wrong_frees >"$work/stdout" 2>"$work/stderr"
    status=$?
    if [ $status -ne 0 ] || [ -s "$work/stdout" ]; then
        fail "$name" "the program ends with $status: $(head -n 1 "$work/stdout")"
    elif run_with -- "$BUILD/cudapool" check "$file" >/dev/null 2>"$work/refusal"; then
        valid=$((valid + 1))
        [ ! -s "$work/stderr" ] || fail "$name is valid" "$(head -n 1 "$work/stderr")"
    else
        refused=$((refused + 1))
        sed "s|\$|$without|" "$work/refusal" >"$work/expected"
        cmp -s "$work/expected" "$work/stderr" ||
            fail "$name is refused" "$(cat "$work/expected" "$work/stderr")"
    fi
done
expect "settings that are valid for both: $valid" test $valid -ge 15
expect "settings that both refuse in the same words: $refused" test $refused -ge 15
finish
