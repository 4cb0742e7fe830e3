#!/usr/bin/env bash
# `cudapool trim`, and what `cudapool top` shows of the board: asked are processes that only say they cache
# something (neighbour.c), and programs with the pool on the simulated driver.
# shellcheck disable=SC2317 # what traps and tests call
set -u
# All processes of a user are on one board, those of other tests as well: only where /dev/shm can be one of
# this test's own, all of them are asked. Elsewhere those of one device are.
if [ -z "${ALONE:-}" ]; then
    export ALONE=no
    # shellcheck disable=SC2016 # for the shell that is alone
    if unshare --mount mount -t tmpfs tmpfs /dev/shm 2>/dev/null; then
        ALONE=yes exec unshare --mount sh -c 'mount -t tmpfs tmpfs /dev/shm && exec "$0"' "$0"
    fi
fi
# shellcheck source=tests/e2e/interposition_lib.sh
. "$(dirname "$0")/interposition_lib.sh"

if [ -n "${RUN_WITH:-}" ]; then
    skip trim "the command is for another processor"
    exit 0
fi
cudapool=$BUILD/cudapool
runtime=$(mktemp -d /dev/shm/cudapool-test-XXXXXX) || {
    skip trim "there is no /dev/shm"
    exit 0
}
export XDG_RUNTIME_DIR=$runtime
unset CUDAPOOL_FIGURES CUDAPOOL_REPORT CUDAPOOL_CONFIG
seconds=600 # that the processes which are asked may take
clean_up() {
    # shellcheck disable=SC2046 # one number to a word
    kill -KILL $(cat "$work"/pid.* 2>/dev/null) 2>/dev/null
    rm -rf "$work" "$runtime"
}
trap clean_up EXIT

# A device that no other test has.
device=$(printf '%08x' $$)
declare -A begun # by name: what has started it
start() { # name, arguments; its number goes to $work/pid.NAME and to $pid
    local name=$1 tries=0
    begun[$name]=${*@Q}
    begun[$name]="start ${begun[$name]}"
    shift
    rm -f "$work/ready.$name" # an earlier one's
    "$programs/neighbour" "uuid=$device" "$@" >"$work/ready.$name" 2>"$work/stderr.$name" &
    disown
    until grep -q ready "$work/ready.$name" 2>/dev/null; do
        [ $((tries += 1)) -le 500 ] || { fail "a process starts" "$(cat "$work/stderr.$name")"; return 1; }
        sleep 0.01
    done
    pid=$(sed -n 's/^ready //p' "$work/ready.$name")
    echo "$pid" >"$work/pid.$name"
}
# A killed process may live on for a moment, and answers then.
await_death() { # pid
    while [ -e "/proc/$1" ] && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null; do
        sleep 0.01
    done
}
end() { # name...
    local name old
    for name in "$@"; do
        old=$(cat "$work/pid.$name")
        kill -KILL "$old"
        await_death "$old"
        rm "$work/pid.$name"
    done
}
SLOW="no answer within 100 ms" # an answer as well, of who was not scheduled for as long on a slow machine
# Those that are named there are there anew, and what names them is in $named.
start_anew() { # where their numbers are...
    local name old
    named=("$@")
    for name in "${!begun[@]}"; do
        [ -e "$work/pid.$name" ] || continue
        old=$(cat "$work/pid.$name")
        [[ " ${named[*]} " =~ [^0-9a-f]${old}[^0-9a-f] ]] || continue
        end "$name"
        eval "${begun[$name]}"
        named=("${named[@]//$old/$pid}")
    done
}
# says NAME STATUS LINE... -- ARGUMENTS of trim: its exit status, and each line of its stdout. Others are
# asked instead of those that are slow, five times at most.
says() {
    local name=$1 wanted=$2 lines=() status tries=0 named
    shift 2
    named=("$@")
    while :; do
        lines=()
        while [ "$1" != -- ]; do
            lines+=("$1")
            shift
        done
        shift
        "$cudapool" trim "$@" >"$work/said" 2>"$work/stderr"
        status=$?
        if [[ ${lines[*]} == *"$SLOW"* ]] || ! grep -q "$SLOW" "$work/said" || [ $((tries += 1)) -ge 5 ]; then
            break
        fi
        start_anew "${named[@]}"
        set -- "${named[@]}"
    done
    if [ $status -ne "$wanted" ]; then
        fail "$name" "exit status $status: $(cat "$work/said" "$work/stderr")"
    elif [ -s "$work/stderr" ]; then
        fail "$name" "$(cat "$work/stderr")"
    else
        expect_lines "$name" "$work/said" "${lines[@]}"
    fi
}
complains() { # name, what, arguments
    local name=$1 what=$2 status
    shift 2
    "$cudapool" trim "$@" >"$work/said" 2>"$work/stderr"
    status=$?
    if [ $status -ne 2 ] || [ -s "$work/said" ]; then
        fail "$name" "exit status $status: $(cat "$work/said")"
    else
        expect_lines "$name" "$work/stderr" "cudapool: trim: $what"
    fi
}

# --- what it takes ---------------------------------------------------------------------------------------

complains "no number" 'process: found "x1", allowed is a number from 1 to 2147483647' x1
complains "no number of a process" 'process: found "0", allowed is a number from 1 to 2147483647' 0
complains "too large a number" 'process: found "2147483648", allowed is .*' 2147483648
complains "a number that nobody has" 'no process 2147483647 of yours is on the pool' 2147483647
complains "one process and all" 'found "1" with --all; allowed is one of them' --all 1
complains "an unknown option" 'unknown option --fast; allowed are --all, --device DEVICE and --wait SECONDS' --fast
complains "a device without a number" 'a value is missing after --device; .*' --device
complains "a device that is none" '--device: found "GPU0", allowed is a number, or the beginning of a UUID such as .*' \
    --device GPU0
complains "half a UUID" '--device: found "GPU-", allowed is .*' --device GPU-
complains "no time" '--wait: found "soon", allowed is a number of seconds from 0 to 10' --wait soon
complains "too long a time" '--wait: found "11", allowed is .*' --wait 11
complains "a time in the past" '--wait: found "-1", allowed is .*' --wait=-1

# --- one process ---------------------------------------------------------------------------------------------

nobody() {
    [ "$ALONE" = yes ] || return 0
    says "nobody to ask" 0 'No process of yours is on the pool\.' -- "$@"
}
nobody
nobody --all

start one cached=13207024640 held=14000000000
one=$pid
command="neighbour uuid=$device"
says "a process gives back what it caches" 0 "$one $command .*: 12\.3 GiB back" -- "$one"
one=$pid
says "and then has nothing" 0 "$one $command .*: nothing to give back" -- "$one"
end one
complains "one that has ended is not there" "no process $one of yours is on the pool" "$one"

start one cached=1048576 pending=2147483648 after=300
says "what is pending is waited for" 0 "$pid $command .*: 2\.0 GiB back" -- "$pid"
end one
start one cached=1073741824 pending=2147483648 after=60000
says "as long as is wished for" 0 "$pid $command .*: 1\.0 GiB back, 2\.0 GiB still in use by the GPU" -- --wait 0.3 "$pid"
end one
start one pending=2147483648 after=60000
says "also where nothing else comes back" 0 "$pid $command .*: nothing back, 2\.0 GiB still in use by the GPU" -- \
    --wait 0 "$pid"
end one

# --- one that does not answer -------------------------------------------------------------------------------

start silent cached=1073741824 silent
says "one that is silent" 1 "$pid $command .*: keeps 1\.0 GiB: no answer within 100 ms" -- "$pid"
end silent
start stopped cached=1073741824
kill -STOP "$pid"
says "one that is stopped" 1 "$pid $command .*: keeps 1\.0 GiB: no answer, it is stopped" -- "$pid"
end stopped
start deaf cached=1073741824 deaf
says "one in which nobody listens" 1 "$pid $command .*: keeps 1\.0 GiB: it has no thread to answer with" -- "$pid"
end deaf
start deaf cached=1048576 deaf
says "one which keeps too little for that" 0 "$pid $command .*: keeps 1\.0 MiB: too little to be asked for" -- "$pid"
end deaf
start deaf deaf
says "or nothing" 0 "$pid $command .*: nothing to give back" -- "$pid"
end deaf

# Programs with the pool.
pool() { # name, variables: as start
    local name=$1 tries=0
    begun[$name]=${*@Q}
    begun[$name]="pool ${begun[$name]}"
    shift
    rm -f "$work/ready.$name"
    on_pool CUDAPOOL_REPORT=none "$@" -- "$programs/figures" wait >"$work/ready.$name" 2>/dev/null &
    disown
    until grep -q ready "$work/ready.$name" 2>/dev/null; do [ $((tries += 1)) -le 500 ] || return 1; sleep 0.01; done
    pid=$(sed -n 's/^ready //p' "$work/ready.$name")
    echo "$pid" >"$work/pid.$name"
}
pool off 'CUDAPOOL_CONFIG={"version": 1, "neighbours": {"enabled": false}}'
says "one whose neighbours are off" 1 "$pid figures wait: keeps 32\.0 MiB: neighbours\.enabled is false there" -- "$pid"
"$cudapool" top --count 1 "$pid" >"$work/top"
expect "which top calls alone" grep -Eq "^ +$pid .* alone  .*figures wait" "$work/top"
end off

pool one 'CUDAPOOL_CONFIG={"version": 1, "limits": {"group": "jobs", "group_bytes": "1GiB"}}'
"$cudapool" top --count 1 "$pid" >"$work/top"
expect "one of a group is shown so" grep -Eq "^ +$pid +- +jobs .*figures wait" "$work/top"
says "a program with the pool gives back what it caches" 0 "$pid figures wait: 32\.0 MiB back" -- "$pid"
says "and then has nothing" 0 "$pid figures wait: nothing to give back" -- "$pid"
end one
pool one
kill -STOP "$pid"
says "one that is stopped keeps it" 1 "$pid figures wait: keeps 32\.0 MiB: no answer, it is stopped" -- "$pid"
kill -CONT "$pid"
says "until it goes on" 0 "$pid figures wait: (32\.0 MiB back|nothing to give back)" -- "$pid"
end one
if [ "$ALONE" = yes ]; then
    pool one "SIMCUDA_SHARED=$work/memory"
    one=$pid
    pool two "SIMCUDA_SHARED=$work/memory"
    says "those of a device, by its number" 0 "($one|$pid) .*: 32\.0 MiB back" "($one|$pid) .*: 32\.0 MiB back" \
        '2 processes: 6[0-9]\.0 MiB back' -- --device 0
    pool three
    complains "a number that is not the same device for all" \
        '--device: "0" is not the same device for all processes: found GPU-[0-9a-f-]+ and GPU-[0-9a-f-]+; allowed is .*' --device 0
    end one two three
fi

# --- several --------------------------------------------------------------------------------------------------

start one cached=1073741824
one=$pid
start two cached=2147483648
two=$pid
start silent cached=1073741824 silent
silent=$pid
sum='3\.0 GiB back'
says "several by their numbers" 0 "$one .*: 1\.0 GiB back" "$two .*: 2\.0 GiB back" "2 processes: $sum" -- "$one" "$two"
end one two
start one cached=1073741824
start two cached=2147483648 pending=1073741824 after=60000
start other "uuid=ffff$device" cached=1073741824
trim_device() {
    local tries=0
    while :; do
        "$cudapool" trim --wait 0 --device "GPU-${device^^}" >"$work/said"
        [ $? -eq 1 ] || return 1
        # One of them is silent.
        if [ "$(grep -c "$SLOW" "$work/said")" -le 1 ] || [ $((tries += 1)) -ge 5 ]; then return 0; fi
        start_anew "$(cat "$work/pid.one")" "$(cat "$work/pid.two")"
    done
}
expect "those of a device" trim_device
expect "all of them" test "$(grep -c '^[0-9]* neighbour ' "$work/said")" -eq 3
expect "with a sum" grep -q '^3 processes: 3\.0 GiB back, 1\.0 GiB still in use by the GPU$' "$work/said"
expect "and one that is silent" grep -q "^$silent .*: no answer within 100 ms$" "$work/said"
says "what others have stays" 0 '.*: 1\.0 GiB back' -- --device "GPU-ffff${device:0:4}" "$(cat "$work/pid.other")"
start blank uuid=00000000 cached=1073741824
complains "a device whose UUID nobody knows" '--device: found "GPU-00000000", and no process has memory there' \
    --device GPU-00000000
end blank
complains "a device that nobody has" '--device: found "GPU-fe", and no process has memory there' --device GPU-fe
if [ "$ALONE" = yes ]; then
    complains "a number that is no device's" '--device: found "7", and no process has memory there' --device 7
    end one two silent other
    start other "uuid=ff$device" cached=1073741824
    for i in $(seq 1 20); do start "many$i" cached=1073741824 "group=g$i"; done
    for all in '' --all; do
        # shellcheck disable=SC2086 # one word, or none
        "$cudapool" trim $all >"$work/said"
        expect "all of them are asked, more than at a time${all:+, $all}" test "$(grep -c '^[0-9]* neighbour' "$work/said")" -eq 21
    done
    end other
    for i in $(seq 1 20); do end "many$i"; done
    start silent cached=1073741824 silent
    for i in $(seq 1 20); do start "silent$i" cached=1073741824 silent; done
    began=$(date +%s%N)
    "$cudapool" trim >"$work/said"
    expect "silent ones do not take long" test $((($(date +%s%N) - began) / 1000000)) -lt 1500
    expect "and are named" test "$(grep -c 'no answer within 100 ms$' "$work/said")" -eq 21
    for i in '' $(seq 1 20); do end "silent$i"; done
else
    end one two silent other
fi

# In other pid namespaces a number is there more than once, and each is asked on its own.
elsewhere() { # name, arguments
    local name=$1 tries=0
    shift
    rm -f "$work/ready.$name" # an earlier one's
    unshare --pid --fork --mount-proc --kill-child "$programs/neighbour" "uuid=$device" "$@" >"$work/ready.$name" 2>&1 &
    echo $! >"$work/pid.$name"
    disown
    until grep -q ready "$work/ready.$name" 2>/dev/null; do [ $((tries += 1)) -le 500 ] || return 1; sleep 0.01; done
}
if [ -z "$SANITIZE" ] && unshare --pid --fork --mount-proc true 2>/dev/null && elsewhere far1 cached=1073741824; then
    elsewhere far2 cached=2147483648
    for _ in 1 2 3 4 5; do
        "$cudapool" trim --device "GPU-$device" >"$work/said"
        grep -q "$SLOW" "$work/said" || break
        end far1 far2
        elsewhere far1 cached=1073741824
        elsewhere far2 cached=2147483648
    done
    sort "$work/said" >"$work/sorted"
    expect_lines "processes of other pid namespaces are told apart" "$work/sorted" '1 \?: 1\.0 GiB back' \
        '1 \?: 2\.0 GiB back' '2 processes: 3\.0 GiB back'
    end far1 far2
fi

# --- top -----------------------------------------------------------------------------------------------------

top() { # arguments; the table goes to $work/top
    "$cudapool" top --count 1 "$@" >"$work/top" 2>&1
}
shows() { # expression...
    has_lines "$work/top" "$@"
}
start one cached=1073741824 pending=2147483648 held=4294967296 group=jobs
expect "top shows a process that has no figures" top "$pid"
expect "with what the board says of it" shows ': 1 process on the pool' '^ +process +rank +group .* neighbours  command$' \
    "^ +$pid +- +jobs +- +- +- +- +1\.0 GiB +1\.0 GiB +2\.0 GiB +- +- +-  .*/neighbour"
one=$pid
start two cached=3221225472
expect "top shows one of no group" top "$pid"
expect "of which is not known what it uses" shows "^ +$pid +- +- +- +- +- +- +- +3\.0 GiB +0 B +- +- +-  .*/neighbour"
start three cached=1024 asks=1073741824
expect "top shows one that is out of memory" top "$pid"
expect "and asks others" shows "^ +$pid .* 1\.0 KiB +0 B +- +- +asks  "
if [ "$ALONE" = yes ]; then
    on_pool CUDAPOOL_REPORT=none CUDAPOOL_FIGURES="$runtime" -- "$programs/figures" wait >"$work/ready.pool" 2>/dev/null &
    until grep -q ready "$work/ready.pool" 2>/dev/null; do sleep 0.01; done
    sed -n 's/^ready //p' "$work/ready.pool" >"$work/pid.pool"
    expect "top shows all" top --sort cached
    expect "sorted by what they cache" test "$(awk '$1 ~ /^[0-9]+$/ { print $1 }' "$work/top" | head -n 2 | tr '\n' ' ')" = \
        "$(cat "$work/pid.two") $one "
    end pool
    top "$runtime"
    expect "in a directory it shows who has figures there" shows ': 0 processes'
fi
end one two three
finish
