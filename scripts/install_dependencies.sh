#!/usr/bin/env bash
# Installs with apt-get what is missing, and nothing where nothing is.
#
# usage: install_dependencies.sh [build] [test] [ci] [browser]     (default: build)
#   build  a C compiler, make, jansson, ncurses with wide characters
#   test   Criterion, and tmux for what is shown on terminals
#   ci     what .ci/run needs besides: linters, valgrind, the aarch64 cross compiler, qemu-user,
#          promtool, pkg-config, other shells than bash, lintian
#   browser  Chromium, in which the report's page is tested
set -eu

CC=${CC:-cc}
missing=()

need_command() { # command package
    command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

need_header() { # header package
    printf '#include <%s>\n' "$1" | $CC -E - >/dev/null 2>&1 || missing+=("$2")
}

# clang's run time for fuzzing: a package of its own that the compiler does not depend on.
need_fuzzer() {
    local runtime
    runtime=$(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a" 2>/dev/null)
    [ -e "${runtime:-}" ] || missing+=(libclang-rt-14-dev)
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
        ;;
    ci)
        need_command git git
        need_command python3 python3
        need_command clang clang
        need_fuzzer
        need_command clang-format clang-format
        need_command clang-tidy clang-tidy
        need_command cppcheck cppcheck
        need_command shellcheck shellcheck
        need_command valgrind valgrind
        need_command aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
        need_command qemu-aarch64 qemu-user
        need_command readelf binutils
        need_command promtool prometheus
        need_command pkg-config pkgconf
        need_command zsh zsh
        need_command fish fish
        need_command lintian lintian
        [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || missing+=(libc6-dev-arm64-cross)
        ;;
    browser)
        need_command chromium chromium
        ;;
    *)
        echo "install_dependencies.sh: unknown group '$1': must be build, test, ci or browser" >&2
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
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q --no-install-recommends "${missing[@]}")
"${install[@]}" >/dev/null 2>&1 || {
    "${as_root[@]}" apt-get update -q
    "${install[@]}"
}
