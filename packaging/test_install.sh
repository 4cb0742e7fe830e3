#!/usr/bin/env bash
# `make install` and `make uninstall`, below a directory of its own: what is installed works, and afterwards
# everything is as it was before.
#
# usage: [BUILD=dir] test_install.sh
# shellcheck disable=SC2317 # called through check
set -u
cd "$(dirname "$0")/.." || exit 2
BUILD=$(realpath "${BUILD:-build}")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
unset LD_PRELOAD CUDAPOOL_CONFIG CUDAPOOL_REPORT

# shellcheck source=packaging/check_lib.sh
. packaging/check_lib.sh

make_it() { # install or uninstall, variables
    make --no-print-directory BUILD="$BUILD" DESTDIR="$root" "$@"
}

# Everything below the root as it is now, and whether it is as it was.
look() {
    (cd "$root" && find . | sort)
}
begin() { # directories that are there, and a file in each of those that are marked so
    local directory
    rm -rf "$root"
    mkdir "$root"
    for directory in "$@"; do
        mkdir -p "$root/${directory%+}"
        [[ $directory != *+ ]] || : >"$root/${directory%+}/another"
    done
    look >"$work/before"
}
as_before() {
    look | diff "$work/before" -
}

begin
check "it installs" make_it install
check "the command reads the settings" "$root/usr/local/bin/cudapool" check "$root/usr/local/share/cudapool/default.json"
check "it runs a program on the pool" env LD_LIBRARY_PATH="$BUILD/sim" "$root/usr/local/bin/cudapool" run \
    --config "$root/usr/local/share/cudapool/default.json" "$BUILD/demo/demo" steps=20
check "it uninstalls" make_it uninstall
check "and nothing is left" as_before

begin /usr/local/bin /usr/local/share/man /usr/local/lib+
check "beside others" make_it install
check "and once more" make_it install
check "it goes" make_it uninstall
check "and what was there stays, empty directories too" as_before
check "where nothing is installed" make_it uninstall
check "nothing goes" as_before

begin /opt
check "elsewhere" make_it install PREFIX=/opt/pool LIBDIR=/usr/local/lib
: >"$root/opt/pool/share/another"
check "where others came later" make_it uninstall PREFIX=/opt/pool LIBDIR=/usr/local/lib
check "theirs stays" test -e "$root/opt/pool/share/another"
rm -r "$root/opt/pool"
check "and nothing of ours" as_before
exit $failed
