#!/usr/bin/env bash
# Figures: the file with a process's counters, from outside. Where it is made and when it goes, what
# is read of a process that was killed, what `cudapool run` makes of it, and that a file that cannot be
# had changes nothing.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

program=$programs/figures
cudapool=$BUILD/cudapool
runtime=$(mktemp -d /dev/shm/cudapool-test-XXXXXX) || {
    skip figures "there is no /dev/shm"
    exit 0
}
trap 'rm -rf "$work" "$runtime"' EXIT
export XDG_RUNTIME_DIR=$runtime
unset CUDAPOOL_FIGURES CUDAPOOL_REPORT CUDAPOOL_CONFIG
usual=$runtime/cudapool-$(id -u)
named=$work/named
mkdir "$named"

in_named() { # how the program ends
    on_pool CUDAPOOL_REPORT=none "CUDAPOOL_FIGURES=$named" -- "$program" "$@"
}
count_in() { # directory, number
    [ "$(find "$1" -name '*.figures' | wc -l)" -eq "$2" ]
}
command_on() { # arguments of cudapool
    env "LD_LIBRARY_PATH=${GUEST_LIBRARY_PATH:-}" "$cudapool" "$@"
}
requests_in() { # file
    command_on report --format csv "$1" | awk -F, 'NR > 1 { sum += $8 } END { print sum + 0 }'
}
clean_up() {
    find "$named" "$runtime" -name '*.figures' -delete
}

# --- where, and for how long -------------------------------------------------------------------------

looks() { # while it runs: one file, in a directory of one's own
    on_pool CUDAPOOL_REPORT=none -- "$program" wait >"$work/ready" &
    local waiting=$! tries=0 mode
    until grep -q ready "$work/ready" || [ $((tries += 1)) -gt 500 ]; do sleep 0.01; done
    mode=$(stat -c %a "$usual" "$usual"/*.figures | tr '\n' ' ')
    kill -KILL "$(sed -n 's/^ready //p' "$work/ready")"
    wait "$waiting" 2>/dev/null
    [ "$mode" = "700 600 " ] || { echo "modes $mode"; return 1; }
}
expect "while it runs: one file, which is private" looks 2>/dev/null
expect "which stays when it is killed" count_in "$usual" 1
expect "and is a report" test "$(requests_in "$usual"/*.figures)" -eq 32
expect "of a process that was killed" grep -q '^killed, or ended without a word' \
    <(command_on report "$usual"/*.figures)
clean_up
expect "a process that exits" on_pool CUDAPOOL_REPORT=none -- "$program" exit
expect "removes its file" count_in "$usual" 0
expect "a fork's child that exits first" on_pool CUDAPOOL_REPORT=none \
    "AFTER_FORK=ls '$usual'/*.figures" -- "$program" fork
expect "does not, and its parent does" count_in "$usual" 0
printf '{"version": 1, "figures": {"keep": true}}\n' >"$work/keep.json"
expect "a process that keeps its file" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$work/keep.json" \
    -- "$program" exit
expect "keeps it" count_in "$usual" 1
if command_on report "$usual"/*.figures | grep -q '^killed'; then
    fail "which is no sign of having been killed" "it says so"
else
    ok "which is no sign of having been killed"
fi
clean_up
{ on_pool CUDAPOOL_REPORT=none CUDAPOOL_FIGURES=none -- "$program" kill; } 2>/dev/null
expect "none if so wished" count_in "$usual" 0
for how in _exit abort kill; do
    clean_up
    { in_named $how; } 2>/dev/null
    expect "after $how the file is there" test "$(requests_in "$named"/*.figures)" -eq 100
done
clean_up
printf '{"version": 1, "device": {"buckets": {"policy": "exact"}}, "figures": {"keep": true}}\n' \
    >"$work/exact.json"
expect "with many sizes" on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$work/exact.json" \
    -- "$program" sizes
expect "the file grows" test "$(stat -c %s "$usual"/*.figures)" -gt 65536
expect "and holds them all" test "$(requests_in "$usual"/*.figures)" -eq 2600
clean_up
expect "exec of itself" in_named exec
expect "leaves the first one's file alone" test "$(requests_in "$named"/*.figures)" -eq 100
clean_up

# What killed processes leave does not grow for ever: the oldest of the dead go.
for i in $(seq 1 80); do
    : >"$usual/$((4000000 + i))-$i-$(readlink /proc/self/ns/pid | tr -dc 0-9)-0.figures"
done
expect "where many were left behind" on_pool CUDAPOOL_REPORT=none -- "$program" exit
expect "the oldest go" count_in "$usual" 32
expect "and not the newest" test -e "$usual"/4000080-80-*-0.figures
clean_up

# In other pid namespaces as well, where a number says nothing.
namespace=(unshare --pid --fork --mount-proc --kill-child)
in_namespace=("${namespace[@]}" env "LD_LIBRARY_PATH=$SIM" "LD_PRELOAD=$PRELOAD" CUDAPOOL_REPORT=none
    "$program")
if [ -z "${RUN_WITH:-}$SANITIZE" ] && "${namespace[@]}" true 2>/dev/null; then
    rm -f "$work/ready" # an earlier one's
    "${in_namespace[@]}" wait >"$work/ready" 2>/dev/null &
    one=$!
    until grep -q ready "$work/ready" 2>/dev/null; do sleep 0.01; done
    alive=$(echo "$usual"/*.figures)
    expect "of a process in another pid namespace it is seen that it runs" grep -q '^still running' \
        <(command_on report "$alive")
    for i in $(seq 1 70); do "${in_namespace[@]}" kill 2>/dev/null; done
    expect "what it leaves when it is killed does not grow either" test \
        "$(find "$usual" -name '*.figures' | wc -l)" -le 64
    expect "but that of one that runs stays" test -e "$alive"
    command_on top --count 1 "$usual" >"$work/top"
    expect "and is the only one that is shown as running" grep -q ': 1 process on the pool' "$work/top"
    kill -KILL "$one"
    wait 2>/dev/null
    seen_to_be_gone() { # the kernel takes its time with a process
        local tries=0
        until command_on report "$alive" | grep -q '^killed'; do
            [ $((tries += 1)) -le 200 ] || return 1
            sleep 0.01
        done
    }
    expect "and is seen to be gone once it is killed" seen_to_be_gone
    clean_up
    { on_pool CUDAPOOL_REPORT=none -- "$program" leave_child; } 2>/dev/null
    sleep 0.2
    file=$(echo "$usual"/*.figures)
    expect "a fork's child does not keep the file in use" grep -q '^killed' \
        <("${namespace[@]}" env "LD_LIBRARY_PATH=${GUEST_LIBRARY_PATH:-}" "$cudapool" report "$file")
    clean_up
fi

# --- truncated -------------------------------------------------------------------------------------------

truncated() { # bytes, how it reports, case of the program
    clean_up
    on_pool "CUDAPOOL_FIGURES=$named" "$2" -- "$program" "${3:-truncated}" "$1" "$named/*.figures" \
        >"$work/stdout" 2>"$work/stderr" && [ ! -s "$work/stdout" ] && count_in "$named" 0
}
no_report="cudapool: report: there is none: somebody has truncated the file of this process's figures"
# ThreadSanitizer takes the mapping that the handler puts in the file's place for a write beside reads.
if [ "$SANITIZE" != thread ]; then
    for bytes in 0 1 4096 8192 61440; do
        expect "a file that is truncated to $bytes bytes while it is counted in" truncated $bytes CUDAPOOL_REPORT=stderr
        expect_lines "is one line" "$work/stderr" "$no_report"
        expect "and $bytes bytes in threads that block SIGBUS" truncated $bytes CUDAPOOL_REPORT=stderr truncated_for_deaf
    done
    expect "and no report" truncated 0 "CUDAPOOL_REPORT=$work/truncated.json"
    expect "of any kind" test ! -e "$work/truncated.json"
    expect "nor a word where none is wished for" truncated 0 CUDAPOOL_REPORT=none
    expect_lines "at all" "$work/stderr"
fi
rm -f "$work/ready"
on_pool CUDAPOOL_REPORT=none -- "$program" wait >"$work/ready" 2>/dev/null &
until grep -q ready "$work/ready" 2>/dev/null; do sleep 0.01; done
cut_and_read() { # command: while somebody truncates the file again and again
    local i
    for i in 1 2 3 4 5 6 7 8; do
        truncate -s $((RANDOM * 2)) "$usual"/*.figures
        "$@" >/dev/null 2>&1
        [ $? -le 2 ] || return 1
    done
}
expect "a file that is truncated is read" cut_and_read command_on report "$usual"/*.figures
expect "and looked at" cut_and_read command_on top --count 1 "$usual"
kill -KILL "$(sed -n 's/^ready //p' "$work/ready")"
wait 2>/dev/null
clean_up
if [ -z "$SANITIZE" ]; then # whose handler comes first
    bus() { # what
        on_pool CUDAPOOL_REPORT=none -- "$program" bus "$1"
    }
    (ulimit -c 0; bus unhandled) 2>/dev/null
    expect "a SIGBUS of the program's own ends it" test $? -eq 135
    (ulimit -c 0; bus sent) 2>/dev/null
    expect "as does one that is sent" test $? -eq 135
    expect "unless it has a handler" bus handled
    expect "which may call the one before it" bus chained
    expect "or waits for it" bus awaited
    clean_up
fi

# --- cudapool top --------------------------------------------------------------------------------------

top() { # arguments; the table goes to $work/top
    command_on top "$@" >"$work/top" 2>"$work/stderr"
}
shows() { # expression...
    has_lines "$work/top" "$@" || {
        cat "$work/stderr"
        return 1
    }
}
waiting() { # a process that has counted, and waits; its number goes to $work/pid
    rm -f "$work/ready"
    on_pool CUDAPOOL_REPORT=none -- "$program" wait >"$work/ready" 2>/dev/null &
    local tries=0
    until grep -q ready "$work/ready" 2>/dev/null || [ $((tries += 1)) -gt 500 ]; do sleep 0.01; done
    sed -n 's/^ready //p' "$work/ready"
}
expect "top without a process" top --count 1 "$usual"
expect "says that there is none" shows '^cudapool top, ..:..:..: 0 processes on the pool$'
one=$(waiting)
expect "top with one" top --count 2 --interval 0.1 "$usual"
expect "shows it and its buckets" shows ': 1 process on the pool$' "^ +$one .* 0 B +[0-9.]+ [MK]?i?B" \
    '^ +1 MiB +[0-9]+ +[0-9]+% .*device 0, device$'
expect "twice" test "$(grep -c '^cudapool top' "$work/top")" -eq 2
expect "and the second time what was asked for in between" shows '^ +1 MiB +0 +- +0 '
two=$(waiting)
expect "top with two" top --count 1 "$usual"
expect "shows both, and no buckets" shows ': 2 processes on the pool$' "^ +$one " "^ +$two "
expect "not a bucket" bash -c "! grep -q '1 MiB ' '$work/top'"
# Others of this user may be on the pool as well.
expect "top of all" top --count 1
expect "shows both, too" shows "^ +$one " "^ +$two "
expect "top of one of them" top --count 1 "$two"
expect "shows that one" shows ': 1 process on the pool$' "^ +$two " '^ +1 MiB '
expect "top of a directory" top --count 1 "$named"
expect "shows what is there" shows ': 0 processes'
kill -KILL "$one" "$two"
wait 2>/dev/null
expect "top shows none that is gone" top --count 1 "$usual"
expect "none at all" shows ': 0 processes'
bad_top() { # expression, arguments
    local expression=$1
    shift
    top "$@"
    [ $? -eq 2 ] && grep -Eq "^cudapool: $expression" "$work/stderr" && [ "$(wc -l <"$work/stderr")" -eq 1 ]
}
expect "top of a process that is gone" bad_top "top: there are no figures of process $one" "$one"
expect "top of no process" bad_top 'top: process: found "x1", allowed is a number' x1
expect "top of too many" bad_top 'top: found "2" after "1"' 1 2
expect "too often" bad_top 'top: --interval: found "0"' --interval 0
expect "in no such order" bad_top 'top: --sort: found "size", allowed is process, requests, hits, memory, cached or name' --sort size
expect "not so many times" bad_top 'top: --count: found "-1"' --count -1
clean_up

# --- what may not matter -----------------------------------------------------------------------------

quiet() { # variables, --: all is as if there were no figures
    on_pool CUDAPOOL_REPORT=none "$@" "$program" exit >"$work/stdout" 2>"$work/stderr" &&
        ! [ -s "$work/stdout" ] && ! [ -s "$work/stderr" ]
}
expect "a directory that is not there, named by whoever collects" quiet CUDAPOOL_FIGURES=/nowhere/at/all --
expect "none, for whoever collects" quiet CUDAPOOL_FIGURES=none --
on_pool CUDAPOOL_REPORT=none CUDAPOOL_FIGURES=/x/%q -- "$program" exit 2>"$work/stderr"
expect "a name that cannot be one" test $? -eq 0
expect_lines "is one line, too" "$work/stderr" \
    'cudapool: CUDAPOOL_FIGURES: found "/x/%q"; allowed are none and the name of a directory .*; the program runs without the pool'
expect "directories that are not there" quiet XDG_RUNTIME_DIR=/nowhere --
printf '{"version": 1, "figures": {"directory": "/nowhere/at/all"}}\n' >"$work/nowhere.json"
on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$work/nowhere.json" -- "$program" exit 2>"$work/stderr"
expect "one that the settings name" test $? -eq 0
expect_lines "is one line" "$work/stderr" \
    'cudapool: figures: /nowhere/at/all: No such file or directory; the program runs without a file of them'
ln -s "$named" "$runtime/other" && mkdir -p "$work/x" && ln -s "$named" "$work/x/cudapool-$(id -u)"
rm -rf "$usual" && ln -s "$named" "$usual"
expect "a link in place of the private directory" quiet --
expect "is not followed" count_in "$named" 0
rm -f "$usual" && mkdir -m 755 "$usual"
expect "a directory that others can look into" quiet --
expect "is not used" count_in "$usual" 0
rmdir "$usual"
limited() { # KiB that files may have
    (ulimit -f "$1" && quiet --)
}
if [ -z "${COVERAGE:-}" ]; then
    expect "a limit on the size of files" limited 8
    expect "leaves none" count_in "$usual" 0
fi
full() {
    mkdir "$runtime/full" && mount -t tmpfs -o size=32k tmpfs "$runtime/full" 2>/dev/null || return 0
    on_pool CUDAPOOL_REPORT=none "CUDAPOOL_FIGURES=$runtime/full" -- "$program" exit 2>"$work/stderr" &&
        count_in "$runtime/full" 0 && ! [ -s "$work/stderr" ]
    local status=$?
    umount "$runtime/full"
    return "$status"
}
expect "a full disk" full

# --- files that are none ------------------------------------------------------------------------------

in_named kill 2>/dev/null
file=$(echo "$named"/*.figures)
refused() { # expression; the file is $work/bad
    command_on report "$work/bad" >"$work/stdout" 2>"$work/stderr"
    if [ $? -ne 2 ] || [ -s "$work/stdout" ] || [ "$(wc -l <"$work/stderr")" -ne 1 ] ||
        ! grep -Eq "^cudapool: $work/bad: $1" "$work/stderr"; then
        cat "$work/stderr"
        return 1
    fi
}
patch() { # offset, bytes
    cp "$file" "$work/bad" && printf '%b' "$2" | dd of="$work/bad" bs=1 seek="$1" conv=notrunc 2>/dev/null
}
head -c 100 "$file" >"$work/bad"
expect "a file without a whole header" refused 'cut short: the header is not whole'
head -c 8000 "$file" >"$work/bad"
expect "a file that is cut short" refused 'cut short: 8000 of [0-9]+ bytes'
version=$(od -An -tu8 -j8 -N8 "$file" | tr -d ' ')
patch 8 "$(printf '\\x%02x' $((version + 1)))"
expect "a newer version" refused "figures of version $((version + 1)); this cudapool reads version $version"
patch 0 'loopaduc'
expect "another byte order" refused 'figures of a machine with another byte order'
patch 16 '\xff\xff'
expect "a wrong beginning" refused 'damaged: the figures cannot begin at'
patch 24 '\x00\xff\xff\xff'
expect "a wrong end" refused 'damaged: the figures cannot begin at'
first=$(od -An -tu8 -j16 -N8 "$file" | tr -d ' ')
patch $((first + 4)) '\x01'
expect "a wrong length" refused 'damaged: the record at byte [0-9]+, of type 1, cannot have [0-9]+ bytes'
patch $((first + 8)) '\x07'
expect "a setting that is none" refused 'damaged: device.enabled has no value of its type'
clean_up

# --- killed at any moment ------------------------------------------------------------------------------

rounds=100
[ -z "$SANITIZE" ] || rounds=15
if [ -z "${RUN_WITH:-}" ]; then
    expect "killed at $rounds moments, the sums are right" on_driver -- "$program" rounds $rounds \
        "$cudapool" "$PRELOAD" "$named"
fi

# --- cudapool run ---------------------------------------------------------------------------------------

if [ -z "${RUN_WITH:-}$SANITIZE" ]; then
    run() { # arguments of run; the table goes to $work/table
        env "LD_LIBRARY_PATH=$SIM" "$cudapool" run "$@" >"$work/stdout" 2>"$work/table"
    }
    says() { # expression...
        local expression
        for expression in "$@"; do
            grep -Eq "$expression" "$work/table" || {
                cat "$work/table"
                return 1
            }
        done
    }
    for how in '_exit ended by _exit\([0-9]+\)' 'kill killed by SIGKILL' 'abort killed by SIGABRT'; do
        run "$program" "${how%% *}" 2>/dev/null
        expect "run reports a program that ends by ${how%% *}, and how" says '100 requests' "^${how#* }: the figures are those"
    done
    run "$program" exit
    expect "run reports a program that exits" says '100 requests'
    if grep -q '^killed' "$work/table"; then fail "as one that did" "$(cat "$work/table")"; else ok "as one that did"; fi
    run "$program" exec
    expect "a program that execs itself counts twice" says '^cudapool: ran .*: 2 processes' ' 200 requests'
    run sh -c "'$program' kill & '$program' exit; wait"
    expect "one that was killed beside one that was not" says '^cudapool: ran .*: 2 processes' ' 200 requests'
    run --report "$work/one-%p.json" sh -c "'$program' kill; '$program' exit"
    expect "each of them has its file" test "$(find "$work" -name 'one-*.json' | wc -l)" -eq 2
    expect "one of which says how it ended" grep -q '"ending": "killed"' "$work"/one-*.json
    # The program that is left behind ends later, and says nothing then.
    rm -f "$work/ready"
    run sh -c "'$program' wait >'$work/ready' 2>'$work/later' & echo \$! >'$work/pid'
        until grep -q ready '$work/ready'; do sleep 0.01; done"
    expect "one that is still running is reported so far" says '32 requests' '^still running'
    kill -KILL "$(cat "$work/pid")"
    mkdir "$work/kept"
    run --set figures.keep=true --set "figures.directory=$work/kept" "$program" exit
    expect "run keeps figures where the settings say" test "$(requests_in "$work"/kept/*.figures)" -eq 100
    clean_up
    run --set figures.keep=true "$program" exit
    expect "or where they usually are" test "$(requests_in "$usual"/*.figures)" -eq 100
    clean_up
    expect "and counts them once" says '100 requests'
    expect "and removes what it made" count_in "$runtime" 0
    if ls -d "$runtime"/cudapool-?????? "$work"/kept/cudapool-* >/dev/null 2>&1; then
        fail "directories as well" "$(ls "$runtime" "$work/kept")"
    else
        ok "directories as well"
    fi
fi
finish
