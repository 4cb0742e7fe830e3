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

# A path as short as it can be said here.
short() {
    echo "${1#"$PWD/"}"
}

if "$program" steps=1 >/dev/null 2>&1; then
    echo "Running $(short "$program") on the GPU."
else
    echo "There is no GPU here that CUDA can use: running $(short "$program") on the"
    echo "simulated driver ($(short "$build/sim/libcuda.so.1")). It takes about as long"
    echo "for each call as a real driver did: these times show the mechanism, they are no"
    echo "measurement."
    export LD_LIBRARY_PATH=$build/sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} SIMCUDA_TIMING=1
fi
milliseconds() {
    sed -n 's/^demo: \([0-9.]*\) ms.*/\1/p' <<<"$1"
}

echo
echo "  $(short "$program")"
without=$("$program" 2>"$messages") || {
    cat "$messages" >&2
    echo "demo.sh: $program failed" >&2
    exit 1
}
echo "    $without"
echo "  LD_PRELOAD=$(short "$preload") $(short "$program")"
# Its table goes to stderr as it is, so that it fits what that is.
with=$(LD_PRELOAD=$preload "$program") || {
    echo "demo.sh: $program failed with the pool" >&2
    exit 1
}
echo "    $with"
awk -v a="$(milliseconds "$without")" -v b="$(milliseconds "$with")" \
    'BEGIN { printf "\n%.2f ms without the pool, %.2f ms with it: %.2f times as fast.\n", a, b, a / b }'
echo
echo "Next, is a program of yours faster with the pool?"
echo "  make && $(short "$build/cudapool") try ./your_program"
