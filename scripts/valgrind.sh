#!/usr/bin/env bash
# Runs a few programs with the pool under valgrind, on the simulated driver: invalid accesses,
# uninitialised values, and memory of the pool's that nothing points to any more.
#
# usage: [BUILD=dir] valgrind.sh
set -u
cd "$(dirname "$0")/.." || exit 2

build=$(realpath "${BUILD:-build}")
report=$(mktemp)
trap 'rm -f "$report"' EXIT
passed=0
failed=0

check() { # program, arguments
    local name
    name=$(basename "$1")
    if LD_LIBRARY_PATH=$build/sim LD_PRELOAD=$build/libcudapool_preload.so CUDAPOOL_REPORT=none \
        SIMCUDA_MEMORY=256MiB CUDAPOOL_CONFIG=configs/default.json \
        timeout -k 5 300 valgrind --quiet --error-exitcode=99 --leak-check=full \
        --errors-for-leak-kinds=definite --fair-sched=yes --child-silent-after-fork=yes \
        "$@" >"$report" 2>&1; then
        echo "ok $name"
        passed=$((passed + 1))
    else
        echo "FAIL $name"
        sed 's/^/    | /' "$report"
        failed=$((failed + 1))
    fi
}

check "$build/demo/demo" steps=10
check "$build/tests/gpu/linked" steps=10 words=4096
check "$build/tests/gpu/overlap" threads=4 rounds=10
check "$build/tests/gpu/hazard" threads=4 streams=4 rounds=8 us=1000 captures
check "$build/tests/gpu/capture" rounds=1 replays=2
check "$build/tests/gpu/contexts" rounds=1
check "$build/tests/gpu/fill_memory" cycles=2 largest_mib=32 kernel_ms=50
check "$build/tests/gpu/progress" blocks=20 rounds=1
for kind in $(LD_LIBRARY_PATH=$build/sim "$build/tests/e2e/kinds" | cut -d ' ' -f 1 | uniq); do
    check "$build/tests/e2e/kinds" "$kind" context_ends
    check "$build/tests/e2e/kinds" "$kind" several_threads
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
