#!/usr/bin/env bash
# `cudapool try`: a program without and with the pool in turn, on the simulated driver.
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=$(realpath "${BUILD:-build}")
cudapool=$BUILD/cudapool
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
failed=0
unset LD_PRELOAD CUDAPOOL_CONFIG CUDAPOOL_REPORT CUDAPOOL_FIGURES CUDAPOOL_DISABLE
if [ -n "${SANITIZE:-}${RUN_WITH:-}" ]; then
    echo "ok try: left out, it measures"
    exit 0
fi

# What is wrong with what a command said; nothing where it is as expected.
complaint() { # status, expressions of the caller
    local got=$1 expression
    for expression in "${expressions[@]}"; do
        if [[ $expression == !* ]] && grep -Eq -- "${expression#!}" "$here/all"; then
            echo "says $expression"
            return
        elif [[ $expression != !* ]] && ! grep -Eq -- "$expression" "$here/all"; then
            echo "does not say $expression"
            return
        fi
    done
    [ "$got" -eq "$status" ] || echo "exit status $got, not $status"
}

# expect NAME STATUS EXPRESSION... -- COMMAND...: each expression must match a line of stdout or
# stderr; "!EXPRESSION" must match none. What measures is tried three times, as the machine may be
# busy.
expect() {
    local name=$1 status=$2 why expressions=()
    shift 2
    while [ "$1" != -- ]; do
        expressions+=("$1")
        shift
    done
    shift
    for _ in 1 2 3; do
        LD_LIBRARY_PATH=$BUILD/sim SIMCUDA_TIMING=1 timeout 60 "$@" >"$here/all" 2>&1 <"${input:-/dev/null}"
        why=$(complaint $?)
        [ -n "$why" ] || break
    done
    if [ -n "$why" ]; then
        echo "FAIL $name: $why: $(cat "$here/all")"
        failed=1
    else
        echo "ok $name"
    fi
}

demo=$BUILD/demo/demo
expect "a program that is faster" 0 '^  without the pool +[0-9.]+ m?s +[0-9]+ % +11\.5 MiB$' \
    '^  with the pool +[0-9.]+ m?s +[0-9]+ % +[0-9.]+ MiB$' '^[1-9][0-9]*(\.[0-9])? times as fast \(\+-[0-9]+ %\)$' \
    '^its allocations and frees of device memory took [0-9.]+ ms in the driver without the pool \(all threads together\); with it [0-9.]+ m?s' \
    '^exited with status 0 each time, and the same output$' -- "$cudapool" try -n 5 "$demo" steps=400
expect "one run of each says less" 0 'times as fast \(one run of each: -n 3 says' -- "$cudapool" try -n 1 "$demo" steps=400
expect "a program without CUDA" 0 '^no difference: no process took memory from the pool: none used CUDA' \
    '^exited with status 0 each time, and the same output$' -- "$cudapool" try -n 1 true
expect "a program that hardly allocates" 0 '^no difference: it asked for memory [0-9]+ times, which took .* nothing to gain$' -- \
    "$cudapool" try -n 1 sh -c "'$demo' steps=1; sleep 0.3"
expect "its status is compared, not taken" 0 '^exited with status 3 each time' -- "$cudapool" try -n 2 sh -c 'exit 3'
expect "so is a signal" 0 '^killed by SIGKILL each time' -- "$cudapool" try -n 1 sh -c 'kill -9 $$'

# Each run takes another time, by far.
expect "a program whose runs lie far apart" 0 '^cannot tell: runs of one kind lie up to [0-9]+ % from their middle; try again with -n 10' '!no difference' -- \
    "$cudapool" try -n 3 sh -c "echo >>'$here/runs'; '$demo' steps=50 >/dev/null; case \$(( (\$(wc -l <'$here/runs') - 1) % 7)) in 1|4|5) sleep 1;; 2|3|6) sleep 0.3;; esac"

# Programs that tell whether the pool is there; what is expanded is theirs.
# shellcheck disable=SC2016
on='case "$CUDAPOOL_CONFIG" in *"\"device\":{\"enabled\":true"*)'
expect "another output is shown" 1 '^it does something else with the pool: its output differs$' '^line 2 of its output:$' \
    '^  without +42$' '^  with +43$' '^nor is it the same with device.free_synchronizes: run it without the pool$' -- \
    "$cudapool" try -n 2 sh -c "echo a; $on echo 43;; *) echo 42;; esac"
expect "so is a missing line" 1 '^  with +\(no such line\)$' -- "$cudapool" try -n 1 sh -c "$on ;; *) echo 42;; esac"
expect "and another end" 1 '^it does something else with the pool: killed by SIGSEGV; without the pool: exited with status 0$' -- \
    "$cudapool" try -n 1 sh -c "$on kill -SEGV \$\$;; esac"
expect "frees that wait are tried" 1 \
    '^with device.free_synchronizes it is the same: .* use cudapool run --set device.free_synchronizes=true$' -- \
    "$cudapool" try -n 1 sh -c "$on case \"\$CUDAPOOL_CONFIG\" in *'\"free_synchronizes\":true'*) echo 1;; *) echo 2;; esac;; *) echo 1;; esac"
expect "they are not where they are set" 1 '!with device.free_synchronizes' -- \
    "$cudapool" try -n 1 --set device.free_synchronizes=true sh -c "$on echo 2;; *) echo 1;; esac"
# shellcheck disable=SC2016
expect "times in the output do not count" 0 'and the same output$' -- "$cudapool" try -n 2 sh -c 'echo "took $(date +%N) ns"'
# shellcheck disable=SC2016
expect "output that is never the same is not compared" 0 'output that differs from run to run without the pool, too$' -- \
    "$cudapool" try -n 2 sh -c 'tr -dc a-z </dev/urandom | head -c 40'
printf 'one\ntwo\n' >"$here/input"
# shellcheck disable=SC2016
input=$here/input expect "each run gets the input" 0 'and the same output$' -- "$cudapool" try -n 2 sh -c 'test "$(cat | wc -l)" -eq 2 && echo yes'
grep -q '^exited with status 0' "$here/all" || {
    echo "FAIL each run gets all of it: $(cat "$here/all")"
    failed=1
}
expect "settings are heeded" 0 '^advice: .* requests? of .* failed at your limit of 8 MiB' -- \
    "$cudapool" try -n 1 --set limits.device_bytes=8MiB sh -c "'$demo' >/dev/null 2>&1; true"
expect "settings that are wrong are refused" 2 'device\.growth_budget: found' -- "$cudapool" try --set device.growth_budget=x true
expect "so are other options" 2 'unknown option --report; allowed are -n NUMBER, --config FILE' -- "$cudapool" try --report x true
expect "and a number of runs" 2 '-n: found "0", allowed is a number from 1 to 1000' -- "$cudapool" try -n 0 true
expect "and no program" 2 'try: no program given' -- "$cudapool" try
expect "a program that is not there" 127 'no-such-program: No such file' -- "$cudapool" try no-such-program
expect "a signal ends it all" 2 'a signal ended the program after 0 of 3 pairs' -- "$cudapool" try sh -c 'kill -INT $$'
expect "the pool of around is no part of it" 0 'no process took memory from the pool: CUDAPOOL_DISABLE' -- \
    env CUDAPOOL_DISABLE=1 "$cudapool" try -n 1 "$demo" steps=5
exit $failed
