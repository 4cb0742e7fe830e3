#!/usr/bin/env bash
# Where reports go: every program here takes memory of CUDA's on the simulated driver, and what is
# written is what it took. Destinations that can be written, in each format; that cannot, before the
# program starts; and that cannot any more when it ends.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

if [ -n "${RUN_WITH:-}" ]; then
    skip destinations "the command is for another processor"
    exit 0
fi
cudapool=$BUILD/cudapool
outputs=$programs/outputs
export LD_LIBRARY_PATH=$SIM
unset CUDAPOOL_FIGURES CUDAPOOL_REPORT CUDAPOOL_CONFIG LD_PRELOAD
cd "$work" || exit 1

# run STATUS ARGUMENTS...: cudapool run, which must end so; its output is in out and err.
run() {
    local wanted=$1 got
    shift
    timeout -k 5 "$seconds" "$cudapool" run "$@" >out 2>err </dev/null
    got=$?
    [ "$got" -eq "$wanted" ] || { echo "exit status $got, not $wanted: $(cat err)"; return 1; }
}
# The requests that a file in JSON tells, of all buckets.
requests() { # file
    "$cudapool" report --format csv "$1" | awk -F, 'NR > 1 { sum += $8 } END { print sum + 0 }'
}
has() { # file, expression...
    local file=$1 expression
    shift
    for expression in "$@"; do
        grep -Eq -- "$expression" "$file" || { echo "no \"$expression\" in $file: $(head -c 600 "$file")"; return 1; }
    done
}
is_empty() { # file
    [ ! -s "$1" ] || { head -n 3 "$1"; return 1; }
}
tells() { # requests, file
    [ "$(requests "$2")" = "$1" ] || { echo "$(requests "$2") requests, not $1"; return 1; }
}
nothing_beside() { # directory, files that may be there
    [ "$(ls "$1")" = "$2" ] || { ls "$1"; return 1; }
}

# --- files below /dev ---------------------------------------------------------------------------------------

shm=$(mktemp -d /dev/shm/cudapool-test-XXXXXX 2>/dev/null)
if [ -n "$shm" ]; then
    trap 'rm -rf "$work" "$shm"' EXIT
    expect "a file in /dev/shm" run 0 --report "$shm/all.json" "$outputs" device=7
    expect "has what the program took" tells 7 "$shm/all.json"
    expect "and nothing else is left there" nothing_beside "$shm" all.json
    expect "also without figures" run 0 --set figures.enabled=false --report "$shm/all.json" "$outputs" device=3
    expect "in place of the one before" tells 3 "$shm/all.json"
    expect "of each process" run 0 --report "$shm/each-%p.json" "$outputs" device=5
    expect "is there" tells 5 "$shm"/each-*.json
    expect "that a process writes itself" on_pool "CUDAPOOL_REPORT=$shm/own.json" -- "$outputs" device=2
    expect "is there as well" tells 2 "$shm/own.json"
else
    skip "a file in /dev/shm" "there is no /dev/shm"
fi
expect "without figures and without a file the table is there" run 0 --set figures.enabled=false "$outputs" device=4
expect "on stderr" has err '^cudapool: process ' 'device memory: 4 requests'
expect "/dev/null stays what it is" run 0 --report /dev/null "$outputs" device=1
expect "a device" test -c /dev/null
echo before >log
expect "a file that is open already is written to" bash -c "exec 3>>log; '$cudapool' run --report /dev/fd/3 '$outputs' device=6"
expect "after what is in it" has log '^before$' '"requests": 6'

# --- formats --------------------------------------------------------------------------------------------------

for name in r.csv r.html r.htm r.prom r.trace r.trace.json r.txt r.json r; do
    expect "run --report $name" run 0 --report "$name" "$outputs" device=9 pinned=2
    expect "says where it is" has err "^cudapool: the report of 1 process is in $work/$name\$"
    case $name in
    *.csv) expect "as values" has $name '^host,pid,' ',device,1048576,9,' ',host,1048576,2,' ;;
    *.htm*) expect "as a page" has $name '^<!DOCTYPE html>' 'data-key="device/1048576/requests" data-value="9"' ;;
    *.prom) expect "for Prometheus" has $name '^cudapool_requests_total\{.*kind="device",bucket_bytes="1048576"\} 9$' 'pid="[0-9]+"' ;;
    *.trace*) expect "as a trace" has $name '"traceEvents"' 'outputs device=9 pinned=2' ;;
    *.txt) expect "as a table" has $name '^cudapool: process ' 'device memory: 9 requests' 'host memory: 2 requests' ;;
    *) expect "as JSON" tells 11 $name ;;
    esac
    case $name in # as `cudapool report -o` writes it
    *.csv | *.htm* | *.prom | *.trace*)
        "$cudapool" run --report same.json "$outputs" device=9 2>/dev/null
        "$cudapool" report -o "again-$name" same.json
        expect "with the beginning that report -o writes" cmp -n 60 $name "again-$name"
        ;;
    esac
done
two="'$outputs' device=3; '$outputs' device=4"
expect "two processes in one file" run 0 --report two.csv sh -c "$two"
expect "with a line for each" has two.csv ',device,1048576,3,' ',device,1048576,4,'
expect "one page of both" run 0 --report two.html sh -c "$two"
expect "with their sum" has two.html 'data-key="device/1048576/requests" data-value="7"'
expect "a process that executes another has one number twice" run 0 --report exec.prom "$programs/figures" exec
expect "and samples once" test "$(grep -c '^cudapool_wall_seconds{' exec.prom)" -eq 1
expect "a file for each process, in any format" run 0 --report 'each-%p.csv' sh -c "$two"
expect "is there for each" test "$(cat each-*.csv | grep -cE ',device,1048576,[34],')" -eq 2
expect "and they are counted" has err '^cudapool: 2 reports are there, each as '
expect "also of one that was killed" run 134 --report 'killed-%p.txt' "$outputs" device=8 abort
expect "by its figures" has "$(echo killed-*.txt)" 'killed by SIGABRT' 'device memory: 8 requests'
expect "- is stdout" run 5 --report - "$outputs" device=6 exit=5
expect "for the report as JSON" tells 6 out
expect "and stderr has no word of it" is_empty err
expect "there is no file of that name" test ! -e ./-

# --- destinations that cannot be written ------------------------------------------------------------------------

mkdir directory
cannot() { # name, why, options of run
    local name=$1 why=$2
    shift 2
    rm -f started
    expect "$name: nothing is run" run 2 "$@" sh -c "touch started; '$outputs' device=1"
    expect "$name: one line says why" has err "^cudapool: [^ ]*: the report cannot be written: $why\$"
    expect "$name: and nothing else" test "$(wc -l <err)" -eq 1
    expect "$name: the program has not started" test ! -e started
}
cannot "no directory" "No such file or directory" --report "$work/no/such.json"
cannot "no directory, for each process" "No such file or directory" --report "$work/no/such-%p.json"
cannot "no directory, for a page" "No such file or directory" --report no/such.html
cannot "a directory" "Is a directory" --report directory
cannot "a directory by its end" "Is a directory" --report directory/
cannot "no directory in the settings" "No such file or directory" --set "report.file=$work/no/such.json"
export CUDAPOOL_REPORT=$work/no/such.json
cannot "no directory in CUDAPOOL_REPORT" "No such file or directory"
unset CUDAPOOL_REPORT
expect "a directory that processes make for themselves may be missing" run 0 --report 'of-%p/x.json' \
    sh -c "mkdir of-\$\$; exec '$outputs' device=2"
expect "and is written to" tells 2 of-*/x.json
expect "nothing is left in the directory" nothing_beside directory ""
if [ "$(id -u)" -eq 0 ] && [ -z "$SANITIZE" ] && command -v setpriv >/dev/null; then
    theirs=$(mktemp -d) && chmod 755 "$theirs"
    cp "$cudapool" "$PRELOAD" "$BUILD/libcudapool_config.so" "$theirs"
    if setpriv --reuid 65534 --clear-groups "$theirs/cudapool" --version >/dev/null 2>&1; then
        as_nobody() {
            rm -f "$theirs/started"
            setpriv --reuid 65534 --clear-groups "$theirs/cudapool" run "$@" >out 2>err
            [ $? -eq 2 ]
        }
        expect "no permission: nothing is run" as_nobody --report "$theirs/x.json" true
        expect "no permission: why" has err '^cudapool: [^ ]*: the report cannot be written: Permission denied$'
    else
        skip "no permission" "another user cannot reach the build"
    fi
    rm -rf "$theirs"
else
    skip "no permission" "it takes root and setpriv to be another user"
fi
"$cudapool" run --report some.json "$outputs" device=1 2>/dev/null
no_output() { # status, file, why
    "$cudapool" report --format html -o "$2" some.json >out 2>err
    [ $? -eq "$1" ] && has err "^cudapool: $2: cannot be written: $3\$"
}
expect "report -o of a missing directory" no_output 2 no/such.html "No such file or directory"
expect "report -o of a directory" no_output 2 directory "Is a directory"
expect "report -o of a full disk" no_output 1 /dev/full "No space left on device"
ln -s real.html link.html && touch real.html
expect "report -o follows a link" "$cudapool" report -o link.html some.json
expect "and writes the file" has real.html '^<!DOCTYPE html>'
expect "which stays linked" test -L link.html

# --- destinations that cannot be written any more -----------------------------------------------------------------

gone() { # file, what the program does besides
    rm -rf gone
    mkdir gone
    run 0 --report "gone/$1" sh -c "rm -r gone; $2"
}
for name in x.json x.html x.csv; do
    expect "the directory is removed meanwhile: $name" gone $name "$two"
    expect "which is told" has err "^cudapool: $work/gone/$name: the report cannot be written: No such file"
    expect "and the table is on stderr" has err '^cudapool: ran .*: 2 processes' 'device memory: 7 requests'
    expect "for each process: $name" gone "%p-$name" "$two"
    expect "has a table for each" has err '^cudapool: process .* device=3$' '^cudapool: process .* device=4$' \
        'device memory: 3 requests' 'device memory: 4 requests'
    expect "and none says that there is no report" bash -c "! grep -E 'no process|no report' err"
done
expect "a program that was killed" gone "%p.json" "'$outputs' device=5 _exit"
expect "has its table as well" has err 'device memory: 5 requests'
expect "a full disk" run 0 --report /dev/full "$outputs" device=3
expect "which is called so" has err '^cudapool: /dev/full: the report cannot be written: No space left on device$'
expect "and the table of it" has err 'device memory: 3 requests'
own_failure() { # file
    on_pool "CUDAPOOL_REPORT=$1" -- "$outputs" device=4 >out 2>err
}
expect "a process that cannot write its own file" own_failure "$work/no/such.json"
expect "says so" has err '^cudapool: report: .*no/such\.json: the report cannot be written: No such file'
expect "and writes the table to stderr" has err '^cudapool: process ' 'device memory: 4 requests'
own_table_failure() {
    on_pool "CUDAPOOL_CONFIG={\"report\": {\"at_exit\": \"table\", \"file\": \"$work/no/such.txt\"}}" -- \
        "$outputs" device=4 >out 2>err
}
expect "nor a table" own_table_failure
expect "which is on stderr then" has err 'report: .*No such file' 'device memory: 4 requests'

# --- why there is no report ----------------------------------------------------------------------------------------

expect "pinned memory has a report" run 0 "$outputs" pinned=6
expect "of its own" has err 'host memory: 6 requests'
expect "stream-ordered memory as well" run 0 "$outputs" ordered=6
expect "of its kind" has err 'stream_ordered memory: 6 requests'
expect "managed memory passes by" run 0 "$outputs" managed=2
expect "and is told" has err '^  beside the pool, at most: managed 1\.0 MiB$'
expect "what the settings leave to the driver" run 0 --set host.enabled=false "$outputs" pinned=2
expect "is named as well" has err 'what settings leave to the driver'
expect "killed, and without figures" run 134 --set figures.enabled=false "$outputs" device=2 abort
expect "nobody knows what it took" has err '^cudapool: there is no report: the program was killed by SIGABRT, and figures,'
expect "left by _exit, and without figures" run 0 --set figures.enabled=false "$outputs" device=2 _exit
expect "that is among the reasons" has err '^cudapool: there is no report: .*_exit'
finish
