#!/usr/bin/env bash
# Installs with apt-get what is missing, and nothing where nothing is.
#
# usage: install_dependencies.sh [build] [test] [ci] [proof]     (default: build)
#   build  a C compiler, make, jansson, ncurses with wide characters
#   test   Criterion, tmux for what is shown on terminals, Python, pgrep
#   ci     what .ci/run needs besides: clang, linters, valgrind
#   proof  what `make proof` needs besides: the aarch64 cross compiler, qemu-user, promtool, pkg-config, other
#          shells than bash, lintian, Chromium, mmdebstrap, other languages and tools
set -eu -o pipefail

CC=${CC:-cc}
missing=()

need_command() { # command package
    command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

need_header() { # header package
    $CC -E - <<<"#include <$1>" >/dev/null 2>&1 || missing+=("$2")
}

# clang's run time for fuzzing: a package of its own that the compiler does not depend on.
need_fuzzer() {
    local runtime
    runtime=$(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a" 2>/dev/null)
    [ -e "${runtime:-}" ] || missing+=(libclang-rt-14-dev)
}

# What scripts/runtimes.sh runs programs with.
need_run_times() {
    need_command javac default-jdk-headless
    need_command go golang-go
    need_command node nodejs
    [ -e /usr/include/node/node_api.h ] || missing+=(libnode-dev)
    need_command rustc rustc
    need_command lua5.4 lua5.4
    [ -e /usr/include/lua5.4/lua.h ] || missing+=(liblua5.4-dev)
    need_command ruby ruby
    need_command gfortran gfortran
    need_command mpicc libopenmpi-dev
    need_command mpirun openmpi-bin
    [ -e /usr/include/tbb/parallel_for.h ] || missing+=(libtbb-dev)
    need_command gdb gdb
    need_command strace strace
    need_command perf linux-perf
    need_command bwrap bubblewrap
    need_command proot proot
    need_command fakeroot fakeroot
    ldconfig -p | grep -q 'libtcmalloc[a-z_]*\.so\.4' || missing+=(libtcmalloc-minimal4)
    ldconfig -p | grep -q 'libjemalloc\.so\.2' || missing+=(libjemalloc2)
    dpkg-query -W libfaketime >/dev/null 2>&1 || missing+=(libfaketime)
}

need_group() {
    case $1 in
    build)
        need_command "${CC%% *}" gcc
        need_command make make
        need_header stdio.h libc6-dev
        need_header jansson.h libjansson-dev
        need_header curses.h libncurses-dev
        ;;
    test)
        need_header criterion/criterion.h libcriterion-dev
        need_command tmux tmux
        need_command python3 python3
        need_command pgrep procps
        ;;
    ci)
        need_command git git
        need_command clang clang
        need_fuzzer
        need_command clang-format clang-format
        need_command clang-tidy clang-tidy
        need_command cppcheck cppcheck
        need_command shellcheck shellcheck
        need_command valgrind valgrind
        need_command readelf binutils
        ;;
    proof)
        need_command aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
        need_command qemu-aarch64 qemu-user
        need_command promtool prometheus
        need_command pkg-config pkgconf
        need_command zsh zsh
        need_command fish fish
        need_command lintian lintian
        [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || missing+=(libc6-dev-arm64-cross)
        need_command chromium chromium
        need_command mmdebstrap mmdebstrap
        need_run_times
        ;;
    *)
        echo "install_dependencies.sh: unknown group '$1': must be build, test, ci or proof" >&2
        exit 2
        ;;
    esac
}

[ $# -gt 0 ] || set -- build
for group in "$@"; do
    need_group "${group#--}"
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "install_dependencies.sh: there is no apt-get here; install what these Debian packages" \
        "hold, then try again: ${missing[*]}" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "install_dependencies.sh: these packages are missing, and there is no sudo to install" \
            "them with: ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "Installing ${missing[*]}"
# A line for each package that is fetched, and for each that is installed.
install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" |
        sed -nu '/^Get:\|^Setting up/s/^/  /p'
}
# Where apt has no lists, or old ones, it says what it cannot find: that is no error yet. A list of others that
# cannot be had is none either.
install 2>/dev/null || {
    "${as_root[@]}" apt-get update -q || true
    install
}
