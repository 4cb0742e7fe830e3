#!/usr/bin/env bash
# Runs one CUDA program without and with the pool, and shows both times and the pool's report.
# Where no GPU can be used it runs on the simulated driver, and says so.
#
# usage: [BUILD=dir] demo.sh
set -eu
cd "$(dirname "$0")/.."

build=$(realpath "${BUILD:-build}")
program=$build/demo/demo
preload=$build/libcudapool_preload.so
messages=$(mktemp)
trap 'rm -f "$messages"' EXIT

if "$program" steps=1 >/dev/null 2>&1; then
    echo "Running $program on the GPU."
else
    echo "There is no GPU here that CUDA can use: running $program on the simulated driver"
    echo "($build/sim/libcuda.so.1). It takes about as long for each call as a real driver did;"
    echo "these times show the mechanism, they are no measurement."
    export LD_LIBRARY_PATH=$build/sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} SIMCUDA_TIMING=1
fi

# The program's result line, its own messages kept for later.
result() {
    "$@" 2>"$messages" || {
        cat "$messages" >&2
        echo "demo.sh: $* failed" >&2
        exit 1
    }
}
milliseconds() {
    sed -n 's/^demo: \([0-9.]*\) ms.*/\1/p' <<<"$1"
}

without=$(result "$program")
echo
echo "  $program"
echo "    $without"
with=$(result env LD_PRELOAD="$preload" "$program")
echo "  LD_PRELOAD=$preload $program"
echo "    $with"
awk -v a="$(milliseconds "$without")" -v b="$(milliseconds "$with")" \
    'BEGIN { printf "\n%.2f ms without the pool, %.2f ms with it: %.2f times as fast.\n\n", a, b, a / b }'
cat "$messages"
