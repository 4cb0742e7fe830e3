#!/usr/bin/env bash
# Prints those of the sources whose code differs from a commit, or that include a header whose code does, in
# the work tree. Comments are no code, but for those that silence a check. Where this clone does not have the
# commit, all of them.
#
# usage: changed.sh COMMIT SOURCE...
set -u
cd "$(dirname "$0")/.." || exit 2

commit=$1
shift
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
    printf '%s\n' "$@"
    exit
fi
# A source without its comments; one that silences a check becomes words.
code() {
    sed -E 's@/[*] *((NOLINT|cppcheck-suppress)[^*]*)@ \1 /*@; s@// *((NOLINT|cppcheck-suppress).*)@ \1@' |
        ${CC:-cc} -x c -fpreprocessed -dD -E -P - 2>/dev/null
}
differs() { # name
    case $1 in
    *.c | *.h | *.def) [ ! -f "$1" ] || ! cmp -s <(git show "$commit:$1" 2>/dev/null | code) <(code <"$1") ;;
    esac
}

{
    git diff --name-only "$commit" -- | while read -r name; do
        differs "$name" && printf '%s\n' "$name"
    done
    git ls-files --others --exclude-standard
} >"${changed:=$(mktemp)}"
trap 'rm -f "$changed"' EXIT

# Each source with everything of ours that it includes, as the preprocessor finds it.
for source; do
    ${CC:-cc} -std=gnu17 -D_GNU_SOURCE= -I. -Itests -Itests/unit/fixtures -MM -MG "$source" 2>/dev/null |
        tr ' ' '\n' | sed 's|^\./||; :up; s|[^/]*/\.\./||; t up' | grep -qxFf "$changed" - && echo "$source"
done
exit 0
