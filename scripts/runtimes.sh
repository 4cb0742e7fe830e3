#!/usr/bin/env bash
# Other run times and tools, as Debian has them: each runs a program of tests/runtimes that allocates and
# frees 40 blocks of device memory on the simulated driver. With the pool it prints the same and ends with
# the same status as without, and the pool's reports have its 40 requests.
#
# usage: [BUILD=dir] runtimes.sh [NAME...]     (names: those of the first column below)
#
# Closes with "N passed, M failed, K skipped". What is not installed is skipped, and so is what does not
# work here without the pool.
set -u
cd "$(dirname "$0")/.." || exit 2
BUILD=$(realpath "${BUILD:-build}")
sources=$PWD/tests/runtimes
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0
export DEBUGINFOD_URLS='' LD_LIBRARY_PATH=$BUILD/sim SIMCUDA_MEMORY=256MiB GOCACHE=$work/go
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

java_home=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")" 2>/dev/null)
library() { # name: its path
    ldconfig -p | sed -n "s|^.*$1 .* => ||p" | head -n 1
}

tcmalloc=$(library libtcmalloc.so.4)
tcmalloc=${tcmalloc:-$(library libtcmalloc_minimal.so.4)}
jemalloc=$(library libjemalloc.so.2)

# A name, what makes the program ("-": nothing but program.c), and what runs it. %w stands for the working
# directory, %s for the sources, %p for the plain program.
C="gcc -O1 -I$sources"
table="
c          | -                                                       | %p
java       | $C -shared -fPIC -I$java_home/include -I$java_home/include/linux %s/java.c -o %w/java.so && javac -d %w %s/Program.java | java -Xcheck:jni -cp %w Program %w/java.so
go         | go build -o %w/go_program %s/main.go                    | %w/go_program
node       | $C -shared -fPIC -I/usr/include/node -I/usr/include/nodejs/src %s/node.c -o %w/addon.node | node %s/program.js %w/addon.node
python     | command -v python3                                      | python3 %s/program.py
rust       | rustc -o %w/rust_program -C link-arg=$BUILD/sim/libcuda.so.1 %s/program.rs | %w/rust_program
lua        | $C -shared -fPIC -I/usr/include/lua5.4 %s/lua.c -o %w/calls.so | lua5.4 %s/program.lua %w
ruby       | command -v ruby                                         | ruby %s/program.rb
fortran    | gfortran -o %w/fortran_program %s/program.f90 $BUILD/sim/libcuda.so.1 | %w/fortran_program
openmp     | $C -fopenmp %s/openmp.c -o %w/openmp                    | %w/openmp
tbb        | g++ -O1 -I$sources %s/tbb.cpp -o %w/tbb -ltbb           | %w/tbb
mpi        | mpicc -O1 -I$sources %s/mpi.c -o %w/mpi                 | mpirun -n 2 %w/mpi
gdb        | command -v gdb                                          | gdb -q -batch -return-child-result -ex run --args %p
strace     | command -v strace                                       | strace -f -o /dev/null %p
valgrind   | command -v valgrind                                     | valgrind -q %p
perf       | command -v perf                                         | perf stat -o /dev/null %p
tcmalloc   | test -e \"$tcmalloc\"                                    | PRELOAD=$tcmalloc %p
jemalloc   | test -e \"$jemalloc\"                                    | PRELOAD=$jemalloc %p
bwrap      | command -v bwrap                                        | bwrap --dev-bind / / --unshare-pid %p
proot      | command -v proot                                        | proot %p
fakeroot   | command -v fakeroot                                     | fakeroot %p
"

# Runs the words, on the pool or without it; what the program says is its line of answers.
run_words() { # "pool" or "", words
    local pool=() first=
    [ -z "$1" ] || pool=("$BUILD/cudapool" run --report "$work/report.json" --)
    shift
    if [[ $1 == PRELOAD=* ]]; then
        first=${1#PRELOAD=}
        shift
    fi
    timeout -k 5 120 env "LD_PRELOAD=$first" "${pool[@]}" "$@" >"$work/output" 2>"$work/errors" </dev/null
    echo "status $?" >>"$work/output"
    # Others may write beside it: the Java machine tells on stdout of signal handlers that are not its own.
    grep -ao 'answered [0-9]*\|^status.*' "$work/output"
}

requests() { # of all processes
    awk '/"totals"/ { totals = 1 }
        totals && /"requests": / { gsub(/[^0-9]/, ""); sum += $0; totals = 0 } END { print sum + 0 }' "$work/report.json"
}

verdict() { # kind, name, why
    case $1 in
    ok) passed=$((passed + 1)) ;;
    FAIL) failed=$((failed + 1)) ;;
    skip) skipped=$((skipped + 1)) ;;
    esac
    echo "$1 $2${3:+: $3}"
}

try() { # name, what makes it, what runs it
    local plain pooled counted
    if [ "$2" != - ] && ! (eval "$2") >"$work/made" 2>&1; then
        verdict skip "$1" "it is not installed, or cannot be built: $(tail -n 1 "$work/made")"
        return
    fi
    rm -f "$work/report.json"
    # shellcheck disable=SC2086 # words
    plain=$(run_words "" $3)
    if [[ $plain != *"answered 40"* ]]; then
        verdict skip "$1" "it does not work here without the pool: $(head -n 1 "$work/errors")"
        return
    fi
    # shellcheck disable=SC2086 # words
    pooled=$(run_words pool $3)
    counted=$(requests)
    if [ "$plain" != "$pooled" ]; then
        verdict FAIL "$1" "\"$pooled\", without the pool \"$plain\": $(tail -n 1 "$work/errors")"
    elif [ "$counted" -ne 40 ]; then
        verdict FAIL "$1" "the reports have $counted requests, not 40"
    else
        verdict ok "$1"
    fi
}

$C "$sources/program.c" -o "$work/program" || exit 1
while IFS='|' read -r name make run; do
    read -r name <<<"$name"
    [ -n "$name" ] || continue
    [ $# -eq 0 ] || printf '%s\n' "$@" | grep -qxF -- "$name" || continue
    for text in make run; do
        declare "$text=${!text//%w/$work}"
        declare "$text=${!text//%s/$sources}"
        declare "$text=${!text//%p/$work/program}"
    done
    read -r make <<<"$make"
    try "$name" "$make" "$run"
done <<<"$table"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
