#!/usr/bin/env bash
# Two programs on one device, which know nothing of each other and nothing of the pool: what one has
# freed, the other gets; in other pid namespaces, without descriptors, and beside somebody who
# destroys the file in which they meet.
#
# Runs in a mount namespace with a /dev/shm of its own, where that is allowed: other processes of
# this machine meet in the same file.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

if [ -n "${RUN_WITH:-}" ]; then
    skip neighbours "processes in namespaces are beyond an emulator"
    exit 0
fi

if [ -z "${NEIGHBOURS_APART:-}" ]; then
    export NEIGHBOURS_APART=no
    if unshare -Urm sh -c 'mount -t tmpfs none /dev/shm' 2>/dev/null; then
        # shellcheck disable=SC2016 # expanded by the shell that is run
        NEIGHBOURS_APART=yes exec unshare -Urm sh -c 'mount -t tmpfs none /dev/shm && exec "$0"' "$0"
    fi
fi

program=$programs/neighbours
export SIMCUDA_MEMORY=1400MiB CUDAPOOL_REPORT=none
off='{"version": 1, "neighbours": {"enabled": false}}'
background=()

# A scenario begins with a device and files that nobody has used yet.
fresh() {
    rm -rf "$work/device" "$work"/ready* "$work/go" "$work/first" "$work/first.err" "$work/second.err"
    export SIMCUDA_SHARED=$work/device
    background=()
    bad=0
}

first() { # [variable=value ...] -- steps: in the background
    on_pool "$@" >"$work/first" 2>>"$work/first.err" &
    background+=($!)
}

second() { # the same, awaited: what it says is in $work/second
    on_pool "$@" >"$work/second" 2>>"$work/second.err" || bad=$?
}

# Ends those in the background. All must have ended well; what they have printed on stderr is a fault.
end() {
    touch "$work/go"
    for pid in "${background[@]}"; do
        wait "$pid" || bad=$?
    done
    cat "$work"/*.err
    [ "$bad" -eq 0 ] || echo "a program has ended with status $bad"
    [ "$bad" -eq 0 ] && [ ! -s "$work/first.err" ] && [ ! -s "$work/second.err" ]
}

gets() { # N: the second one, where the first one is ready
    second -- "$program" await="$work/ready" "take=$1"
}

# --- the case that all of it is about ----------------------------------------------------------------

asleep() { # steps of the first one before it is ready
    fresh
    first -- "$program" take=68 "$@" touch="$work/ready" await="$work/go"
    gets 100
    end
}
expect "what one has freed, the other gets" asleep free
expect "and what it has freed behind a kernel" asleep free_behind=700
# Past the cap it is the driver's memory pool that keeps it, and the process has nothing itself.
past_the_cap() { # steps of the first one, which has got memory in a stream's order
    fresh
    first 'CUDAPOOL_CONFIG={"version": 1, "stream_ordered": {"caps": {"cached": "1MiB"}}}' -- \
        "$program" order=45 "$@" wait=1 touch="$work/ready" await="$work/go"
    gets 120
    end
}
expect "what it frees after a pause, in a stream's order" past_the_cap sleep=3500 free_in_order
expect "and what was long pending there" past_the_cap kernel=5000 free_in_order sleep=4800
# The order of things: free, then a second in a synchronise.
waiting() {
    fresh
    first -- "$program" take=68 free touch="$work/ready" wait=1500 await="$work/go"
    gets 100
    end
}
expect "while the first one waits for a kernel" waiting

sees() {
    fresh
    first -- "$program" take=68 free touch="$work/ready" await="$work/go"
    second -- "$program" await="$work/ready" sleep=3500 see
    cat "$work/second"
    end && grep -Eq '^sees 13[89]$' "$work/second"
}
expect "which cuMemGetInfo sees before" sees

back_and_forth() {
    fresh
    for i in 1 2 3; do
        first -- "$program" take=30 free touch="$work/ready.$i" sleep=300 churn=300 sleep=500 churn=300
    done
    first -- "$program" await="$work/ready.1" await="$work/ready.2" await="$work/ready.3" sleep=200 take=100 sleep=300 free churn=300 take=80 free
    end
}
expect "four that take and free, each in its own time" back_and_forth

# Both must have it: one that does not answer, and one that does not ask.
as_before() { # setting of the first, of the second
    fresh
    first "CUDAPOOL_CONFIG=$1" -- "$program" take=68 free touch="$work/ready" await="$work/go"
    second "CUDAPOOL_CONFIG=$2" -- "$program" await="$work/ready" see try=100
    cat "$work/second"
    end && grep -Eq '^took 7[01] of 100$' "$work/second" && grep -Eq '^sees 7[01]$' "$work/second"
}
on='{"version": 1}'
expect "without neighbours.enabled it gets what is left" as_before "$off" "$off"
expect "where the first one has not got it" as_before "$off" "$on"
does_not_ask() {
    fresh
    first -- "$program" take=68 free touch="$work/ready" await="$work/go"
    second "CUDAPOOL_CONFIG=$off" -- "$program" await="$work/ready" try=100
    cat "$work/second"
    end && grep -Eq '^took 7[01] of 100$' "$work/second"
}
expect "where the second one has not got it" does_not_ask

# --- how they end -------------------------------------------------------------------------------------

killed() {
    fresh
    first -- "$program" take=68 free touch="$work/ready" await="$work/go" 2>/dev/null
    while [ ! -s "$work/ready" ]; do sleep 0.05; done
    kill -KILL "$(cat "$work/ready")"
    wait "${background[0]}"
    sed -i '/ Killed /d' "$work/first.err" # says the shell
    background=()
    gets 138
    end
}
expect "one that was killed has nothing" killed

executed() {
    fresh
    first -- "$program" take=68 free touch="$work/ready" execute
    while [ ! -s "$work/ready" ] || [ "$(cat "/proc/$(cat "$work/ready")/comm")" != sleep ]; do sleep 0.05; done
    gets 138
    kill -KILL "$(cat "$work/ready")"
    wait "${background[0]}"
    sed -i '/ Killed /d' "$work/first.err"
    background=()
    end
}
expect "nor has one that is another program now" executed

# --- descriptors --------------------------------------------------------------------------------------

closed() { # steps of the first one; of the second one
    fresh
    # shellcheck disable=SC2086 # words
    first -- "$program" $1 touch="$work/ready" await="$work/go"
    # shellcheck disable=SC2086
    second -- "$program" $2 await="$work/ready" take=100
    end
}
expect "the first one has closed all its descriptors" closed "take=68 free close" ""
expect "before it used the device's memory" closed "close take=68 free" ""
expect "the second one has" closed "take=68 free" "take=1 free close"
at_the_limit() {
    fresh
    (ulimit -n 12 && first -- "$program" take=68 free touch="$work/ready" await="$work/go" && wait) &
    background+=($!)
    gets 100
    end
}
expect "it has none to spare" at_the_limit

# --- namespaces ---------------------------------------------------------------------------------------

if unshare -pf --mount-proc true 2>/dev/null; then
    in_another_pid_namespace() { # both have pid 1 or the like
        fresh
        on_pool -- unshare -pf --mount-proc --kill-child "$program" take=68 free touch="$work/ready" \
            await="$work/go" >"$work/first" 2>>"$work/first.err" &
        background+=($!)
        on_pool -- unshare -pf --mount-proc --kill-child "$program" await="$work/ready" take=100 \
            >"$work/second" 2>>"$work/second.err" || bad=$?
        end
    }
    expect "each in a pid namespace of its own" in_another_pid_namespace
    # Then the idle time remains.
    with_another_shm() {
        fresh
        # shellcheck disable=SC2016 # expanded by the shell that is run
        on_pool 'CUDAPOOL_CONFIG={"version": 1, "device": {"release_after_idle": "1s"}}' -- \
            unshare -m sh -c 'mount -t tmpfs none /dev/shm && exec "$@"' sh \
            "$program" take=68 free touch="$work/ready" await="$work/go" >"$work/first" 2>>"$work/first.err" &
        background+=($!)
        second -- "$program" await="$work/ready" try=100 free sleep=2500 take=100
        cat "$work/second"
        end && grep -Eq '^took 7[01] of 100$' "$work/second"
    }
    expect "where they do not share /dev/shm, idle memory goes back" with_another_shm
else
    skip "pid namespaces" "they are not allowed here"
fi

# --- whoever destroys the file ------------------------------------------------------------------------

# Processes that take no more than there is for all must not notice anything.
beside() { # what is done over and over, to the file $board
    fresh
    local board end=$((SECONDS + 2))
    for _ in 1 2 3 4; do
        first -- "$program" churn=100 sleep=100 churn=100 touch="$work/ready" churn=1500
    done
    while [ ! -e "$work/ready" ]; do sleep 0.05; done
    while [ "$SECONDS" -lt "$end" ]; do
        for board in /dev/shm/cudapool-*/board-*; do
            "$1" "$board"
        done
        # One that comes later, too.
        on_pool -- "$program" churn=50 >>"$work/first" 2>>"$work/first.err" || bad=1
    done
    rm -rf /dev/shm/cudapool-*
    end
}
random_bytes() {
    dd if=/dev/urandom of="$1" bs=4096 count=$((1 + RANDOM % 200)) seek=$((RANDOM % 100)) conv=notrunc 2>/dev/null
}
all_ones() {
    tr '\0' '\377' </dev/zero | dd of="$1" bs=65536 count=64 conv=notrunc iflag=fullblock 2>/dev/null
}
all_zeros() {
    dd if=/dev/zero of="$1" bs=65536 count=64 conv=notrunc 2>/dev/null
}
truncated() {
    : >"$1"
}
cut() {
    truncate -s $((RANDOM % 100000)) "$1"
}
removed() {
    rm -rf "$(dirname "$1")"
}
a_directory() {
    rm -rf "$1" && mkdir "$1"
}
a_link() {
    rm -rf "$1" && ln -s "$work/first" "$1"
}
a_fifo() {
    rm -rf "$1" && mkfifo -m 600 "$1"
}
a_device() {
    rm -rf "$1" && ln -s /dev/full "$1"
}
somebody_elses() {
    chmod 666 "$1"
}
unreadable() {
    chmod 0 "$(dirname "$1")"
    sleep 0.2
    chmod 700 "$(dirname "$1")"
}
locked() { # every byte of it, as if all slots were taken
    timeout 1 python3 -c '
import fcntl, struct, sys, time
with open(sys.argv[1], "r+b") as file:
    try: fcntl.fcntl(file, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)) # F_OFD_SETLK
    except OSError: pass
    time.sleep(0.5)' "$1"
}

if [ "$NEIGHBOURS_APART" = yes ]; then
    # There must be something to destroy.
    expect "they meet in a file" sees
    expect "whose place is known" test -n "$(find /dev/shm -path '/dev/shm/cudapool-*/board-*' -type f)"
    for how in random_bytes all_ones all_zeros truncated cut removed a_directory a_link a_fifo \
        a_device somebody_elses unreadable locked; do
        expect "the file: $how" beside $how
    done
    # And afterwards all is as it was.
    rm -rf /dev/shm/cudapool-*
    expect "and they meet again" asleep free
else
    skip "a hostile neighbour" "no /dev/shm of its own can be had here"
fi
finish
