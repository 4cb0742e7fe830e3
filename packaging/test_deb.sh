#!/usr/bin/env bash
# Installs the Debian package that `make deb` builds, uses what it brings as a user would, and
# removes it. Where it may not be installed (not root), it is unpacked and used from there.
#
# usage: [BUILD=dir] test_deb.sh
# shellcheck disable=SC2317 # called through trap and check
set -u
cd "$(dirname "$0")/.." || exit 2
BUILD=$(realpath "${BUILD:-build}")

work=$(mktemp -d)
installed=
clean_up() {
    [ -z "$installed" ] || dpkg --purge cudapool >/dev/null
    rm -rf "$work"
}
trap clean_up EXIT

# shellcheck source=packaging/check_lib.sh
. packaging/check_lib.sh

says() { # expression, command
    local expression=$1
    shift
    "$@" >"$work/said" 2>&1
    local status=$?
    cat "$work/said"
    [ "$status" -eq 0 ] && grep -q -- "$expression" "$work/said"
}

# As a user calls it: without another make above it.
env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory deb >"$work/made" 2>&1
package=$(tail -n 1 "$work/made")
check "make deb names the package, and warns of nothing" diff "$work/made" <(echo "$package")
check "a package" dpkg-deb --info "$package"
if [ "$(id -u)" -eq 0 ] && ! dpkg -s cudapool >/dev/null 2>&1; then
    check "it installs" dpkg -i "$package"
    installed=1
    root=
else
    check "it unpacks" dpkg-deb -x "$package" "$work/root"
    root=$work/root
fi
libdir=$(dirname "$(find "$root"/usr/lib -name libcudapool_preload.so | head -n 1)")
cd "$work" || exit 2

unset LD_PRELOAD CUDAPOOL_CONFIG CUDAPOOL_REPORT
check "the command says its version" says '^cudapool [0-9]' "$root/usr/bin/cudapool" --version
check "it runs a program on the pool" says 'device memory: .* from the pool' \
    env LD_LIBRARY_PATH="$BUILD/sim" "$root/usr/bin/cudapool" run "$BUILD/demo/demo" steps=20
check "it reads the settings it brings" "$root/usr/bin/cudapool" check "$root"/usr/share/cudapool/{default,strict}.json
check "its schema is there" test -s "$root/usr/share/cudapool/report.schema.json"
# shellcheck disable=SC2086 # a command and its options
check "its header compiles" ${CC:-cc} -fsyntax-only -include "$root/usr/include/cudapool.h" -x c /dev/null
if command -v pkg-config >/dev/null; then
    check "pkg-config knows the library" says "/libcudapool_preload.so$" \
        env PKG_CONFIG_PATH="$libdir/pkgconfig" pkg-config --variable=preload cudapool
fi
if command -v man >/dev/null; then
    check "the manual page reads" says 'GPU' man -l "$root/usr/share/man/man1/cudapool.1.gz"
fi
documents=$root/usr/share/doc/cudapool
links_lead_somewhere() {
    local document link
    find "$documents" -name '*.md' | while IFS= read -r document; do
        grep -oE '\]\([^)# ]+' "$document" | sed 's/^](//; s/^\](//' | grep -v :// | while IFS= read -r link; do
            [ -e "$(dirname "$document")/$link" ] || echo "$document: $link"
        done
    done | tee "$work/lost"
    [ ! -s "$work/lost" ]
}
check "the documents that it brings link each other" links_lead_somewhere
check "the completions for zsh and fish are there" test -s "$root/usr/share/zsh/vendor-completions/_cudapool" -a \
    -s "$root/usr/share/fish/vendor_completions.d/cudapool.fish"
if command -v lintian >/dev/null; then
    check "lintian finds nothing" lintian --allow-root --fail-on error,warning "$BUILD/$(basename "$package")"
fi
check "the completion loads" bash -c ". '$root/usr/share/bash-completion/completions/cudapool'; complete -p cudapool"
exit $failed
