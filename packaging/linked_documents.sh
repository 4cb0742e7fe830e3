#!/usr/bin/env bash
# Names the files of this repository that a document links, those that they link, and itself, one on
# a line: what has to go along where the links are to lead somewhere.
#
# usage: linked_documents.sh README.md
set -eu
cd "$(dirname "$0")/.." || exit 2

declare -A known
waiting=("$1")
while [ ${#waiting[@]} -gt 0 ]; do
    file=${waiting[0]}
    waiting=("${waiting[@]:1}")
    [ -z "${known[$file]-}" ] || continue
    known[$file]=1
    echo "$file"
    [[ $file == *.md ]] || continue
    # In Markdown, and in HTML within it; a place in a file is the file's.
    while IFS= read -r link; do
        [[ $link == *://* ]] && continue
        target=$(realpath -m --relative-to=. "$(dirname "$file")/$link")
        [ -f "$target" ] && waiting+=("$target")
    done < <(grep -oE '\]\([^)# ]+|(src|href|srcset)="[^"#]+' "$file" | sed -E 's/^(\]\(|[a-z]+=")//')
done
