#!/usr/bin/env bash
# Builds a Debian package of what is built, with dpkg-deb alone: BUILD/cudapool_VERSION_ARCH.deb.
#
# usage: BUILD=dir VERSION=number [CC=compiler] make_deb.sh
set -eu
cd "$(dirname "$0")/.." || exit 2

for tool in dpkg-deb dpkg objdump gzip; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "make_deb.sh: $tool is not installed; it is in Debian's dpkg, binutils or gzip" >&2
        exit 1
    fi
done

architecture=$(dpkg --print-architecture)
triple=$(${CC:-cc} -print-multiarch 2>/dev/null || true)
libdir=/usr/lib${triple:+/$triple}
stage=$BUILD/deb
package=$BUILD/cudapool_${VERSION}_$architecture.deb
docs=$stage/usr/share/doc/cudapool
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

rm -rf "$stage"
make --no-print-directory install BUILD="$BUILD" PREFIX=/usr LIBDIR="$libdir" DESTDIR="$stage" \
    ZSH_COMPLETIONS=/usr/share/zsh/vendor-completions >/dev/null

# The newest glibc that any of the three needs.
glibc=$(objdump -T "$stage/usr/bin/cudapool" "$stage$libdir"/*.so | grep -o 'GLIBC_[0-9.]*' |
    sed 's/GLIBC_//' | sort -V | tail -n 1)

chmod -R u+rwX,go+rX,go-w "$stage"
strip --strip-unneeded --remove-section=.comment "$stage/usr/bin/cudapool" "$stage$libdir"/*.so
chmod 644 "$stage$libdir"/*.so
gzip -9n "$stage/usr/share/man/man1/cudapool.1"
install -d "$docs" "$stage/DEBIAN" "$stage/usr/share/lintian/overrides"

# The one is among the documents, and dpkg has a list of its own.
rm "$stage/usr/share/cudapool/README.md" "$stage/usr/share/cudapool/directories"
# Where they stand, so that the links among them lead to each other.
packaging/linked_documents.sh README.md | while IFS= read -r document; do
    install -D -m 644 "$document" "$docs/$document"
done
maintainer=$(git log -1 --format='%an <%ae>' 2>/dev/null || echo 'The cudapool authors <root@localhost>')
gzip -9n >"$docs/changelog.gz" <<EOF
cudapool ($VERSION) unstable; urgency=medium

  * Version $VERSION.

 -- $maintainer  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
EOF
# Programs are not linked with them: one is preloaded by name, and opens the other.
cat >"$stage/usr/share/lintian/overrides/cudapool" <<'EOF'
cudapool: package-name-doesnt-match-sonames
cudapool: shared-library-lacks-version
EOF
chmod 644 "$stage/usr/share/lintian/overrides/cudapool" "$docs/changelog.gz"
echo 'activate-noawait ldconfig' >"$stage/DEBIAN/triggers"
cat >"$docs/copyright" <<EOF
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: cudapool

Files: *
$(sed -n 's/^\(Copyright\) (c) /\1: /p' LICENSE)
License: Expat
$(sed '1,/^Copyright/d; /./!d; s/^/ /' LICENSE)
EOF
chmod 644 "$docs/copyright"
cat >"$stage/DEBIAN/control" <<EOF
Package: cudapool
Version: $VERSION
Architecture: $architecture
Maintainer: $maintainer
Depends: libc6 (>= $glibc), libjansson4 (>= 2.11), libncursesw6 (>= 6), libtinfo6 (>= 6)
Enhances: libcuda1
Section: utils
Priority: optional
Installed-Size: $(du -k -s "$stage/usr" | cut -f 1)
Description: memory pool in front of the CUDA driver
 Runs CUDA programs with device memory from a caching pool, without a change to
 them, and says afterwards what that saved and where the memory went.
EOF
(cd "$stage" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$stage" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group --build "$stage" "$package" >/dev/null
rm -rf "$stage"
echo "$package"
