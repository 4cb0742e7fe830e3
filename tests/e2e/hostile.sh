#!/usr/bin/env bash
# Hostile programs: wild, stale and interior pointers, impossible sizes, NULLs, wrong handles. Every
# answer with the pool must be the plain driver's, under every way of keeping memory. And from many
# threads at once: double frees, streams and contexts destroyed under load.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"
seconds=110

hostile() { # case [variable=value]
    case_on_pool hostile "$1" ${2:+"$2"}
}

same_answers() { # case, settings in words [variable=value]
    hostile "$1" "${3:-}" >"$work/with" 2>"$work/stderr" || fail "$1, $2" "exit status $?: $(cat "$work/stderr")"
    # What the program pins itself, the driver does not synchronise.
    if [[ $2 == *"by hand" ]]; then
        sed -i '/^cuPointerSetAttribute(large pinned/d' "$work/with"
        sed '/^cuPointerSetAttribute(large pinned/d' "$work/without" >"$work/comparable"
        expect_same "$1, $2" "$work/comparable" "$work/with"
        return
    fi
    expect_same "$1, $2" "$work/without" "$work/with"
}

for case in pointers sizes nulls handles; do
    expect "$case, without the pool" on_driver -- "$programs/hostile" $case
    cp "$work/output" "$work/without"
    expect "with many answers" test "$(wc -l <"$work/without")" -gt 90
    settings=
    same_answers $case "with the pool"
    # The same in buckets of one size each, with waits in the frees, and with nothing that is kept.
    use_device '"buckets": {"policy": "exact"}, "growth_budget": 0'
    same_answers $case "budget 0"
    use_device '"buckets": {"policy": "pow2", "smallest": 1}, "free_synchronizes": true'
    same_answers $case "free_synchronizes"
    use_device '"buckets": {"largest": 0}'
    same_answers $case "nothing kept"
    use_device '' '"host": {"large": "huge_pages"}'
    same_answers $case "pinned memory by hand"
    use_device '' '"host": {"buckets": {"largest": 0}}'
    same_answers $case "no pinned memory kept"
    same_answers $case "switched off" CUDAPOOL_DISABLE=1
done

for case in double_frees destroyed_streams destroyed_contexts destroyed_primary; do
    expect "$case, without the pool" on_driver -- "$programs/hostile" $case
    settings=
    expect "$case" hostile $case
    use_device '"growth_budget": 0'
    expect "$case, budget 0" hostile $case
done
finish
