#!/usr/bin/env bash
# Runs the tests with the glibc of Debian 11 (2.31), in which dlopen and threads are still in libraries
# of their own, as they are in every glibc from 2.28 to 2.33. The preload object is the one that was
# built here; the settings reader, the simulated driver and the programs are built against that one.
#
# usage: [BUILD=dir] old_glibc.sh     BUILD: where the preload object is (default: build)
#
# Its packages are fetched with apt-get and unpacked below the build directory; nothing is installed.
# x86-64 only.
set -eu
cd "$(dirname "$0")/.."

here=$(realpath "${BUILD:-build}")
build='build-glibc-2.31'
root=$PWD/$build/root
triple=x86_64-linux-gnu

fetch_glibc() {
    local apt=$PWD/$build/apt
    mkdir -p "$apt/partial" "$root"
    printf 'deb %s http://deb.debian.org/debian bullseye main\n' \
        '[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]' >"$build/sources.list"
    local get=(apt-get -q -o Dir::State::Lists="$apt" -o Dir::State::Status=/dev/null
        -o Dir::Etc::SourceList="$PWD/$build/sources.list" -o Dir::Etc::SourceParts=/nonexistent
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
    "${get[@]}" update
    (cd "$root" && "${get[@]}" download libc6 libc6-dev linux-libc-dev libjansson4 libjansson-dev \
        libncurses-dev)
    for package in "$root"/*.deb; do
        dpkg -x "$package" "$root"
    done
    # Of ncurses the archives are taken, which no other package's libraries need to be fetched for.
    rm -f "$root/usr/lib/$triple"/lib{ncursesw,tinfo}.so
    rm -rf "${root:?}/etc" # make takes its ld.so.conf.d for a file of its own
    stay_below_root
}

# Links to /lib would lead out of it.
stay_below_root() {
    find "$root" -type l -lname '/*' | while read -r link; do
        ln -sfn "$root$(readlink "$link")" "$link"
    done
}

[ -e "$root/lib/$triple/ld-2.31.so" ] || fetch_glibc
libraries=$root/lib/$triple:$root/usr/lib/$triple
export CPPFLAGS="-isystem $root/usr/include/$triple"
export LDFLAGS="-L$root/usr/lib/$triple -L$root/lib/$triple"
make CC="gcc --sysroot=$root" BUILD=$build CUDA_HOME=/nonexistent NCURSES="-lncursesw -ltinfo" all plain
cp "$here/libcudapool_preload.so" $build/

# Keys of thread-specific data are numbered anew in each namespace there, for one and the same thread:
# a second namespace with threads does not work, whoever opens it.
BUILD=$build NAMESPACES=no TEST_TIMEOUT=300 GUEST_LIBRARY_PATH=$libraries \
    RUN_WITH=$root/lib/$triple/ld-2.31.so \
    scripts/run_tests.sh tests/unit conformance gpu_programs interposition exports process_life kinds
