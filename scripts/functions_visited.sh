#!/usr/bin/env bash
# How many functions of the preload object, and how many files, a miss and a context's end visit. A build
# without optimisation runs under callgrind on the simulated driver, so that inlined functions count. A
# function counts if at least every second call came to it.
#
# usage: [BUILD=dir] functions_visited.sh [list]
#
# exits 1 where one is above its ceiling in core/CEILINGS. list: names the functions, by file.
set -euo pipefail
cd "$(dirname "$0")/.."

export BUILD=${BUILD:-build-visits}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make --no-print-directory -j"$(nproc)" CFLAGS="-O0 -g" library sim "$BUILD/tests/bench/visits" >"$work/make" 2>&1 || {
    tail -n 20 "$work/make" >&2
    exit 1
}

# Writes "FILE FUNCTION" for what most of the calls of a function of the driver's came to.
visited() { # call, what the program does, how often
    SIMCUDA_STEPPED=1 SIMCUDA_MEMORY=2GiB LD_LIBRARY_PATH=$BUILD/sim LD_PRELOAD=$BUILD/libcudapool_preload.so \
        CUDAPOOL_REPORT=none valgrind --quiet --tool=callgrind --separate-threads=yes \
        --callgrind-out-file="$work/calls" --compress-strings=no --compress-pos=no \
        --toggle-collect="$1" "$BUILD/tests/bench/visits" "$2" "$3" >"$work/output" 2>&1 || {
        cat "$work/output" >&2
        return 1
    }
    # cob=, cfi= and cfn= name the object, the file and the function that are called; without cob= or cfi=
    # they are those of the caller, which ob=, fl=, fi= and fe= name.
    awk -v least=$(($3 / 2)) -v root="$PWD/" '
        function plain(file) {
            if (index(file, root) == 1) file = substr(file, length(root) + 1)
            return index(file, "./") == 1 ? substr(file, 3) : file
        }
        /^ob=/ { ob = substr($0, 4) }
        /^(fl|fi|fe)=/ { file = plain(substr($0, 4)) }
        /^cob=/ { cob = substr($0, 5) }
        /^cf[il]=/ { cfile = plain(substr($0, 5)) }
        /^cfn=/ { cfn = substr($0, 5) }
        /^calls=/ {
            split(substr($1, 7), n, " ")
            if ((cob == "" ? ob : cob) ~ /libcudapool_preload\.so/)
                calls[(cfile == "" ? file : cfile) " " cfn] += n[1]
            cob = cfile = ""
        }
        END { for (name in calls) if (calls[name] >= least && name !~ /\?\?\?/) print name }' "$work/calls-01" |
        sort
}

failed=0
hold() { # number, what
    local most
    most=$(sed -nE "s/^([0-9]+) +$2\$/\1/p" core/CEILINGS)
    if [ "$1" -gt 0 ] && [ "$1" -le "${most:-0}" ]; then
        echo "ok $1 $2"
    else
        echo "FAIL $1 $2, at most ${most:-0} (core/CEILINGS)"
        failed=1
    fi
}

for what in miss end; do
    case $what in
    miss) call=cuMemAlloc_v2 name="a miss" ;;
    end) call=cuCtxDestroy_v2 name="a context's end" ;;
    esac
    visited "$call" "$what" 40 >"$work/$what"
    [ "${1:-}" != list ] || sed "s/^/$what /" "$work/$what"
    hold "$(wc -l <"$work/$what")" "functions that $name visits"
    hold "$(cut -d' ' -f1 "$work/$what" | sort -u | wc -l)" "files that $name visits"
done
exit $failed
