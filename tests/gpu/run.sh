#!/usr/bin/env bash
# Runs the programs of this directory on the GPU of this machine, without and with the pool, one
# after the other and over again, and prints a table: medians, ratios, peak device memory, hits.
#
# usage: run.sh OUTPUT_DIR [section...]
#   sections: conformance kinds hazard progress locks memory managed captures graph_captures graph_apps
#   public memory_nodes contexts limits give_back overlap sizes host_functions misses linked streams thrust try python first hot neighbours host_facts pinned; all if none.
#   Only where they are named: soak, SOAK_SECONDS (480) of it, and programs, PROGRAMS_SECONDS (300) of them,
#   which compares the pool with frameworks' own caching (programs/compare.py) and goes on from OUTPUT_DIR/programs.jsonl
#   ROUNDS  of four processes in turn in the section neighbours (default 200), GROUP of processes (64)
#   REPLAYS in each row of the section graph_captures (default 100000), and memory_nodes (20000)
#   PAIRS   pairs of each thread in the section streams (default 20000), LARGE MiB of its large block
#   PINNED  parts of the section pinned (default: hazard pairs staging large mixed peak python), and
#           PINNED_SMALL=1 for sizes that the simulated driver can do
#   HOT     values of device.hot_bytes in the section hot (default: 0,4MiB,null,12MiB), which takes
#           up to two minutes
#   BUILD   the build directory (default: build); what is missing in it is built
#   PYTHON  the interpreter with PyTorch, CuPy, Numba and JAX (default: python3)
#   SECONDS_IN_ALL  no program is started after that many seconds (default 450); a section that is
#                   cut short says so once, where its next row would be
#
# OUTPUT_DIR/table.txt gets what is printed, OUTPUT_DIR/log.txt every program's whole output. Exits
# 1 if a program failed, hung, computed with the pool something else than without, or was not started.
set -u

if [ $# -lt 1 ]; then
    echo "usage: run.sh OUTPUT_DIR [section...]" >&2
    exit 2
fi
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../.." || exit 2
build=$(realpath -m "${BUILD:-build}")
python=${PYTHON:-python3}
programs=$build/tests/gpu
deadline=${SECONDS_IN_ALL:-450}
log=$out/log.txt
table=$out/table.txt
work=$(mktemp -d)
sampler=
trap '[ -z "$sampler" ] || kill "$sampler" 2>/dev/null; rm -rf "$work"' EXIT
failures=0
not_started=0
: >"$log"
: >"$table"

say() {
    printf '%s\n' "$*" | tee -a "$table"
}

wanted() { # section, and the sections on the command line
    local section=$1 name
    shift
    told_time=no
    [ $# -gt 0 ] || return 0
    for name in "$@"; do
        [ "$name" = "$section" ] && return 0
    done
    return 1
}

time_is_up() {
    [ "$SECONDS" -gt "$deadline" ]
}

# Whether the row has the time to start. The first of a section that has not is told, and the others are
# counted.
starts() { # name of the row
    time_is_up || return 0
    not_started=$((not_started + 1))
    [ $told_time = yes ] || say "$1, and what follows in this section: not started, the time is up"
    told_time=yes
    return 1
}

# --- one run ------------------------------------------------------------------------------------

# Runs a program on the plain driver or on the pool. Sets ms and result from its last line of the
# form "NAME: NUMBER ms REST", status, and with the pool hits: the share of requests that hit; and
# started to no where the time is up. What the former program said is gone in either case.
run() { # plain|pool, configuration or "", command
    local mode=$1 config=$2 variables=() line
    shift 2
    ms=- result='' hits=- status=124 started=yes
    : >"$work/output"
    rm -f "$work/report.json"
    if time_is_up; then
        started=no
        return
    fi
    [ "$mode" = plain ] || variables+=("LD_PRELOAD=$build/libcudapool_preload.so"
        "CUDAPOOL_REPORT=$work/report.json")
    [ -z "$config" ] || variables+=("CUDAPOOL_CONFIG=$config")
    printf '\n### %s %s\n' "$mode" "$*" >>"$log"
    timeout -k 5 "${limit:-60}" env "${variables[@]}" "$@" >"$work/output" 2>&1 </dev/null
    status=$?
    cat "$work/output" >>"$log"
    line=$(grep -E '^[a-z_]+: [0-9.]+ ms' "$work/output" | tail -n 1)
    if [ -n "$line" ]; then
        ms=$(sed -E 's/^[a-z_]+: ([0-9.]+) ms.*/\1/' <<<"$line")
        result=$(sed -E 's/^[a-z_]+: [0-9.]+ ms,? ?//' <<<"$line")
    else
        result=$(tail -n 1 "$work/output")
    fi
    [ "$mode" = plain ] || read_report
}

read_report() {
    [ -s "$work/report.json" ] || return
    "$build/cudapool" report "$work/report.json" >>"$log" 2>&1
    hits=$("$python" -c '
import json, sys
totals = [kind["totals"] for device in json.load(open(sys.argv[1]))["devices"]
          for kind in device["kinds"]]
requests = sum(total["requests"] for total in totals)
hits = sum(sum(total["hits"].values()) for total in totals)
print("%.1f%%" % (100 * hits / requests) if requests else "-")' "$work/report.json" 2>>"$log")
}

# The most device memory in use while a program runs, less what is in use without it, in MiB.
run_sampled() { # as run; sets peak
    local before
    peak=-
    if time_is_up || ! command -v nvidia-smi >/dev/null 2>&1; then
        run "$@"
        return
    fi
    before=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0)
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0 -lms 20 \
        >"$work/samples" 2>/dev/null &
    sampler=$!
    run "$@"
    kill "$sampler" 2>/dev/null
    wait "$sampler" 2>/dev/null
    sampler=
    peak=$(sort -n "$work/samples" | tail -n 1)
    peak=$((peak - before))
}

median() {
    printf '%s\n' "$@" | grep -v '^-$' | sort -n |
        awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)]; else print "-" }'
}

ratio() { # a, b
    if [ "$1" = - ] || [ "$2" = - ]; then
        echo -
    else
        awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0) printf "%.2f\n", a / b; else print "-" }'
    fi
}

# --- programs that are timed --------------------------------------------------------------------

header() {
    ! time_is_up || return 0
    say ""
    say "$(printf '%-26s %10s %10s %6s %10s %8s %9s %9s %6s  %s' program 'plain ms' 'pool ms' \
        faster 'other ms' 'of other' 'plain MiB' 'pool MiB' hits result)"
}

# A row: the program without and with the pool, interleaved, and another way to do the same on the
# plain driver (a library's own pool, buffers made once), if one is given after "--".
compare() { # name, runs, command [-- other command]
    local name=$1 runs=$2 command=() other=() plain=() pool=() others=() verdict=ok
    local plain_result='' pool_result='' plain_peak=- pool_peak=- hit_share=-
    shift 2
    starts "$name" || return
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        command+=("$1")
        shift
    done
    [ $# -eq 0 ] || other=("${@:2}")
    for _ in $(seq "$runs"); do
        run plain "" "${command[@]}"
        [ $started = yes ] || break
        plain+=("$ms")
        plain_result=$result
        [ $status -eq 0 ] || verdict="FAIL without the pool: exit status $status"
        run pool "" "${command[@]}"
        [ $started = yes ] || break
        pool+=("$ms")
        pool_result=$result
        hit_share=$hits
        [ $status -eq 0 ] || verdict="FAIL: exit status $status"
        if [ ${#other[@]} -gt 0 ]; then
            run plain "" "${other[@]}"
            others+=("$ms")
        fi
    done
    [ "$started" = no ] || [ "$plain_result" = "$pool_result" ] ||
        verdict="FAIL: without the pool: $plain_result; with it"
    run_sampled plain "" "${command[@]}"
    plain_peak=$peak
    run_sampled pool "" "${command[@]}"
    pool_peak=$peak
    [ "$verdict" = ok ] || failures=$((failures + 1))
    if [ $started = no ]; then
        not_started=$((not_started + 1))
        verdict+=", cut short: the time is up"
    fi
    local a b c
    a=$(median "${plain[@]:--}") b=$(median "${pool[@]:--}") c=$(median "${others[@]:--}")
    say "$(printf '%-26s %10s %10s %6s %10s %8s %9s %9s %6s  %s' "$name" "$a" "$b" \
        "$(ratio "$a" "$b")" "$c" "$(ratio "$b" "$c")" "$plain_peak" "$pool_peak" "$hit_share" \
        "$verdict: $pool_result")"
}

# --- programs that check ------------------------------------------------------------------------

# A row: one run that must end with the given exit status.
check() { # exit status, or several with | between, name, plain|pool, configuration or "", command
    local expected=$1 name=$2 verdict=ok
    shift 2
    starts "$name" || return
    run "$@"
    if [[ "|$expected|" != *"|$status|"* ]]; then
        verdict="FAIL: exit status $status"
        failures=$((failures + 1))
    fi
    say "$(printf '%-58s %10s ms %6s  %s: %s' "$name" "$ms" "$hits" "$verdict" "$result")"
}

# The same check on the plain driver, with the default budget, with none, and with hot memory.
check_all() { # name, command
    local name=$1
    shift
    check 0 "$name, plain" plain "" "$@"
    check 0 "$name, pool" pool "" "$@"
    check 0 "$name, pool, growth budget 0" pool "$work/no_budget.json" "$@"
    check 0 "$name, pool, hot memory" pool "$work/hot.json" "$@"
}

# The conformance suite's count of rows; rows that fail stand below it.
check_conformance() { # name, plain|pool
    local name=$1 count
    local with_pool=1
    [ "$2" = pool ] || with_pool=
    starts "$name" || return
    run "$2" "" env "CONFORMANCE_WITH_POOL=$with_pool" "CONFORMANCE_FACTS=$work/facts" \
        "$build/tests/conformance/conformance"
    count=$(tail -n 1 "$work/output")
    [ $status -eq 0 ] || failures=$((failures + 1))
    say "$(printf '%-58s %s' "$name" "$count")"
    grep -E '^(FAIL|note)' "$work/output" | tee -a "$table"
}

# --- everything ---------------------------------------------------------------------------------

echo '{"version": 1, "device": {"growth_budget": "0B"}}' >"$work/no_budget.json"
echo '{"version": 1, "device": {"hot_bytes": "1MiB"}}' >"$work/hot.json"
if ! [ -x "$programs/hazard" ] || ! [ -e "$build/libcudapool_preload.so" ]; then
    make BUILD="$build" all >>"$log" 2>&1 || { echo "run.sh: make failed, see $log" >&2; exit 1; }
fi
device="a device without nvidia-smi"
if command -v nvidia-smi >/dev/null 2>&1; then
    device=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader -i 0)
fi
say "$device, $(nproc) processors, $(date -u '+%Y-%m-%d %H:%M') UTC"

if wanted conformance "$@"; then
    say ""
    limit=120 check_conformance "conformance, plain" plain
    limit=120 check_conformance "conformance, pool" pool
fi
# What every kind of memory must do; a line says what each run needs in its environment.
if wanted kinds "$@"; then
    say ""
    while read -r kind scenario variables; do
        for mode in plain pool; do
            # shellcheck disable=SC2086 # one word each
            check 0 "$kind $scenario, $mode" $mode "" env $variables \
                "$build/tests/e2e/kinds" "$kind" "$scenario"
        done
    done < <("$build/tests/e2e/kinds")
fi
if wanted hazard "$@"; then
    say ""
    check 1 "hazard, reused at once (must be noticed)" plain "" "$programs/hazard" reuse-at-once
    check 0 "hazard, plain" plain "" "$programs/hazard"
    check 0 "hazard, plain, captures" plain "" "$programs/hazard" captures
    for budget in default 0; do
        config=
        [ $budget = default ] || config=$work/no_budget.json
        for threads in 1 16; do
            for streams in 1 16; do
                for captures in "" captures; do
                    check 0 "hazard, budget $budget, $threads threads, $streams streams $captures" \
                        pool "$config" "$programs/hazard" threads=$threads streams=$streams \
                        rounds=$((960 / threads)) $captures
                done
            done
        done
    done
    # The simulated driver copies at once, so that nothing is late there.
    if command -v nvidia-smi >/dev/null 2>&1; then
        check 1 "hot hazard, reused at once (must be noticed)" plain "" "$programs/hot_hazard" reuse-at-once
    fi
    check 0 "hot hazard, pool" pool "" "$programs/hot_hazard"
    check 0 "hot hazard, pool, hot memory" pool "$work/hot.json" "$programs/hot_hazard"
fi
if wanted progress "$@"; then
    say ""
    check_all progress "$programs/progress" rounds=5
fi
# Both must finish, with the same result.
alike() { # name, command
    local name=$1 plain_ms plain_result plain_status verdict=ok
    shift
    starts "$name" || return
    run plain "" "$@"
    plain_ms=$ms plain_result=$result plain_status=$status
    run pool "" "$@"
    if [ $started = no ]; then
        not_started=$((not_started + 1))
        say "$name: cut short, the time is up"
        return
    elif [ "$plain_status" -ne 0 ]; then
        verdict="FAIL without the pool: exit status $plain_status"
    elif [ $status -ne 0 ]; then
        verdict="FAIL: exit status $status"
    elif [ "$plain_result" != "$result" ]; then
        verdict="FAIL: without the pool: $plain_result; with it"
    fi
    [ "$verdict" = ok ] || failures=$((failures + 1))
    say "$(printf '%-58s %10s %10s ms  %s: %s' "$name" "$plain_ms" "$ms" "$verdict" "$result")"
}

# A hang is over after a few seconds, so that one run shows all of them.
if wanted locks "$@"; then
    say ""
    locks=("$programs/locks" seconds="${LOCKS_SECONDS:-15}")
    for wait in host_function callback host_function_ptsz callback_ptsz captured_node added_node \
        child_node value value64 batch value_v1 batch_v1 captured_value batch_node kernel; do
        alike "locks, $wait" "${locks[@]}" wait=$wait
        alike "locks, $wait, 4 threads" "${locks[@]}" wait=$wait threads=4 least_mib=64 most_mib=64
        alike "locks, $wait, memory short" "${locks[@]}" wait=$wait leave_mib=2048 least_mib=1024 \
            most_mib=1024 call_mib=1900
    done
    # Of that size only arrays with three dimensions can be.
    for call in pitch managed async from_pool array3d physical host module library graph stream; do
        alike "locks, $call, memory short" "${locks[@]}" call=$call leave_mib=2048 least_mib=1024 \
            most_mib=1024 call_mib=1900
    done
    for call in free synchronize stream_synchronize; do
        alike "locks, $call" "${locks[@]}" call=$call
        alike "locks, $call, little memory" "${locks[@]}" call=$call least_mib=1 most_mib=1
    done
    # A context takes some 500 MiB.
    alike "locks, context, memory short" "${locks[@]}" call=context leave_mib=1400 least_mib=1200 \
        most_mib=1200 rounds=5
    alike "locks, large blocks" "${locks[@]}" case=large_blocks rounds=5
    # With barriers this one waits for the kernel: nothing else can order another process's work.
    alike "locks, exported memory, no barriers" \
        env 'CUDAPOOL_CONFIG={"version": 1, "device": {"barriers": false}}' "${locks[@]}" \
        case=exported_memory rounds=5
    if [ "$(nvidia-smi -L 2>/dev/null | grep -c ^GPU)" -gt 1 ]; then
        alike "locks, second device" "${locks[@]}" case=second_device rounds=2
        alike "locks, another device" "${locks[@]}" case=another_device
    fi
    for mode in plain pool; do
        starts "locks, service, $mode" || continue
        run_sampled $mode "" "$programs/locks" seconds=60 case=service rounds=4 period_ms=5000 \
            kernel_ms=1500 least_mib=8 most_mib=64
        say "$(printf '%-58s %10s ms  %s, %s MiB' "locks, service, $mode" "$ms" \
            "$(grep '^requests' "$work/output")" "$peak")"
        starts "locks, 2 s kernels, 16 threads, $mode" || continue
        limit=200 run_sampled $mode "" "$programs/locks" seconds=100 case=long_kernels threads=16 \
            rounds="${LONG_ROUNDS:-1}" least_mib=64 most_mib=512
        say "$(printf '%-58s %10s ms  %s, %s MiB' "locks, 2 s kernels, 16 threads, $mode" "$ms" \
            "$result" "$peak")"
    done
fi
if wanted captures "$@"; then
    say ""
    check_all capture "$programs/capture"
fi
# Captures that may allocate; without the setting, as without the pool, they may not.
if wanted graph_captures "$@"; then
    say ""
    replays=("$programs/graph_captures" replays="${REPLAYS:-100000}")
    echo '{"version": 1, "captures": {"allocate": true}}' >"$work/graphs.json"
    echo '{"version": 1, "captures": {"allocate": true}, "device": {"growth_budget": "0B"}}' \
        >"$work/graphs_no_budget.json"
    check 0 "graph_captures refused, plain" plain "" "$programs/graph_captures" refused
    check 0 "graph_captures refused, pool, captures.allocate false" pool "" \
        "$programs/graph_captures" refused
    check 1 "graph_captures, plain (must fail)" plain "" "${replays[@]}"
    # Threads that never pause keep the one that captures from the driver's lock.
    for threads in 1 8 32; do
        check 0 "graph_captures, pool, $threads threads" pool "$work/graphs.json" "${replays[@]}" \
            threads=$threads captures=$((threads == 1 ? 300 : 160 / threads))
    done
    check 0 "graph_captures, pool, growth budget 0" pool "$work/graphs_no_budget.json" "${replays[@]}"
fi
# Libraries that take memory inside a capture: refused (3) without the setting, right with it.
if wanted graph_apps "$@"; then
    say ""
    apps=("$python" tests/gpu/graph_apps.py)
    echo '{"version": 1, "captures": {"allocate": true}}' >"$work/graphs.json"
    # The CUDA runtime needs tables of the real driver's that the simulated one has not.
    if ! command -v nvidia-smi >/dev/null 2>&1; then
        say "thrust_graphs: there is no GPU"
    elif [ -x "$programs/thrust_graphs" ] ||
        make BUILD="$build" "$programs/thrust_graphs" >>"$log" 2>&1; then
        check 3 "thrust_graphs, plain (must be refused)" plain "" "$programs/thrust_graphs"
        check 3 "thrust_graphs, pool, captures.allocate false" pool "" "$programs/thrust_graphs"
        check 0 "thrust_graphs, pool" pool "$work/graphs.json" "$programs/thrust_graphs"
    else
        say "thrust_graphs: not built, there is no nvcc"
    fi
    for library in cupy torch; do
        if "$python" -c "import $library" 2>>"$log"; then
            # PyTorch ends by itself (134) where it can free nothing after a capture that was spoilt.
            check "3|134" "$library in a graph, plain (must be refused)" plain "" "${apps[@]}" $library
            check 0 "$library in a graph, pool" pool "$work/graphs.json" "${apps[@]}" $library
        else
            say "$library: there is none"
        fi
    done
fi
# What programs ask of the pool themselves: values that graphs read, and peaks.
if wanted public "$@"; then
    say ""
    for case in example ahead beside captured answers; do
        check 0 "device_scalars $case, pool" pool "" "$build/tests/e2e/device_scalars" $case
    done
    for case in device streams both; do
        check 0 "peaks $case, pool" pool "" "$build/tests/e2e/peaks" $case
    done
fi
# Memory nodes, and blocks that graphs keep in their place.
if wanted memory_nodes "$@"; then
    say ""
    echo '{"version": 1, "captures": {"allocate": true, "memory_nodes": "pool"}}' >"$work/nodes.json"
    replays=("$programs/memory_nodes" replays="${REPLAYS:-20000}")
    check 0 "memory_nodes, plain" plain "" "${replays[@]}"
    check 0 "memory_nodes, pool, driver" pool "" "${replays[@]}"
    check 0 "memory_nodes, pool, pool" pool "$work/nodes.json" "${replays[@]}"
    check 0 "memory_nodes, pool, pool, 16 threads" pool "$work/nodes.json" "${replays[@]}" threads=16
fi
if [ $# -gt 0 ] && wanted soak "$@"; then
    say ""
    limit=60 check 1 "soak, reused at once (must be noticed)" plain "" "$programs/soak" seconds=5 \
        percent=50 unordered
    limit=60 check 0 "soak, plain" plain "" "$programs/soak" seconds=10
    limit=$((${SOAK_SECONDS:-480} + 60)) check 0 "soak, pool" pool "" "$programs/soak" \
        seconds="${SOAK_SECONDS:-480}"
fi
if [ $# -gt 0 ] && wanted programs "$@" && starts "programs"; then
    say ""
    comparison=("$python" tests/gpu/programs/compare.py)
    "${comparison[@]}" run "$out/programs.jsonl" --build "$build" --seconds "${PROGRAMS_SECONDS:-300}" \
        >>"$log" 2>&1 || failures=$((failures + 1))
    "${comparison[@]}" table "$out/programs.jsonl" --json "$out/programs.json" 2>&1 | tee -a "$table"
fi
if wanted contexts "$@"; then
    say ""
    check_all contexts "$programs/contexts"
fi
if wanted memory "$@"; then
    say ""
    check_all tight "$programs/tight"
    check_all "tight with kernels" "$programs/tight" kernels
    check_all fill_memory "$programs/fill_memory"
fi
# How long it takes to touch what just fits beside what the program holds.
if wanted managed "$@"; then
    say ""
    for _ in 1 2 3; do
        for mode in plain pool; do
            check 0 "managed memory, $mode" $mode '' "$programs/managed" || continue
            grep 'touched again' "$work/output" | sed 's/^/    /' | tee -a "$table"
        done
    done
fi
# Giving memory back must not wait for work that has nothing to do with it.
limited='{"version": 1, "limits": {"device_bytes": "%s"}, "report": {"at_exit": "json", "file": "'$work/report.json'"}}'
if wanted limits "$@"; then
    say ""
    # shellcheck disable=SC2059 # a format
    for case in "limit physical" "limit array" "limit array3d" "limit mipmapped" "limit managed" "limit plain" "limit async" sum \
        lifetimes arrays contexts graphs failures threads; do
        starts "limits, $case" || continue
        # shellcheck disable=SC2086 # words
        run pool "$(printf "$limited" 256MiB)" "$build/tests/e2e/unpooled" $case
        say "$(printf '%-58s %s' "limits, $case" "$([ "$status" = 0 ] && echo ok || echo "FAILED: $result")")"
        [ "$status" = 0 ] || failures=$((failures + 1))
    done
    # What the driver holds for a process beyond what is counted: its context, at least.
    with_other='import ctypes, os, subprocess, sys
driver = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_ulonglong()
if driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or driver.cuCtxSetCurrent(context) or \
        driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30)):
    sys.exit("no memory")
told = subprocess.run(["env", "-u", "LD_PRELOAD", sys.argv[1], "top", "--count", "1", str(os.getpid())], capture_output=True, text=True).stdout
others = [line.split() for line in told.splitlines() if line.split()[:1] == ["other"]]
print("other: 0 ms", others[0][4:6] if others else told)
sys.exit(not others)'
    check 0 "limits, other" pool "" "$python" -c "$with_other" "$build/cudapool"
    # What another process shares is told, and in no sum.
    check 0 "limits, opened" pool "" "$python" tests/gpu/opened.py "$build/cudapool"
    # The process runs `cudapool limit` of itself.
    for case in kinds cached threads; do
        check 0 "limits, changed, $case" pool "" env "CUDAPOOL_TOOL=$build/cudapool" "$build/tests/e2e/limit_changes" $case
    done
    for framework in torch cupy jax nccl; do
        "$python" -c "import ${framework/nccl/torch}" 2>>"$log" || continue
        [ $framework != nccl ] || [ "$(nvidia-smi -L 2>/dev/null | grep -c ^GPU)" -gt 1 ] || continue
        for mode in plain pool; do
            starts "limits, $framework, $mode" || continue
            config='' most=''
            # shellcheck disable=SC2059 # a format
            [ $mode = plain ] || config=$(printf "$limited" 2000MiB) most=2000
            # shellcheck disable=SC2086 # nothing, or a number
            run $mode "$config" "$python" tests/gpu/limits.py $framework $most
            say "$(printf '%-58s %s' "limits, $framework, $mode" "$result")"
            [ "$status" = 0 ] || failures=$((failures + 1))
        done
    done
fi
if wanted give_back "$@"; then
    say ""
    for connections in "" 1; do
        for busy in nothing kernels host_functions memory_waits; do
            for mode in plain pool; do
                starts "give_back, $mode, ${connections:-all} connections, $busy" || continue
                run $mode "" env ${connections:+CUDA_DEVICE_MAX_CONNECTIONS=$connections} \
                    "$programs/give_back" busy=$busy
                say "$(printf '%-58s %10s ms  %s' \
                    "give_back, $mode, ${connections:-all} connections" "$ms" "$result")"
                [ $mode = pool ] || grep '^fact' "$work/output" | sed 's/^/    /' | tee -a "$table"
            done
        done
    done
fi
if wanted overlap "$@" || wanted host_functions "$@" || wanted linked "$@" ||
    wanted misses "$@" || wanted thrust "$@" || wanted python "$@"; then
    header
fi
# What one process has freed, another has as soon as without the pool: that time and a factor, and so
# many milliseconds more. (The simulated driver has one memory for all that name the file.)
beside() { # name, factor, milliseconds, configuration or "", case and its arguments
    local name=$1 factor=$2 more=$3 config=$4 plain_ms plain_result verdict=ok
    starts "$name" || return 0
    shift 4
    local command=(env "SIMCUDA_SHARED=$work/shared" "$programs/neighbours" "$@")
    rm -f "$work/shared"
    run plain "" "${command[@]}"
    plain_ms=$ms plain_result=$result
    [ $status -eq 0 ] || verdict="FAIL without the pool: exit status $status, $plain_result; with it"
    rm -f "$work/shared"
    run pool "$config" "${command[@]}" \
        most_ms="$(awk -v ms="$plain_ms" -v factor="$factor" -v more="$more" \
            'BEGIN { printf "%d", ms * factor + more + 0.5 }')"
    [ $status -eq 0 ] || verdict="FAIL: exit status $status"
    [ "$verdict" = ok ] || failures=$((failures + 1))
    say "$(printf '%-46s %10s %10s ms  %s' "$name" "$plain_ms" "$ms" "$result")"
    [ "$verdict" = ok ] || say "    $verdict"
}

# What only the pool has to say something to.
with_neighbours() { # name, case and its arguments
    local name=$1
    shift
    rm -f "$work/shared"
    check 0 "$name" pool "" env "SIMCUDA_SHARED=$work/shared" "$programs/neighbours" "$@"
}

if wanted first "$@"; then
    check 0 "first blocks" plain "" env CUDAPOOL_REPORT=none "$programs/first" "preload=$build/libcudapool_preload.so"
    grep -E '^[a-z0-9].*, more ' "$work/output" | sed 's/^/    /' | tee -a "$table"
fi
if wanted hot "$@"; then
    say ""
    "$python" tests/gpu/hot.py "$build" "$out" --values "${HOT:-0,4MiB,null,12MiB}" 2>&1 | tee -a "$table"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failures=$((failures + 1))
fi
if wanted neighbours "$@"; then
    say ""
    beside "68 of 140 cached, asleep; 100 wanted" 1 100 "" sleeping
    # The driver alone has needed 71 to 158 ms here, and the pool 132 to 302.
    beside "the same, stream-ordered" 1 250 "" sleeping kind=async
    beside "the same, in a 1 s kernel's synchronise" 1 100 "" waiting
    beside "the same, hitting in a loop" 1 100 "" hitting
    beside "the same, freed behind a kernel of 5 s" 1 100 "" behind
    beside "the same, stopped: what fails, at once" 1 250 "" stopped
    beside "80 wanted, slowly, without the pool" 1 1000 "" unaware
    limit=200 beside "four processes in turn, 60 % each" 1.3 0 "" turns rounds="${ROUNDS:-200}"
    echo '{"version": 1, "device": {"release_after_idle": "2s"}}' >"$work/idle.json"
    beside "60 of 140 cached, idle for 2 s" 1 3200 "$work/idle.json" idle idle_ms=2000
    beside "the same, for 10 s" 1 11200 "" idle
    with_neighbours "one process that is alone" alone
    with_neighbours "its own thread's wake-ups" wakeups
    limit=120 with_neighbours "a group's limit, ${GROUP:-64} processes" group processes="${GROUP:-64}" \
        seconds=15 kill_ms=500
fi
if wanted overlap "$@"; then
    for us in 200 20; do
        for threads in 1 4 16; do
            compare "overlap, $threads threads, $us us" 3 "$programs/overlap" threads=$threads us=$us \
                -- "$programs/overlap" threads=$threads us=$us once
        done
    done
fi
# Sizes that never come back: a pair, what is taken from the driver, and calls of the driver for 1000 pairs.
sizes() { # plain|pool, name, configuration, arguments
    local mode=$1 name=$2 config=$3 calls=- kind=device
    shift 3
    [[ " $* " != *" async "* ]] || kind=stream_ordered
    starts "$name" || return
    run "$mode" "$config" "$programs/sizes" "$@"
    [ $status -eq 0 ] || failures=$((failures + 1))
    if [ "$mode" = pool ] && [ -s "$work/report.json" ]; then
        calls=$("$python" -c '
import json, sys
totals = [kind["totals"] for device in json.load(open(sys.argv[1]))["devices"]
          for kind in device["kinds"] if kind["kind"] == sys.argv[2]][0]
print("%.1f" % (1000 * totals["driver"]["calls"] / totals["requests"]))' "$work/report.json" "$kind" 2>>"$log")
    fi
    say "$(printf '%-46s %6s calls  %s' "$name" "$calls" "$result")"
}

if wanted sizes "$@"; then
    echo '{"version": 1, "device": {"buckets": {"policy": "split"}}, "stream_ordered": {"buckets": {"policy": "split"}}}' >"$work/split.json"
    say ""
    for live in 16 64 256; do
        sizes plain "sizes, $live live, plain" "" pairs=5000 live=$live
        sizes pool "sizes, $live live, pool" "" pairs="${SIZES:-20000}" live=$live
        sizes pool "sizes, $live live, pool, split" "$work/split.json" pairs="${SIZES:-100000}" live=$live bound percent=$((live == 16 ? 140 : 130))
    done
    for live in 16 64 256; do
        sizes plain "sizes, in a stream's order, $live live, plain" "" pairs=5000 live=$live async
        sizes pool "sizes, in a stream's order, $live live, pool" "" pairs="${SIZES:-20000}" live=$live async
        sizes pool "sizes, in a stream's order, $live live, pool, split" "$work/split.json" pairs="${SIZES:-100000}" live=$live async bound percent=$((live == 16 ? 140 : 130))
    done
    sizes pool "sizes, in a stream's order, 64 live, pool, split, contents" "$work/split.json" pairs=4000 live=64 async check
    sizes pool "sizes, 64 live, pool, split, contents" "$work/split.json" pairs=4000 live=64 check
    for threads in 1 16; do
        for config in "" "$work/split.json"; do
            check 0 "overlap, $threads threads, 20 us, pool${config:+, split}" pool "$config" "$programs/overlap" \
                threads=$threads us=20
        done
    done
fi
if wanted host_functions "$@"; then
    for threads in 1 4; do
        compare "host functions, $threads threads" 3 "$programs/host_functions" threads=$threads
        compare "host functions, $threads threads, large" 3 "$programs/host_functions" \
            threads=$threads rounds=500 least_kib=65536 most_kib=262144
    done
    compare "host functions, like JAX" 5 "$programs/host_functions" functions=20 kernels=20 \
        blocks=8 rounds=500
    compare "host functions, none" 3 "$programs/host_functions" functions=0
fi
# Phases in which nothing is freed: with the pool they may take 2 % longer.
if wanted misses "$@"; then
    compare "30000 allocations of 4 KiB" 5 "$programs/misses" count=30000
    compare "100000 allocations of mixed sizes" 3 "$programs/misses" count=100000 bytes=65536 mixed
    compare "2000 allocations to 8 MiB" 3 "$programs/misses" count=2000 bytes=$((8 << 20)) mixed
fi
if wanted linked "$@"; then
    compare linked 3 "$programs/linked"
fi
# How often the ways of using memory again were taken, by the report of the last run.
ways() {
    "$python" -c '
import json, sys
totals = [kind["totals"] for device in json.load(open(sys.argv[1]))["devices"]
          for kind in device["kinds"] if kind["kind"] == "stream_ordered"]
print(", ".join("%s %d" % (way, sum(total["hits"][way] for total in totals))
                for way in ("clean", "waited", "queried", "barrier")),
      "misses", sum(total["misses"] for total in totals))' "$work/report.json" 2>&1
}

show() { # pattern: lines of the last run's output
    grep -E "$1" "$work/output" | sed 's/^/    /' | tee -a "$table"
}

if wanted streams "$@"; then
    say ""
    for mode in plain pool; do
        starts "stream_ordered, $mode, facts" || continue
        run $mode '' "$programs/stream_ordered" facts
        say "stream_ordered, $mode, facts: $result"
        show '^fact'
    done
    for _ in 1 2 3; do
        for mode in plain pool; do
            count=${PAIRS:-20000}
            [ $mode = plain ] || count=$((20 * count))
            check 0 "stream_ordered, $mode, threshold at its maximum" $mode '' \
                "$programs/stream_ordered" threshold-max pairs="$count" rounds=1 large=0 || continue
            show ' a pair|came back'
        done
    done
    for mode in plain pool; do
        check 0 "stream_ordered, $mode, default threshold" $mode '' \
            "$programs/stream_ordered" pairs=1000 stress=10 large="${LARGE:-1024}" || continue
        show 'bare synchronise'
    done
    # By the report: same stream, its end seen, a wait of the pool's. Behind the program's events, way 2, the
    # pool takes nothing.
    for case in 1 3 4; do
        check 0 "stream_ordered, pool, documented way $case" pool '' \
            "$programs/stream_ordered" case=$case cases-must-hit || continue
        show 'came back'
        say "    by the report: $(ways)"
    done
    header
    apps=("$python" tests/gpu/apps.py)
    # The CUDA runtime needs tables of the real driver's that the simulated one has not.
    if ! command -v nvidia-smi >/dev/null 2>&1; then
        say "async_threads: there is no GPU"
    elif [ -x "$programs/async_threads" ] ||
        make BUILD="$build" "$programs/async_threads" >>"$log" 2>&1; then
        for threads in 1 16; do
            compare "async_threads, $threads" 3 "$programs/async_threads" $threads
        done
    else
        say "async_threads: not built, there is no nvcc"
    fi
    if "$python" -c 'import cupy' 2>>"$log"; then
        compare "cupy, MemoryAsyncPool" 3 "${apps[@]}" cupy_async -- "${apps[@]}" cupy_own_pool
    else
        say "cupy: there is none"
    fi
    if "$python" -c 'import torch' 2>>"$log"; then
        compare "torch, cudaMallocAsync" 3 env PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync \
            "${apps[@]}" torch -- "${apps[@]}" torch
    else
        say "torch: there is none"
    fi
fi
# What pinned host memory costs, and what a fork does to it: the driver's own, so without the pool.
if wanted host_facts "$@"; then
    say ""
    if check 0 "host_facts" plain '' "$programs/host_facts"; then
        show '^fact'
    fi
fi
if wanted pinned "$@"; then
    . tests/gpu/pinned_lib.sh
    pinned_section
fi
if wanted thrust "$@"; then
    [ -x "$programs/thrust_sort" ] || make BUILD="$build" "$build/tests/gpu/thrust_sort" >>"$log" 2>&1
    compare "thrust_sort, 4 Mi keys" 5 "$programs/thrust_sort"
fi
# Sums a column of the buckets of a report, in milliseconds.
milliseconds_of() { # column, report
    "$build/cudapool" report --format csv "$2" | awk -F, -v name="$1" '
        NR == 1 { for (i = 1; i <= NF; i++) { sub("\r", "", $i); if ($i == name) column = i } }
        NR > 1 { sum += $column }
        END { printf "%.3f", sum / 1e6 }'
}

# The table's bound must be one: what the hits would have taken in the driver at least is no more
# than what the driver takes without the pool. And `cudapool try` must find the program the same.
try_program() { # name, command
    local name=$1 saved without
    shift
    starts "try, $name" || return
    say "try, $name"
    if "$build/cudapool" try -n 3 "$@" >"$work/try" 2>&1 </dev/null; then
        sed 's/^/    /' "$work/try" | tee -a "$table"
    else
        sed 's/^/    FAIL: /' "$work/try" | tee -a "$table"
        failures=$((failures + 1))
    fi
    "$build/cudapool" run --set device.enabled=false --set stream_ordered.enabled=false \
        --report "$work/off.json" "$@" >>"$log" 2>&1 </dev/null
    "$build/cudapool" run --report "$work/on.json" "$@" >>"$log" 2>&1 </dev/null
    saved=$(milliseconds_of saved_at_least_nanoseconds "$work/on.json")
    without=$(milliseconds_of driver_nanoseconds "$work/off.json")
    if awk -v a="$saved" -v b="$without" 'BEGIN { exit !(a <= b) }'; then
        say "    ok: saved at least $saved ms of $without ms in the driver without the pool"
    else
        say "    FAIL: saved at least $saved ms, of $without ms in the driver without the pool"
        failures=$((failures + 1))
    fi
}

if wanted try "$@"; then
    try_program "overlap, 4 threads" "$programs/overlap" threads=4 us=200
    try_program "demo" "$build/demo/demo" steps=500
    if "$python" -c 'import cupy' 2>>"$log"; then
        try_program "cupy, no pool" "$python" tests/gpu/apps.py cupy
    fi
fi
if wanted python "$@"; then
    apps=("$python" tests/gpu/apps.py)
    compare "torch, no caching" 3 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "${apps[@]}" torch \
        -- "${apps[@]}" torch
    if [ "$(nvidia-smi -L 2>/dev/null | grep -c ^GPU)" -gt 1 ]; then
        compare "torch, two devices" 3 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "${apps[@]}" \
            torch_two_devices -- "${apps[@]}" torch_two_devices
    fi
    compare "cupy, no pool" 3 "${apps[@]}" cupy -- "${apps[@]}" cupy_own_pool
    compare numba 3 "${apps[@]}" numba
    compare jax 3 "${apps[@]}" jax
fi
say ""
say "$failures failed, $not_started not started or cut short, $SECONDS s"
[ $((failures + not_started)) -eq 0 ]
