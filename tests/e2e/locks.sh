#!/usr/bin/env bash
# Locks taken between a free and an allocation (tests/gpu/locks.c), on the simulated driver: what
# finishes on the plain driver finishes with the pool, soon, and with the same result.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

locks=$BUILD/tests/gpu/locks
seconds=60
# A build with a sanitizer takes its time.
slower=1
[ -z "$SANITIZE" ] || slower=5

# The program itself says where it hangs.
limit=seconds=$((${SECONDS_EACH:-8} * slower))

milliseconds() { # the program's output
    sed -nE 's/^locks: ([0-9]+)\.?[0-9]* ms.*/\1/p' "$1"
}

result() { # the program's output
    sed -nE 's/^locks: [0-9.]+ ms, //p' "$1"
}

number() { # name, the program's output
    sed -nE "s/^$1: ([0-9]+).*/\1/p" "$2"
}

# Runs the program without and with the pool. False, with a word on it, unless both finish with one
# result, the pool within the milliseconds.
runs_alike() { # milliseconds, variable=value..., --, argument...
    local most=$(($1 * slower)) variables=()
    shift
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift
    # Most of what they do is wait: beside each other they take half the time.
    on_driver "${variables[@]}" -- "$locks" "$@" "$limit" >"$work/plain" 2>&1 &
    on_pool CUDAPOOL_REPORT=none "${variables[@]}" -- "$locks" "$@" "$limit" >"$work/pool" 2>&1 || {
        wait $!
        tail -n 1 "$work/pool"
        return 1
    }
    wait $! || {
        echo "without the pool: $(tail -n 1 "$work/plain")"
        return 1
    }
    times="plain $(milliseconds "$work/plain") ms, pool $(milliseconds "$work/pool") ms"
    if [ "$(result "$work/plain")" != "$(result "$work/pool")" ]; then
        echo "$(result "$work/plain"), and with the pool: $(result "$work/pool")"
        return 1
    fi
    [ "$(milliseconds "$work/pool")" -le $(($(milliseconds "$work/plain") + most)) ] || {
        echo "$times"
        return 1
    }
}

alike() { # name, and as runs_alike
    local name=$1 why
    shift
    times=
    if runs_alike "$@" >"$work/why"; then
        ok "$name ($times)"
    else
        why=$(cat "$work/why")
        fail "$name" "$why"
    fi
}

# What is known, when it is submitted, to end only if somebody acts is waited for by no allocation.
# Of a kernel nobody can know: once that costs a second, and then the frees wait.
known=800
unknown=2500

spare=SIMCUDA_MEMORY=64GiB
for wait in nothing host_function callback host_function_ptsz callback_ptsz captured_node \
    added_node child_node value value64 batch value_v1 batch_v1 captured_value batch_node semaphore \
    semaphore_node; do
    alike "$wait, memory to spare" $known $spare -- wait=$wait
    alike "$wait, memory to spare, 4 threads" $known $spare -- wait=$wait threads=4 least_mib=64 \
        most_mib=64
done
alike "kernel, memory to spare" $unknown $spare -- wait=kernel
alike "kernel, memory to spare, 4 threads" $unknown $spare -- wait=kernel threads=4 least_mib=64 \
    most_mib=64
stalled() { # what the program waits for: how many waits had no result for a second, by the report
    on_pool CUDAPOOL_REPORT="$work/stalled.json" $spare -- "$locks" wait="$1" "$limit" >"$work/output" 2>&1
    sed -nE 's/.*"stalled_waits": ([0-9]+).*/\1/p' "$work/stalled.json"
}
expect "the report counts that wait" [ "$(stalled kernel)" -ge 1 ]
expect "and none beside what is known" [ "$(stalled host_function)" -eq 0 ]

# Before cuCtxRecordEvent.
SIM=$BUILD/sim-12.4
for wait in host_function callback added_node value kernel; do
    alike "$wait, an older driver" $unknown $spare -- wait=$wait
    alike "$wait, an older driver, memory short" $unknown SIMCUDA_MEMORY=2GiB -- wait=$wait \
        leave_mib=512 least_mib=256 most_mib=256 call_mib=480
done
SIM=$BUILD/sim

# What is pending is missed: the room that is left is less than what is wanted under the lock.
for wait in host_function callback added_node value kernel; do
    alike "$wait, memory short" $unknown SIMCUDA_MEMORY=2GiB -- wait=$wait leave_mib=512 \
        least_mib=256 most_mib=256 call_mib=480
    alike "$wait, memory short, 4 threads" $unknown SIMCUDA_MEMORY=2GiB -- wait=$wait threads=4 \
        leave_mib=512 least_mib=64 most_mib=64
done
alike "host_function, room for one block" $known SIMCUDA_MEMORY=2GiB -- leave_mib=256 \
    least_mib=256 most_mib=256

# Every call that takes memory, with other work than kernels before it and with a kernel.
for wait in host_function kernel; do
    for call in alloc pitch managed async from_pool array array3d mipmapped physical host; do
        alike "$call under the lock that a $wait needs" $unknown SIMCUDA_MEMORY=2GiB -- wait=$wait \
            call=$call leave_mib=512 least_mib=256 most_mib=256 call_mib=480
    done
    for call in context module library graph stream; do
        alike "$call under the lock that a $wait needs" $unknown SIMCUDA_MEMORY=4GiB \
            SIMCUDA_OVERHEAD=480MiB -- wait=$wait call=$call leave_mib=512 least_mib=256 most_mib=256
    done
done

# What waits by itself, under the lock: the free before it must have waited for what is known.
for wait in host_function callback added_node value; do
    for call in free synchronize stream_synchronize; do
        alike "$call under the lock that a $wait needs" $known $spare -- wait=$wait call=$call
        alike "$call under the lock that a $wait needs, little memory" $known $spare -- wait=$wait \
            call=$call least_mib=1 most_mib=1
    done
done
# Of a kernel nothing can be known. Who then synchronises under the lock leans on the free's wait,
# which is a stated limit; another free must end.
alike "free under the lock that a kernel needs" $unknown $spare -- wait=kernel call=free

two=SIMCUDA_DEVICES=2
alike "large blocks of which there is room for one" $unknown SIMCUDA_MEMORY=16GiB -- \
    case=large_blocks rounds=5
alike "a second device's context under the lock" $unknown SIMCUDA_MEMORY=16GiB $two -- \
    case=second_device rounds=5
# With barriers this one waits for the kernel: nothing else can order another process's work.
alike "memory exported under the lock" $unknown SIMCUDA_MEMORY=16GiB \
    'CUDAPOOL_CONFIG={"version": 1, "device": {"barriers": false}}' -- case=exported_memory rounds=5
alike "a host function that takes its time, after a vain wait" $unknown SIMCUDA_MEMORY=16GiB -- \
    case=slow_host_function rounds=2
alike "a kernel that runs on on another device" $known SIMCUDA_MEMORY=16GiB $two -- \
    case=another_device

# Kernels of more than a second in 8 threads: at most as long as without the pool, where each free
# waits for all of them.
long_kernels=(case=long_kernels threads=8 kernel_ms=1100)
on_pool CUDAPOOL_REPORT=none CUDAPOOL_CONFIG='{"version": 1, "device": {"reserve_floor": 0}}' $spare -- \
    "$locks" "${long_kernels[@]}" least_mib=16 most_mib=128 rounds=6 seconds=60 >"$work/long_kernels" 2>&1 &
limit=seconds=60 alike "kernels of 1.1 s, 8 threads" 1500 $spare -- "${long_kernels[@]}" \
    least_mib=48 most_mib=64 rounds=2
wait $!
# Of many sizes, the pool ends with no more memory than its bound: caps.reserve_ratio (115 %) times the
# most that the threads held at one time, and the growth budget (128 MiB).
held=$(number held "$work/long_kernels")
taken=$(number taken "$work/long_kernels")
expect "kernels of 1.1 s, 8 threads: $taken MiB taken, $held MiB held" \
    [ "${taken:-99999}" -le $((held * 115 / 100 + 128)) ]

# A service beside which a kernel of 1.2 s starts from time to time. Calls take their time, as on a
# GPU; on a busy machine, that is all that can be measured.
limit=seconds=60 alike "a service beside long kernels" 1500 $spare SIMCUDA_TIMING=1 -- \
    case=service rounds=2 period_ms=2500 kernel_ms=1200 least_mib=8 most_mib=32
plain=$(number requests "$work/plain")
pool=$(number requests "$work/pool")
name="a service beside long kernels: requests"
if [ "${pool:-0}" -ge $((plain * 60 / 100)) ]; then
    ok "$name (plain $plain, pool $pool)"
else
    fail "$name" "$pool, plain $plain"
fi

finish
