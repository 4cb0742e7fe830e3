#!/usr/bin/env bash
# Builds the allocators from elsewhere that the pool is compared with, each only where what it needs
# is found: cub's (nvcc) and PyTorch's (PyTorch's and CUDA's headers). What is there already stays.
#
# usage: build.sh OUTPUT_DIR [cub] [torch]     (default: both)
#   NVCC, CXX, PYTHON, CUDA_HOME   if not what is found in PATH and /usr/local/cuda
#
# OUTPUT_DIR gets cub.so and torch.so. Says in a line what was built or why not; exits 0 either way.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build.sh OUTPUT_DIR [cub] [torch]}
shift
[ $# -gt 0 ] || set -- cub torch
mkdir -p "$out" || exit 2
cuda=${CUDA_HOME:-/usr/local/cuda}
nvcc=${NVCC:-$(command -v nvcc || echo "$cuda/bin/nvcc")}
python=${PYTHON:-python3}

is_there() { # source
    [ "$out/${1%.*}.so" -nt "$here/$1" ] && echo "${1%.*}: there"
}

build() { # name, command that makes $out/NAME.so.new
    local name=$1
    shift
    if "$@" >"$out/$name.log" 2>&1; then
        mv "$out/$name.so.new" "$out/$name.so"
        rm -f "$out/$name.log"
        echo "$name: built"
    else
        rm -f "$out/$name.so.new"
        echo "$name: not built: $(grep -m 1 -i error "$out/$name.log" | cut -c 1-200)"
    fi
}

build_cub() {
    if ! [ -x "$nvcc" ]; then
        echo "cub: there is no nvcc"
        return
    fi
    build cub "$nvcc" -O2 -std=c++17 -shared -Xcompiler -fPIC -cudart static \
        "$here/cub.cu" -o "$out/cub.so.new"
}

# Where PyTorch is, without importing it, and the CUDA headers that came with it or with a toolkit.
build_torch() {
    local torch includes=() directory
    torch=$("$python" -c 'import importlib.util as u; print(u.find_spec("torch").origin)' 2>/dev/null)
    if [ -z "$torch" ]; then
        echo "torch: there is no PyTorch"
        return
    fi
    torch=$(dirname "$torch")
    for directory in "$cuda/include" "$(dirname "$nvcc")/../include" \
        "$torch"/../nvidia/*/include; do
        [ -e "$directory/cuda_runtime_api.h" ] && includes+=(-isystem "$directory")
    done
    build torch "${CXX:-c++}" -O2 -std=c++17 -shared -fPIC -w -isystem "$torch/include" \
        "${includes[@]}" "$here/torch.cpp" -o "$out/torch.so.new" -L"$torch/lib" \
        -Wl,-rpath,"$torch/lib" -Wl,--no-as-needed -lc10 -lc10_cuda
}

for name in "$@"; do
    case $name in
    cub) is_there cub.cu || build_cub ;;
    torch) is_there torch.cpp || build_torch ;;
    *)
        echo "build.sh: unknown name '$name': must be cub or torch" >&2
        exit 2
        ;;
    esac
done
