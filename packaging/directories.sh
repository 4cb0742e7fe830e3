#!/usr/bin/env bash
# Makes the directories of `make install`, and removes for `make uninstall` those that were not there before
# and that nobody else uses by now. A file among what is installed lists them, each before the one that it is in.
#
# usage: directories.sh make DESTDIR FILE DIRECTORY...
#        directories.sh remove DESTDIR FILE
set -eu
action=$1
destdir=$2
list=$3
shift 3

listed() {
    cat "$destdir$list" 2>/dev/null || true
}

missing() { # directory...
    local directory
    for directory in "$@"; do
        while [ "$directory" != / ] && [ ! -d "$destdir$directory" ]; do
            echo "$directory"
            directory=$(dirname "$directory")
        done
    done
}

if [ "$action" = make ]; then
    made=$(sort -ru <(missing "$@") <(listed))
    install -d "${@/#/$destdir}"
    echo "$made" >"$destdir$list"
else
    made=$(listed)
    rm -f "$destdir$list"
    while IFS= read -r directory; do
        [ ! -d "$destdir$directory" ] || rmdir --ignore-fail-on-non-empty "$destdir$directory"
    done < <(echo "${made:-$(dirname "$list")}")
fi
