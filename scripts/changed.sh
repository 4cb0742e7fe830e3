#!/usr/bin/env bash
# Prints those of the sources that differ from a commit, or include a header that does, in the work tree.
# Where this clone does not have the commit, all of them.
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
{
    git diff --name-only "$commit" --
    git ls-files --others --exclude-standard
} >"${changed:=$(mktemp)}"
trap 'rm -f "$changed"' EXIT

# Each source with everything of ours that it includes, as the preprocessor finds it.
for source; do
    ${CC:-cc} -std=gnu17 -D_GNU_SOURCE= -I. -Itests -Itests/unit/fixtures -MM -MG "$source" 2>/dev/null |
        tr ' ' '\n' | sed 's|^\./||; :up; s|[^/]*/\.\./||; t up' | grep -qxFf "$changed" - && echo "$source"
done
exit 0
