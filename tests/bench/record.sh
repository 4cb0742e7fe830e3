#!/usr/bin/env bash
# Records the traces of tests/bench/traces on a machine with a GPU, in under a minute: PyTorch
# training and inference without its caching, CuPy without its pool, and a C++ program with Thrust.
#
# usage: record.sh OUTPUT_DIR [program...]    programs: torch_training torch_inference cupy thrust_groups
#   BUILD   the build directory (default: build), with librecord.so and, if there is an nvcc to
#           build it with, thrust_groups
#   PYTHON  the interpreter with PyTorch, torchvision and CuPy (default: python3)
#
# Each trace is OUTPUT_DIR/PROGRAM.trace, with a comment that says on what it was recorded. Exits 1
# if a program failed or its trace has no allocations.
set -u

if [ $# -lt 1 ]; then
    echo "usage: record.sh OUTPUT_DIR [program...]" >&2
    exit 2
fi
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../.." || exit 2
build=$(realpath -m "${BUILD:-build}")
python=${PYTHON:-python3}
apps=tests/bench/record_apps.py
status=0
[ $# -gt 0 ] || set -- torch_training torch_inference cupy thrust_groups

device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader -i 0 2>/dev/null) ||
    device="no GPU"

say_where() { # trace, what it is
    local file=$1 first
    read -r first <"$file"
    { echo "$first"
      echo "# $2"
      echo "# recorded on: $device"
      tail -n +2 "$file"; } >"$file.with_comment" && mv "$file.with_comment" "$file"
}

record() { # name, what it is, command
    local name=$1 what=$2 trace=$out/$1.trace
    shift 2
    rm -f "$trace"
    if ! PYTORCH_NO_CUDA_MEMORY_CACHING=1 BENCH_RECORD="$trace" \
        LD_PRELOAD="$build/tests/bench/librecord.so" \
        timeout -k 5 100 "$@" >"$out/$name.log" 2>&1 </dev/null; then
        tail -n 3 "$out/$name.log"
        echo "FAIL $name: the program failed"
        status=1
        return
    fi
    if ! [ -s "$trace" ] || ! grep -q '^a' "$trace"; then
        echo "FAIL $name: nothing was recorded"
        status=1
        return
    fi
    rm -f "$out/$name.log"
    say_where "$trace" "$what"
    echo "ok $name: $(grep -c '^[aA] ' "$trace") allocations, $(grep -c '^m' "$trace") marks," \
        "$(stat -c %s "$trace") bytes, $SECONDS s"
}

for name in "$@"; do
    case $name in
    torch_training)
        record "$name" "PyTorch: a transformer's training, no caching" "$python" $apps "$name" ;;
    torch_inference)
        record "$name" "PyTorch: a residual network's inference, no caching" "$python" $apps "$name" ;;
    cupy)
        record "$name" "CuPy: arrays of changing size, no pool" "$python" $apps "$name" ;;
    thrust_groups)
        [ -x "$build/tests/bench/$name" ] || make BUILD="$build" "$build/tests/bench/$name" >/dev/null
        record "$name" "C++ with Thrust: four threads group and sum" "$build/tests/bench/$name" ;;
    *)
        echo "record.sh: unknown program '$name': must be torch_training, torch_inference, cupy or" \
            "thrust_groups" >&2
        exit 2 ;;
    esac
done
exit $status
