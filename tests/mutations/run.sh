#!/usr/bin/env bash
# Does every mutation get caught? For each of their entries: its check must pass in the build
# that can be mutated, as long as nothing is mutated, and must fail once that mutation is on.
#
# usage: [BUILD=dir] [JOBS=n] run.sh [NAME...]   those mutations, or all; closes with "N passed, M
#                                                failed, K skipped"
#        run.sh table [NAME...]                  the same, and writes what it saw into TABLE.md
#        run.sh --changed-since COMMIT --tenth SEED
#                                                one or both: choose.py says which mutations these are
#   BUILD      where the programs and the simulated driver are (default build)
#   MUTATIONS  where the build is that can be mutated (default build-mutations)
#   JOBS       how many checks run at a time (default: one for each processor)
# A line tells each mutation's end, and every ten seconds one how far it is, and what is running.
# Exit status 0: none escaped; 1: one is not caught; 2: a wrong name, or nothing to run.
set -u
cd "$(dirname "$0")/../.." || exit 2

BUILD=$(realpath "${BUILD:-build}")
MUTATIONS=$(realpath "${MUTATIONS:-build-mutations}")
PRELOAD=$MUTATIONS/libcudapool_preload.so
SIM=$BUILD/sim
here=tests/mutations
table=$here/TABLE.md
programs=$BUILD/tests/e2e
export BUILD MUTATIONS
unset CUDAPOOL_CONFIG CUDAPOOL_DISABLE CUDAPOOL_REPORT "${!SIMCUDA_@}"
export CUDAPOOL_FIGURES=none # those of what is killed would stay

RANDOM_SEEDS=2000   # of random programs: more are not tried
SECONDS_OF_ONE=60  # that any one check may take; more is a hang of the runner
TELL_EVERY=10      # seconds: how far it is
SECONDS_OF_CALL=5  # that a program may stand still where nothing is to be waited for

# --- checks ----------------------------------------------------------------------------------------
# Each is a function: it runs something with the mutation that $CUDAPOOL_MUTATION names, prints why
# it failed, and returns what it found. What it counted goes to $work/operations.

PASSED=0
FAILED=1 # the rule was seen to be broken
ERROR=2  # the check itself could not be made
HANGS=3  # the program went on without end
CRASHED=4
CANNOT=5 # not on this machine

# From the exit status of a program that says with 1 that something is wrong.
found() { # status
    case $1 in
    0) return $PASSED ;;
    1) return $FAILED ;;
    124 | 137 | 142) return $HANGS ;;
    132 | 134 | 135 | 136 | 139) return $CRASHED ;;
    *) return $ERROR ;;
    esac
}

# Random programs, one seed after the other, until one differs from its run without the pool. Seeds
# are the first ones, or all from one on and then those before it, which finds sooner what is rare.
random() { # [A-B | "from" seed]
    if [ "${1:-}" = from ]; then
        random_seeds "$2-$RANDOM_SEEDS" && random_seeds "1-$(($2 - 1))"
    else
        random_seeds "${1:-1-$RANDOM_SEEDS}"
    fi
}
random_seeds() { # A-B
    RANDOM_PRELOAD=$PRELOAD RANDOM_SECONDS=$SECONDS_OF_CALL "$BUILD/tests/random/random" \
        seeds="$1" programs=20 differences=1 explain=0 >"$work/output" 2>&1
    local status=$? why
    sed -n 's/^operations tried: \([0-9]*\).*/\1/p' "$work/output" >"$work/operations"
    why=$(sed -n 's/^FAIL seed=\([0-9]*\) program=[0-9]* after [0-9]* steps: /seed \1: /p' \
        "$work/output" | head -n 1)
    echo "${why:-$(tail -n 1 "$work/output")}"
    case $why in
    *"WITHOUT THE POOL"*) return $ERROR ;;
    *"(it hangs)"*) return $HANGS ;;
    *"killed by signal"*) return $CRASHED ;;
    esac
    [ -s "$work/operations" ] || return $ERROR
    found $status
}

# One unit test, on the driver that records what it is asked.
unit() { # program test
    timeout -k 1 $SECONDS_OF_ONE "$MUTATIONS"/tests/unit/*/"test_$1" --filter "$1/$2" --timeout \
        $SECONDS_OF_CALL >"$work/output" 2>&1
    local status=$? tested
    tested=$(sed -n 's/.*Synthesis: Tested: \([0-9]*\) .*/\1/p' "$work/output")
    sed 's/\x1b\[[0-9;]*m//g' "$work/output" | grep -m 1 -A 2 -E 'Assertion|Timed' |
        sed 's/^\[[^]]*\] *//' | tr '\n' ' '
    [ "$tested" = 1 ] || return $ERROR
    ! grep -q 'Timed out' "$work/output" || return $HANGS
    ! grep -q 'CRASH!' "$work/output" || return $CRASHED
    found $status
}

# A program on the simulated driver, with the pool; what it says goes to $work/output.
on_driver() { # variable=value ... -- program arguments
    local variables=() status
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift
    rm -f "$work/log"
    env LD_LIBRARY_PATH="$SIM" SIMCUDA_LOG="$work/log" "${variables[@]}" \
        timeout -k 1 $SECONDS_OF_CALL "$@" >"$work/output" 2>&1
    status=$?
    [ ! -e "$work/log" ] || wc -l <"$work/log" >"$work/operations"
    tail -n 1 "$work/output"
    found $status
}
on_pool() {
    on_driver "LD_PRELOAD=$PRELOAD" CUDAPOOL_REPORT=none "$@"
}

# A case of a program, perhaps under settings.
program() { # program case [settings]
    local with=SIMCUDA_DEVICES=2
    if [ -n "${3:-}" ]; then
        printf '{"version": 1, %s\n' "$(echo "${3#\{}" | tr "'" '"')" >"$work/settings.json"
        with=CUDAPOOL_CONFIG=$work/settings.json
    fi
    on_pool "$with" -- "$programs/$1" "$2"
}
memory() { program pool_memory "$@"; }
roomy() { SIMCUDA_MEMORY=16GiB memory "$@"; }
pointers() { program pool_pointers "$@"; }
contexts() { program pool_contexts "$@"; }

# Where blocks take more pages than what was asked for.
rounded_pointers() { # case
    on_pool 'CUDAPOOL_CONFIG={"version": 1, "device": {"buckets": {"policy": "pow2"}}}' \
        CUDAPOOL_REPORT=none -- "$programs/pool_pointers" "$1"
}
life() { program process_life "$@"; }

# Where other processes have the same device.
shared() { # case [memory]
    local neighbours="{'neighbours': {'leave_free': '32MiB'}}"
    rm -f "$work/device"
    SIMCUDA_SHARED=$work/device SIMCUDA_MEMORY=${2:-256MiB} program housekeeper "$1" "$neighbours"
}

# On a device that the pool may fill with what it keeps.
managed() { # case
    printf '{"version": 1, "device": {"caps": {"cached": "100%%", "reserve_ratio": 100},
        "growth_budget": "8MiB"}}\n' >"$work/settings.json"
    on_pool SIMCUDA_MEMORY=1GiB "CUDAPOOL_CONFIG=$work/settings.json" -- \
        "$programs/pool_managed" "$1"
}

# A row of the conformance suite, with the pool.
conformance() { # row
    on_pool CONFORMANCE_WITH_POOL=1 -- "$BUILD/tests/conformance/conformance" "$1" &&
        return $PASSED
    grep -m 1 '^FAIL' "$work/output"
    return $FAILED
}

# An order among streams that is easily lost: on the driver that looks for races, or an older one.
hazard() { # case [version]
    SIM=$BUILD/sim${2:+-$2} on_pool SIMCUDA_RACES=1 -- "$programs/stream_hazards" "$1"
}

# Where the device has hardly any memory.
calls() { # case
    on_pool SIMCUDA_MEMORY=40GiB -- "$programs/stream_calls" "$1"
}

# Captures that may allocate: as the program sees it, and as the race detector does.
graphs() { # case
    program graphs "$1" "{'captures': {'allocate': true}}"
}
memory_nodes() { # case
    program memory_nodes "$1" "{'captures': {'allocate': true, 'memory_nodes': 'pool'}}"
}
graph_leftovers() { # case [memory]
    SIMCUDA_MEMORY=${2:-1GiB} program graph_leftovers "$1" \
        "{'captures': {'allocate': true, 'memory_nodes': 'pool'}}"
}

graph_executables() { # case
    program graph_executables "$1" "{'captures': {'allocate': true, 'memory_nodes': 'pool'}}"
}

graph_pools() { # case
    program graph_pools "$1" "{'captures': {'allocate': true, 'memory_nodes': 'pool'}}"
}

device_scalars() { program device_scalars "$@"; }

memory_node_races() { # case
    SIMCUDA_RACES=1 program memory_node_races "$1" \
        "{'captures': {'allocate': true, 'memory_nodes': 'pool'}}"
}

graph_races() { # case
    SIMCUDA_RACES=1 program graph_races "$1" "{'captures': {'allocate': true}}"
}

pressure() { # case
    on_pool SIMCUDA_MEMORY=64MiB -- "$programs/stream_pressure" "$1"
}

roomy_pressure() { # case, on a device of the usual size
    on_pool -- "$programs/stream_pressure" "$1"
}

library() {
    echo "$programs/libinterposition_$1.so"
}

given_back_plainly() {
    cp "$(library patch)" "$work/libucm_cuda.so.0"
    on_pool -- "$programs/interposition_patched" given_back_plainly "$work/libucm_cuda.so.0"
}

has_requests() { # report
    grep -Eq '"requests": ?[1-9]' "$1" 2>/dev/null
}

bypassed() {
    on_pool -- "$programs/interposition_deepbind" "$(library deepbind)"
}

second_driver() {
    cp "$SIM/libcuda.so.1" "$work/libcuda_copy.so"
    on_pool -- "$programs/interposition_copies" "$work/libcuda_copy.so" namespace
}

own_json() {
    printf '{"version": 1}\n' >"$work/settings.json"
    on_pool "CUDAPOOL_CONFIG=$work/settings.json" -- "$programs/interposition_json" \
        "$(library json)"
}

# What others look up is what they would find without the preload object.
lookups_of_others() {
    local scope
    for scope in local global; do
        on_driver -- "$programs/interposition_scope" "$(library scope)" $scope || return $ERROR
        mv "$work/output" "$work/without"
        on_pool -- "$programs/interposition_scope" "$(library scope)" $scope || return
        diff "$work/without" "$work/output" | grep -m 1 '^>'
        cmp -s "$work/without" "$work/output" || return $FAILED
    done
}

# The pool has served a program that reached the driver in this way.
served() { # way
    on_pool "CUDAPOOL_REPORT=$work/report" -- "$programs/interposition_roundtrip" "$1" || return
    has_requests "$work/report" || return $FAILED
}

under_compute_sanitizer() {
    on_pool NV_SANITIZER_INJECTION_PORT_BASE=1 "CUDAPOOL_REPORT=$work/report" -- \
        "$programs/interposition_roundtrip" linked || return
    ! has_requests "$work/report" || return $FAILED
}

one_report_of_two() {
    on_pool "CUDAPOOL_REPORT=$work/report-%p" -- "$programs/interposition_fork" after /bin/true ||
        return
    [ "$(find "$work" -name 'report-*' | wc -l)" -eq 1 ] || return $FAILED
}

calls_made() {
    sed 's/^[0-9]* //; s/(.*//' "$work/log"
}

# A report makes no driver call.
quiet_exit() {
    on_pool -- "$programs/interposition_roundtrip" linked || return
    calls_made >"$work/without"
    on_pool "CUDAPOOL_REPORT=$work/report" -- "$programs/interposition_roundtrip" linked || return
    has_requests "$work/report" || return $ERROR
    calls_made | diff - "$work/without" || return $FAILED
}

# A program of endings.c or endings_malloc.c, all of which are to end with status 7.
ends_with_7() { # command, on the driver
    env "LD_LIBRARY_PATH=$SIM" timeout -k 1 $SECONDS_OF_CALL "$@" >"$work/output" 2>&1
    local status=$?
    echo "status $status"
    [ $status -eq 7 ] || return $FAILED
}
own_descriptor_2() {
    ends_with_7 bash -c 'exec "$@" 2>&-' - env "LD_PRELOAD=$PRELOAD" "$programs/endings" opens "$work/file" ||
        return
    [ "$(wc -l <"$work/file")" -eq 1 ] || return $FAILED
}
exit_inside_malloc() {
    ends_with_7 env "LD_PRELOAD=$PRELOAD" "$programs/endings_malloc" malloc
}
stderr_nobody_reads() {
    ends_with_7 "$programs/endings" watch full 3000 env "LD_PRELOAD=$PRELOAD" "$programs/endings" plain
}
report_in_the_background() {
    ends_with_7 "$programs/endings" watch background 3000 env "LD_PRELOAD=$PRELOAD" "$programs/endings" plain
}
report_under_a_limit() {
    # shellcheck disable=SC2016 # expanded by the shell that is run
    ends_with_7 bash -c 'ulimit -f 0; exec "$@" 2>>"$0"' "$work/stderr" env "LD_PRELOAD=$PRELOAD" \
        "$programs/endings" plain
}

# Figures of processes that are dead or about to be.
figures_cut() {
    on_pool "CUDAPOOL_FIGURES=$work" -- "$programs/figures" truncated 0 "$work/*.figures" || return $FAILED
}
figures_of_other_namespaces() {
    local runtime usual i status
    runtime=$(mktemp -d /dev/shm/cudapool-mutation-XXXXXX) || return $CANNOT
    usual=$runtime/cudapool-$(id -u)
    mkdir -m 700 "$usual"
    for i in $(seq 80); do : >"$usual/1-$i-1-0.figures"; done
    on_pool "XDG_RUNTIME_DIR=$runtime" CUDAPOOL_FIGURES= -- "$programs/figures" exit
    status=$?
    [ "$(find "$usual" -name '*.figures' | wc -l)" -le 64 ] || status=$FAILED
    rm -rf "$runtime"
    return $status
}
figures_of_a_forked_child() {
    local runtime namespace=(unshare --pid --fork --mount-proc) status=$PASSED
    runtime=$(mktemp -d /dev/shm/cudapool-mutation-XXXXXX) && "${namespace[@]}" true || return $CANNOT
    { on_pool "CUDAPOOL_FIGURES=$runtime" -- "$programs/figures" leave_child; } 2>/dev/null
    "${namespace[@]}" "$BUILD/cudapool" report "$runtime"/*.figures | grep -q '^killed' || status=$FAILED
    rm -rf "$runtime"
    return $status
}

# Figures where making a file of them would do harm: the program must not notice.
figures_on_a_full_disk() {
    local status
    mkdir "$work/full" && mount -t tmpfs -o size=16k tmpfs "$work/full" 2>/dev/null || return $CANNOT
    on_pool "CUDAPOOL_FIGURES=$work/full" "CUDAPOOL_REPORT=$work/report" -- "$programs/figures" exit
    status=$?
    umount "$work/full"
    [ $status -eq $PASSED ] && has_requests "$work/report" || return $FAILED
}
figures_under_a_limit() {
    (ulimit -f 16 && on_pool "CUDAPOOL_FIGURES=$work" -- "$programs/figures" exit) || return $FAILED
}
figures_where_others_look() {
    local runtime
    runtime=$(mktemp -d /dev/shm/cudapool-mutation-XXXXXX) || return $CANNOT
    mkdir -m 755 "$runtime/cudapool-$(id -u)"
    on_pool "XDG_RUNTIME_DIR=$runtime" CUDAPOOL_FIGURES= "AFTER_FORK=! ls '$runtime'/*/*.figures" -- \
        "$programs/figures" fork
    local status=$?
    rm -rf "$runtime"
    return $status
}

# A program that the kernel gives more rights than its caller has. Not every machine does.
more_rights() {
    # Others may not be able to look where the libraries are built.
    if ! cp "$PRELOAD" "$SIM/libcuda.so.1" "$work" ||
        ! ${CC:-cc} -D_GNU_SOURCE -I. tests/e2e/interposition_secure.c -o "$work/secure" \
            -Wl,--no-as-needed "$PRELOAD" "$SIM/libcuda.so.1" -Wl,-rpath,"$work" ||
        ! chmod -R a+rX "$work" || ! chmod u+s "$work/secure"; then
        return $ERROR
    fi
    setpriv --reuid 65534 --clear-groups env CUDAPOOL_DISABLE=1 "$work/secure" 2>"$work/stderr"
    case $? in
    0) grep -q hits "$work/stderr" || return $FAILED ;;
    *) return $CANNOT ;;
    esac
}

# --- one mutation ----------------------------------------------------------------------------------

# The words of a check; the last, where it starts with a brace, has blanks in it.
run_check() { # check
    local words settings=()
    [[ $1 != *'{'* ]] || settings=("{${1#*\{}")
    read -r -a words <<<"${1%%\{*}"
    "${words[@]}" "${settings[@]}"
}

verdicts=("passes" "fails" "cannot be made" "hangs" "crashes" "cannot be made here")

# Runs a check with a mutation on (none: with nothing broken): "VERDICT|operations|why".
try() { # mutation check
    local verdict
    work=$(mktemp -d)
    : >"$work/operations"
    CUDAPOOL_MUTATION=$1 run_check "$2" >"$work/why" 2>&1
    verdict=$?
    printf '%s|%s|%s\n' $verdict "$(head -n 1 "$work/operations")" \
        "$(tail -n 1 "$work/why" | tr '|\t' '/ ' | cut -c 1-200)"
    rm -rf "$work"
}

# Where progress is lost, a check may hang; every other one must say what is wrong.
is_caught() { # verdict check
    [ "$1" -eq $FAILED ] || { [ "$1" -eq $HANGS ] && [[ $2 == "hangs "* ]]; }
}
hangs() { "$@"; }

# Two threads need not meet at the first try, and a busy machine can make a check of times fail.
try_up_to_three_times() { # mutation check file
    local unwanted=$PASSED
    [ "$1" != none ] || unwanted=$FAILED
    for _ in 1 2 3; do
        try "$1" "$2" >"$3"
        [ "$(cut -d '|' -f 1 "$3")" -eq "$unwanted" ] || break
    done
}

# --- jobs ------------------------------------------------------------------------------------------
# Each is a process of its own. It leaves results in $RESULTS, as try() prints them: without-KEY of a
# check, with-NAME of a mutation. A file is complete once it has its name. The job says on stdout that
# it has ended.

# A check's result without a mutation is in a file of this name.
key() { # check
    printf '%s' "$1" | md5sum | cut -c 1-32
}

# A check without a mutation.
job_without() { # check
    local file
    file=$RESULTS/without-$(key "$1")
    try_up_to_three_times none "$1" "$file.new"
    mv "$file.new" "$file"
}

# Tests of one program without a mutation, in one go. Where that fails, it is for each to say.
job_without_units() { # check...
    local tests program
    program=${1% *}
    program=${program##* }
    mapfile -t tests < <(printf '%s\n' "${@##* }" | sort -u)
    if CUDAPOOL_MUTATION=none units_pass "$program" "${tests[@]}"; then
        printf '%s||\n' $PASSED >"$RESULTS/passed-$program"
        for check; do ln -s "passed-$program" "$RESULTS/without-$(key "$check")"; done
    else
        for check; do job_without "$check"; done
    fi
}
units_pass() { # program test...
    local program=$1 names tested
    shift
    names=$(printf '|%s' "$@")
    tested=$(timeout -k 1 $SECONDS_OF_ONE "$MUTATIONS"/tests/unit/*/"test_$program" \
        --filter "$program/@(${names#|})" --timeout $SECONDS_OF_CALL 2>&1 |
        sed -n 's/.*Synthesis: Tested: \([0-9]*\) | Passing: \1 .*/\1/p')
    [ "$tested" = $# ]
}

# A check with its mutation. Of random programs, the seed that differs is then run without it: no other
# seed has told anything.
job_with() { # name check
    local file=$RESULTS/with-$1 seed
    try_up_to_three_times "$1" "$2" "$file.new"
    seed=$(sed -n 's/^[^|]*|[^|]*|seed \([0-9]*\):.*/\1/p' "$file.new")
    if is_random "$2" && [ "$1" != none ]; then
        printf '%s||\n' $PASSED >"$RESULTS/without-of-$1"
        [ -z "$seed" ] || try none "random_seeds $seed-$seed" >"$RESULTS/without-of-$1"
    fi
    mv "$file.new" "$file"
}
is_random() { # check
    [[ ${1#hangs } == random || ${1#hangs } == "random "* ]]
}

if [ "${1:-}" = --job ]; then
    mapfile -t job <<<"$2"
    at_work=$RESULTS/at-work-$$
    printf '%s\n' "${job[*]:1:2}" >"$at_work"
    "job_${job[0]}" "${job[@]:1}"
    rm "$at_work"
    printf '%s\n' "${job[*]:0:2}"
    exit 0
fi

# --- all of them -----------------------------------------------------------------------------------

write_table=
if [ "${1:-}" = table ]; then
    write_table=1
    shift
fi
RESULTS=$(mktemp -d)
export RESULTS
trap 'rm -rf "$RESULTS"' EXIT
$here/apply.py list >"$RESULTS/all" || exit 2 # name|check|rule|what it does
case ${1:-} in
'') cp "$RESULTS/all" "$RESULTS/list" ;;
-*)
    $here/choose.py "$@" >"$RESULTS/names" || exit 2
    while read -r name; do grep "^$name|" "$RESULTS/all"; done <"$RESULTS/names" >"$RESULTS/list"
    ;;
*)
    for name; do
        grep "^$name|" "$RESULTS/all" || {
            echo "run.sh: no mutation is named $name; $here/*.mutations have them all" >&2
            exit 2
        }
    done >"$RESULTS/list"
    ;;
esac

# Each check without a mutation, and with each of its mutations: a job ends with a 0 byte. What takes
# long comes first, so that nothing is left over that runs alone.
jobs_to_do() {
    local program='' before='' checks=() name check
    while IFS='|' read -r name check _; do
        ! is_random "$check" || printf 'with\n%s\n%s\0' "$name" "$check"
    done <"$RESULTS/list"
    while IFS='|' read -r _ check _; do
        if is_random "$check"; then
            continue
        elif [[ $check != "unit "* ]]; then
            printf 'without\n%s\0' "$check"
            continue
        fi
        program=${check% *}
        program=${program##* }
        if [ "$program" != "$before" ] && [ ${#checks[@]} -gt 0 ]; then
            units_to_do "${checks[@]}"
            checks=()
        fi
        before=$program
        checks+=("$check")
    done < <(sed 's/^\([^|]*\)|hangs /\1|/' "$RESULTS/list" | sort -t '|' -u -k 2,2)
    [ ${#checks[@]} -eq 0 ] || units_to_do "${checks[@]}"
    while IFS='|' read -r name check _; do
        is_random "$check" || printf 'with\n%s\n%s\0' "$name" "$check"
    done <"$RESULTS/list"
}
units_to_do() {
    printf 'without_units'
    printf '\n%s' "$@"
    printf '\0'
}

count=$(wc -l <"$RESULTS/list")
passed=0
failed=0
skipped=0
say() { # ok, FAIL or skip, and what
    printf '%s %s\n' "$1" "$2"
    case $1 in
    ok) passed=$((passed + 1)) ;;
    FAIL) failed=$((failed + 1)) ;;
    skip) skipped=$((skipped + 1)) ;;
    esac
}

# A row of the table, but for its last two columns.
row() { # name check rule what
    echo "| $3 | \`$1\`: $4 | \`$2\` |"
}

# What saw it, in a word or two.
who() { # check why
    case "$1 $2" in
    "random "*"race detector"*) echo "the race detector" ;;
    "random "*"a kernel found"* | "random "*"read after"*) echo "wrong data" ;;
    "random "*) echo "the comparison" ;;
    "unit "*) echo "a counter or call" ;;
    "hangs "*) echo "a wait without end" ;;
    *) echo "the program" ;;
    esac
}

# Where there are both results of a mutation, says what they mean.
judge() { # name check rule what
    local verdict operations why without=$RESULTS/without-of-$1
    is_random "$2" || without=$RESULTS/without-$(key "${2#hangs }")
    IFS='|' read -r verdict _ why <"$without"
    if [ "$verdict" -eq $CANNOT ]; then
        say skip "$1: $2 ${verdicts[$CANNOT]}${why:+: $why}"
        grep -F " | \`$1\`: " "$table" >"$RESULTS/row-$1"
        return
    elif [ "$verdict" -ne $PASSED ]; then
        say FAIL "$1: without it, $2 ${verdicts[$verdict]}: $why"
        return
    fi
    IFS='|' read -r verdict operations why <"$RESULTS/with-$1"
    if ! is_caught "$verdict" "$2"; then
        say FAIL "$1 is not caught: $2 ${verdicts[$verdict]}: $why"
        return
    fi
    say ok "$1: $2 ${verdicts[$verdict]}${operations:+ after $operations operations}: $why"
    printf '%s %s | %s |\n' "$(row "$@")" "$(who "$2" "$why")" "${operations:-1 case}" \
        >"$RESULTS/row-$1"
    [ -n "$write_table" ] || grep -qF "$(row "$@")" "$table" ||
        say FAIL "$1 has no such row in $table; run.sh table writes it"
}

# What breaks nothing is not caught, so a check that fails for another reason would show.
judge_none() { # check
    local verdict why
    IFS='|' read -r verdict _ why <"$RESULTS/with-none"
    if [ "$verdict" -eq $PASSED ]; then
        say ok "none is not caught: $1 ${verdicts[$verdict]}: $why"
    else
        say FAIL "none: $1 ${verdicts[$verdict]}: $why"
    fi
}

# Judges whose results are there, and leaves the others in $waiting: lines as in the list.
waiting=()
judge_waiting() {
    local line name check rule what still=()
    for line in "${waiting[@]}"; do
        IFS='|' read -r name check rule what <<<"$line"
        if [ "$name" = none ]; then
            judge_none "$check"
        elif is_random "$check" || [ -e "$RESULTS/without-$(key "${check#hangs }")" ]; then
            judge "$name" "$check" "$rule" "$what"
        else
            still+=("$line")
        fi
    done
    waiting=("${still[@]}")
}

tell_progress() {
    printf '%d of %d; at work: %s\n' $((passed + failed + skipped)) "$count" \
        "$(cat "$RESULTS"/at-work-* 2>/dev/null | cut -c 1-60 | paste -s -d ';' | sed 's/;/; /g')"
}

# A line with the word tick every so many seconds, until it is killed.
tick() {
    while sleep $TELL_EVERY >/dev/null 2>&1; do echo tick; done
}

shopt -s lastpipe # what is counted in the loop stays
{
    tick &
    jobs_to_do | xargs -0 -r -n 1 -P "${JOBS:-$(nproc)}" "$here/run.sh" --job
    kill $!
} | while read -r kind name; do
    case $kind in
    tick) tell_progress ;;
    with) waiting+=("$(grep "^$name|" "$RESULTS/list")") ;;
    esac
    judge_waiting
done
[ $((passed + failed + skipped)) -ge "$count" ] || say FAIL "some of the $count have no result"

# What has not been run keeps the row that it has.
if [ -n "$write_table" ]; then
    while IFS='|' read -r name _; do
        if [ -e "$RESULTS/row-$name" ]; then
            cat "$RESULTS/row-$name"
        elif [ ! -e "$RESULTS/with-$name" ]; then
            grep -F " | \`$name\`: " "$table"
        fi
    done <"$RESULTS/all" >"$RESULTS/rows"
    cat $here/table_head.md "$RESULTS/rows" >"$table"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
