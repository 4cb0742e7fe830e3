#!/usr/bin/env bash
# Cross-builds for aarch64 into build-aarch64 and runs the tests there under qemu.
#
# jansson and ncurses for aarch64 are fetched with apt-get and unpacked below the build directory; nothing is
# installed. The unit tests run with the small runner in tests/plain: Criterion starts each test as
# a new program, which qemu does not follow.
set -eu
cd "$(dirname "$0")/.."

build='build-aarch64'
machine=aarch64
triple=$machine-linux-gnu
root=$PWD/$build/root

fetch_libraries() {
    local lists=$PWD/$build/apt
    local apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64
        -o Dir::State::Lists="$lists" -o APT::Sandbox::User=root)
    mkdir -p "$lists/partial" "$root"
    "${apt[@]}" update
    (cd "$root" && "${apt[@]}" download libjansson4 libjansson-dev libncurses-dev)
    for package in "$root"/*.deb; do
        dpkg -x "$package" "$root"
    done
    # Of ncurses the archives are taken, which no other package's libraries need to be fetched for.
    rm -f "$root/usr/lib/$triple"/lib{ncursesw,tinfo}.so
}

[ -e "$root/usr/include/curses.h" ] || fetch_libraries
export CPPFLAGS="-isystem $root/usr/include -isystem $root/usr/include/$triple"
export LDFLAGS="-L$root/usr/lib/$triple"
make CC=$triple-gcc AR=$triple-ar BUILD=$build CUDA_HOME=/nonexistent NCURSES="-lncursesw -ltinfo" all plain replays

export GUEST_LIBRARY_PATH=$root/usr/lib/$triple
export CC=$triple-gcc NM=$triple-nm READELF=$triple-readelf
BUILD=$build TEST_TIMEOUT=600 RUN_WITH="qemu-$machine -L /usr/$triple" \
    scripts/run_tests.sh tests/unit tests/fuzz conformance interposition exports kinds
