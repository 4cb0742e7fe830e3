#!/usr/bin/env bash
# `cudapool try`: programs without and with the pool in turn, on the simulated driver. What they do is
# in tried.c. No check is of a time: those that are about times have programs of which one kind of run
# takes a second and the other one next to nothing.
# shellcheck disable=SC2317 # what is called through check and trap
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=$(realpath "${BUILD:-build}")
cudapool=$BUILD/cudapool
tried=$BUILD/tests/e2e/tried
demo=$BUILD/demo/demo
here=$(mktemp -d)
clean_up() {
    # shellcheck disable=SC2046 # one number to a word
    kill -KILL $(cat "$here"/*.running 2>/dev/null) 2>/dev/null
    rm -rf "$here"
}
trap clean_up EXIT
failed=0
unset LD_PRELOAD CUDAPOOL_CONFIG CUDAPOOL_REPORT CUDAPOOL_FIGURES CUDAPOOL_DISABLE
if [ -n "${SANITIZE:-}${RUN_WITH:-}" ]; then
    echo "skip try: it measures, and this build is slow"
    exit 0
fi
export LD_LIBRARY_PATH=$BUILD/sim

ok() { # name
    echo "ok $1"
}
fail() { # name, why
    echo "FAIL $1: $2"
    failed=1
}
check() { # name, command
    local name=$1
    shift
    if "$@" >"$here/check" 2>&1; then ok "$name"; else fail "$name" "$(tail -n 5 "$here/check")"; fi
}

# What is wrong with what a command said; nothing where it is as expected.
complaint() { # status, file; expressions of the caller
    local got=$1 expression
    for expression in "${expressions[@]}"; do
        if [[ $expression == !* ]] && grep -Eq -- "${expression#!}" "$2"; then
            echo "says $expression"
            return
        elif [[ $expression != !* ]] && ! grep -Eq -- "$expression" "$2"; then
            echo "does not say $expression"
            return
        fi
    done
    [ "$got" -eq "$status" ] || echo "exit status $got, not $status"
}

# expect NAME STATUS EXPRESSION... -- COMMAND...: each expression must match a line of stdout or
# stderr; "!EXPRESSION" must match none.
expect() {
    local name=$1 status=$2 got why expressions=()
    shift 2
    while [ "$1" != -- ]; do
        expressions+=("$1")
        shift
    done
    shift
    rm -f "$here"/starts*
    timeout 120 "$@" >"$here/out" 2>"$here/err" <"${input:-/dev/null}"
    got=$?
    cat "$here/out" "$here/err" >"$here/all"
    why=$(complaint $got "$here/all")
    if [ -n "$why" ]; then fail "$name" "$why: $(cat "$here/all")"; else ok "$name"; fi
}
stepped=(env SIMCUDA_STEPPED=1) # the clock is the simulated driver's
number='[0-9]+(\.[0-9])?'
time="$number ([mun]?s|m [0-9]+s)"

# --- times and memory -----------------------------------------------------------------------------

expect "a program that is faster" 0 '^ +median time +\+- +least +most +peak device memory$' \
    "^  without the pool +$time +$number % +$time +$time +1\.0 MiB\$" "^  with the pool +$time +$number % +$time +$time +$number MiB\$" \
    '^[1-9][0-9]*(\.[0-9])? times as fast \(\+-[0-9]+ %\)$' \
    "^its allocations and frees of device memory took $time in the driver without the pool \(all threads together\); with it $time" \
    '^exited with status 0 each time, and the same output$' '^advice: .* requests missed' '!to gain' -- "$cudapool" try "$tried" outruns
check "says nothing of its progress where nobody looks" test ! -s "$here/err"
expect "one run of each says less" 0 '^ +wall time +peak device memory$' 'times as fast \(one run of each: -n 3 says' '!\+-' -- \
    "$cudapool" try -n 1 "$tried" outruns
expect "a program that is slower" 0 '^[1-9][0-9]* times as slow' '^what to do: leave the pool away here' \
    '^  without the pool .* 64\.0 MiB$' '^  with the pool .* 0 B$' \
    '^advice: .* requests? of .* failed at your limit of 8 MiB' -- "$cudapool" try -n 2 --set limits.device_bytes=8MiB "$tried" is_held_up
expect "peaks are the program's" 0 '^  without the pool .* 11\.5 MiB$' -- "$cudapool" try -n 2 "$demo" steps=500
expect "a program without CUDA" 0 '^no difference: no process took memory from the pool: none used CUDA' \
    '^  with the pool .* -$' '^exited with status 0 each time, and the same output$' -- "$cudapool" try -n 1 true
expect "a program that hardly allocates" 0 "^no difference in time: it asked for memory 6 times, which took $time in the driver" -- \
    "$cudapool" try -n 1 sh -c "'$demo' steps=0 >/dev/null; sleep 2"

# Its first three starts without the pool and with it take other times, by far.
expect "a program whose runs lie far apart" 0 '^cannot tell: runs of one kind lie up to [0-9]+ % from their middle; try again with -n 10' '!no difference' -- \
    env SIMCUDA_TIMING=1 "$cudapool" try -n 3 sh -c \
    "echo >>'$here/starts'; '$demo' steps=500 >/dev/null; case \$((\$(wc -l <'$here/starts') % 6)) in 2|3|4) sleep 1;; esac"

# --- what a program does with the pool ------------------------------------------------------------

same_with_waits='^with device.free_synchronizes it is the same: .* use cudapool run --set device.free_synchronizes=true$'
expect "another output is shown" 1 '^it does something else with the pool: its output differs \(5 pairs of runs\)$' '^line 2 of its output:$' \
    '^  without +it is 42$' '^  with +it is 0$' "$same_with_waits" -- "${stepped[@]}" "$cudapool" try "$tried" prints_early
expect "and another exit status" 1 '^it does something else with the pool: it ends in another way \(5 pairs of runs\)$' \
    '^  without the pool +exited with status 0 \(5 runs\)$' '^  switched off +exited with status 0 \(1 run\)$' \
    '^  with the pool +exited with status 3 \(5 runs\)$' '^  \| the result is missing$' '!times as' "$same_with_waits" -- \
    "${stepped[@]}" "$cudapool" try -n 1 "$tried" ends_early
expect "and a signal" 1 '^  with the pool +killed by SIGSEGV \(5 runs\)$' "$same_with_waits" -- "${stepped[@]}" "$cudapool" try -n 1 "$tried" crashes_early
expect "where frees wait already, they are not tried" 0 '^exited with status 0 each time, and the same output$' '!use cudapool run' -- \
    "${stepped[@]}" "$cudapool" try -n 1 --set device.free_synchronizes=true "$tried" prints_early
expect "nor are they of use to each program" 1 '^  without +a copy out of freed memory fails$' '^  with +a copy out of freed memory succeeds$' \
    '^nor is it the same with device.free_synchronizes: run it without the pool$' -- "${stepped[@]}" "$cudapool" try "$tried" uses_freed
expect "and not tried twice" 1 '!with device.free_synchronizes' '^it does something else with the pool: its output differs' -- \
    "${stepped[@]}" "$cudapool" try -n 1 --set device.free_synchronizes=true "$tried" uses_freed
expect "a missing line is shown" 1 '^  with +\(no such line\)$' -- \
    "${stepped[@]}" "$cudapool" try -n 1 sh -c "'$tried' ends_early 2>/dev/null && echo 42; true"
# What a program writes is shown without what a terminal would obey, and on one line.
# shellcheck disable=SC2016
expect "what it writes is escaped" 1 '^  without +\\x1b\[2Jit is \\u202e42$' '^  with +\\x1b\[2Jit is \\u202ea wreck$' -- "$cudapool" try -n 1 \
    sh -c 'case $LD_PRELOAD in *cudapool*) set -- "a wreck" ;; *) set -- 42 ;; esac; printf "\033[2Jit is \342\200\256%s\n" "$1"'
expect "and so is its stderr" 1 '^  \| \\x1b\[31mred \\xff\\x9b$' -- "$cudapool" try -n 1 sh -c 'printf "\033[31mred \377\233\n" >&2; exit 4'
# Without the pool's memory there is no advice about it: this one looks for the library.
# shellcheck disable=SC2016
expect "what is not the memory's doing is no reason for waits" 1 \
    '^it does not do the same with the pool switched off either: ' '!free_synchronizes' -- "$cudapool" try -n 1 sh -c 'test -z "$LD_PRELOAD"'

# --- programs that differ from themselves ---------------------------------------------------------

expect "one start fails, the fourth" 1 '^the program differs from itself, in its exit status: with the pool, and not each time$' \
    '^  without the pool +exited with status 0 \(3 runs\)$' '^  with the pool +exited with status 0 \(2 runs\), exited with status 5 \(1 run\)$' \
    '^  \| the fourth start fails$' '!something else' '!each time, and' -- "$cudapool" try "$tried" fourth "$here/starts"
expect "every other start fails" 1 '^the program differs from itself, in its exit status' \
    '^  with the pool +exited with status 6 \(1 run\), exited with status 0 \(1 run\)$' '!something else' '!use cudapool run' -- \
    "$cudapool" try -n 2 "$tried" alternates "$here/starts"
expect "and where that looks like the pool's doing, more pairs tell" 1 '^the program differs from itself, in its exit status' \
    '!something else' '!use cudapool run' -- "$cudapool" try -n 1 "$tried" alternates "$here/starts"
# shellcheck disable=SC2016
expect "whose exit status is drawn by lot, without CUDA" 1 '^the program differs from itself, in its exit status: that says nothing about the pool$' \
    '!free_synchronizes' '!something else' -- \
    "$cudapool" try -n 2 sh -c 'echo >>"$0"; case $(wc -l <"$0") in 1|3|4) exit 1;; esac' "$here/starts"
expect "a first start that is different" 0 '^the program differs from itself, in its output' '^  without +a cache is there$' \
    '^  switched off +a cache is made$' -- "$cudapool" try -n 2 "$tried" first "$here/starts"
expect "is not looked at after a warm-up" 0 '^exited with status 0 each time, and the same output$' -- \
    "$cudapool" try -n 2 --warm-up 3 "$tried" first "$here/starts"
check "three runs warm up before five" test "$(stat -c %s "$here/starts")" -eq 8
expect "times in the output do not count" 0 'and the same output$' -- "$cudapool" try -n 2 "$demo" steps=500
expect "output that is never the same says nothing" 0 '^the program differs from itself, in its output: that says nothing about the pool$' \
    '!something else' -- "$cudapool" try -n 2 sh -c "'$tried' uses_freed >/dev/null; tr -dc a-z </dev/urandom | head -c 40"
# Each run has a file for its output, and one for its errors.
expect "many runs need few files" 0 '^exited with status 0 each time' -- sh -c "ulimit -n 40; exec '$cudapool' try -n 30 true"

# --- programs that fail ---------------------------------------------------------------------------

expect "a program that fails each time" 1 '^cudapool: try: the program failed in each of its 5 runs: exited with status 3$' \
    '^its stderr ended so:$' '^  \| two$' '^  \| this is why$' '!each time' -- "$cudapool" try -n 2 "$tried" fails
check "is told of on stderr" test ! -s "$here/out"
expect "so is one that a signal kills" 1 'failed in each of its 3 runs: killed by SIGKILL$' -- "$cudapool" try -n 1 sh -c 'kill -9 $$'
expect "a signal of its own is no other end" 1 'failed in each of its 3 runs: killed by SIGINT$' -- "$cudapool" try -n 1 sh -c 'kill -INT $$'
expect "a program that is not there" 127 'no-such-program: No such file' -- "$cudapool" try no-such-program
expect "not even to warm up" 127 'no-such-program: No such file' -- "$cudapool" try --warm-up 1 no-such-program
expect "one that is none" 126 'configs: Permission denied' -- "$cudapool" try ./configs

# --- input and settings ---------------------------------------------------------------------------

printf 'one\ntwo\n' >"$here/input"
# shellcheck disable=SC2016
input=$here/input expect "each run gets all of the input" 0 'and the same output$' -- "$cudapool" try -n 2 sh -c 'test "$(cat | wc -l)" -eq 2'
expect "settings that are wrong are refused" 2 'device\.growth_budget: found' -- "$cudapool" try --set device.growth_budget=x true
expect "so are other options" 2 'unknown option --report; allowed are -n NUMBER, --warm-up NUMBER, --json FILE, --config FILE' -- "$cudapool" try --report x true
expect "and a number of runs" 2 '-n: found "0", allowed is a number from 1 to 1000' -- "$cudapool" try -n 0 true
expect "and one of warm-ups" 2 '--warm-up: found "few", allowed is a number from 0 to 1000' -- "$cudapool" try --warm-up few true
expect "and no program" 2 'try: no program given' -- "$cudapool" try
expect "the pool of around is no part of it" 0 'no process took memory from the pool: CUDAPOOL_DISABLE' -- \
    env CUDAPOOL_DISABLE=1 "$cudapool" try -n 1 "$demo" steps=500

# --- JSON -----------------------------------------------------------------------------------------

# The value of a key of the first level, or of one of its objects.
value() { # key
    sed -nE "s/^ {2,4}\"$1\": (.*[^,]),?\$/\\1/p" "$here/json" | head -n 1
}
says() { # key, value
    check "JSON: $1 is $2" test "$(value "$1")" = "$2"
}
expect "JSON of a program that differs" 1 '^it does something else with the pool' -- \
    "${stepped[@]}" "$cudapool" try -n 1 --json "$here/json" "$tried" ends_early
for line in 'cudapool_try 1' 'pairs 5' 'result "differs_with_pool"' 'free_synchronizes "same"' 'took_memory true' \
    'speed "not_compared"' 'stopped_by null' 'peak_requested_bytes 1048576' 'peak_reserved_bytes 1048576'; do
    says "${line% *}" "${line##* }"
done
check "JSON: it differs in its end" grep -Eq '^    "end"$' "$here/json"
check "JSON: five runs end with 3" test "$(grep -c '^ *"exit_status": 3,$' "$here/json")" -eq 5
check "JSON: six with 0" test "$(grep -c '^ *"exit_status": 0,$' "$here/json")" -eq 6
expect "JSON of one that is faster" 0 'times as fast' -- "$cudapool" try -n 2 --json "$here/json" "$tried" outruns
for line in 'result "same"' 'speed "faster"' 'free_synchronizes null' 'pairs 2' 'requests 120'; do says "${line% *}" "${line##* }"; done
check "JSON: its factor is large" awk -v factor="$(value factor)" 'BEGIN { exit !(factor > 1) }'
check "JSON: its times are in order" awk -v least="$(value least_seconds)" -v median="$(value median_seconds)" \
    -v most="$(value most_seconds)" 'BEGIN { exit !(0 < least && least <= median && median <= most) }'
check "JSON: it has the advice" grep -q '"rule": "most_requests_miss"' "$here/json"
expect "JSON of one that fails" 1 'failed in each' -- "$cudapool" try -n 1 --json "$here/json" "$tried" fails
says result '"fails"'
expect "JSON on stdout" 1 '^  "result": "differs_with_pool",$' -- "$cudapool" try -n 1 --json - "$tried" uses_freed
check "is alone there" test "$(head -n 1 "$here/out") $(tail -n 1 "$here/out")" = "{ }"
check "and the words are on stderr" grep -q '^it does something else with the pool' "$here/err"
if command -v python3 >/dev/null; then check "and is JSON" python3 -m json.tool "$here/out"; fi
for bad in "$here/no/directory" "$here"; do
    expect "a place for it that cannot be written: ${bad#"$here"}" 2 "^cudapool: $bad: cannot be written" -- \
        "$cudapool" try --json "$bad" "$tried" first "$here/starts"
    check "is found before the first run" test ! -e "$here/starts"
done
expect "where the disk is full the table is there" 1 '^  with the pool' '/dev/full: cannot be written' -- \
    "$cudapool" try -n 1 --json /dev/full true
check "no file is left half-written" test -z "$(find "$here" -name '*.tmp')"

# --- signals --------------------------------------------------------------------------------------

# A command with its own group and the signals' own actions, as a terminal's shell starts it.
start() { # command
    rm -f "$here"/starts*
    set -m
    "$@" >"$here/out" 2>"$here/err" </dev/null &
    set +m
    command=$!
}
soon() { # command: it holds within 30 seconds
    local tries=0
    until "$@" 2>/dev/null; do
        [ $((tries += 1)) -le 600 ] || return 1
        sleep 0.05
    done
}
has_gone() { # process number
    ! grep -qs '^State:[[:space:]][^ZX]' "/proc/$1/status"
}
# The fourth start waits with a child of its own; these signals end it all. What was said is in $here.
ends_by() { # case, status, signal...
    local case=$1 status=$2 signal got numbers
    shift 2
    start "$cudapool" try --json "$here/json" "$tried" "$case" "$here/starts"
    soon test -e "$here/starts.running" || fail "$case is waited for" "$(cat "$here/out" "$here/err")"
    numbers=$(cat "$here/starts.running")
    for signal in "$@"; do kill -"$signal" "$command"; done
    wait "$command"
    got=$?
    check "$* ends it with $status" test "$got" -eq "$status"
    for number in $numbers; do check "$*, $case: no process is left" soon has_gone "$number"; done
    rm -f "$here/starts.running"
}
ends_by waits 143 TERM
check "the pair that is done is shown" grep -q '^  with the pool' "$here/out"
check "as well as what ended it" grep -q '^cudapool: try: SIGTERM ended it after 1 of 3 pairs of runs$' "$here/err"
says pairs 1
says stopped_by 15
ends_by waits 130 INT
check "that is done is shown" grep -q '^exited with status 0 each time' "$here/out"
ends_by is_deaf 130 INT TERM
start sh -c "tail -f /dev/null | exec '$cudapool' try true"
check "input without an end is told of" soon grep -q 'reading stdin to its end' "$here/err"
kill -TERM -- "-$command"
wait "$command"
start sh -c "trap '' HUP; exec '$cudapool' try '$tried' waits '$here/starts'"
soon test -e "$here/starts.running"
kill -HUP "$command"
kill -TERM "$command"
wait "$command"
check "a signal that is ignored ends nothing" test $? -eq 143
exit $failed
