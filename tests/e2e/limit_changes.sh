#!/usr/bin/env bash
# `cudapool limit`: the limits of running processes change, and the report says when.
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"

if [ -n "${RUN_WITH:-}" ]; then
    skip limit "the command is for another processor"
    exit 0
fi
export CUDAPOOL_TOOL=$BUILD/cudapool
unset CUDAPOOL_FIGURES
program=$programs/limit_changes

changes() { # settings, case...
    on_pool SIMCUDA_MEMORY=1GiB "CUDAPOOL_REPORT=$work/report.json" \
        "CUDAPOOL_CONFIG={\"version\": 1$1}" -- "$program" "${@:2}"
}
for case in kinds cached threads; do
    expect "$case" changes "" $case
    expect "$case, where a setting limits" changes ', "limits": {"device_bytes": "768MiB"}' $case
    expect "$case, in a group" changes ", \"limits\": {\"group\": \"changes-$$\"}" $case
done
expect "cached, without a report" changes ', "report": {"at_exit": "none"}' cached
expect "a program that it starts has its limit" changes ', "limits": {"device_bytes": "512MiB"}' child

from() { # JSON path of the limit's origin in the report
    python3 - "$work/report.json" "$1" <<'END'
import json, re, sys
limits = json.load(open(sys.argv[1]))["devices"][0]["limits"]
print(limits)
sys.exit(not re.fullmatch(r"cudapool limit, after \d+\.\d{3} s", limits[sys.argv[2]]))
END
}
told() {
    changes "" threads && from device_from
}
expect "the report has the limit, and when it came" told

# --- processes that hold memory meanwhile -------------------------------------------------------------

settings() { # group
    echo "{\"version\": 1, \"limits\": {\"group\": \"$1-$$\"}}"
}
declare -A input=()
hold() { # name, group, pieces
    local fd
    mkfifo "$work/stdin.$1"
    on_pool SIMCUDA_MEMORY=1GiB "CUDAPOOL_REPORT=$work/$1.json" "CUDAPOOL_CONFIG=$(settings "$2")" \
        -- "$program" holds "$3" <"$work/stdin.$1" >"$work/held.$1" 2>&1 &
    exec {fd}>"$work/stdin.$1"
    input[$1]=$fd
    until grep -q holds "$work/held.$1"; do
        sleep 0.02
        kill -0 $! 2>/dev/null || { cat "$work/held.$1"; return 1; }
    done
}
let_go() { # name...
    local name fd
    for name; do
        fd=${input[$name]}
        exec {fd}>&-
    done
    wait
}
pid_of() { # name: of the program, which timeout has started
    pgrep -f "^$program holds" | while read -r pid; do
        tr '\0' '\n' <"/proc/$pid/environ" | grep -q "^CUDAPOOL_REPORT=$work/$1.json$" && echo "$pid"
    done
}
takes() { # group, pieces
    on_pool SIMCUDA_MEMORY=1GiB CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=$(settings "$1")" -- \
        "$program" takes "$2"
}
limit() {
    "$CUDAPOOL_TOOL" limit "$@"
}

export SIMCUDA_SHARED=$work/device
begin() {
    hold one crew 3 && hold two crew 2
}
expect "processes begin" begin
says() { # status, words, arguments...
    local status=0
    limit "${@:3}" >"$work/said" 2>&1 || status=$?
    cat "$work/said"
    [ "$status" -eq "$1" ] && grep -qE "$2" "$work/said"
}
expect "a group's limit changes" says 0 "^[0-9]+ limit_changes holds 3: 256.0 MiB of a device for its group$" --group "crew-$$" 256MiB
expect "it holds for who comes later" takes crew 3
expect "it holds for no other group" takes another 27
expect "it falls below what is held" says 0 "" --group "crew-$$" 64MiB
expect "then nobody gets more" takes crew 0
expect "one process of it has a limit of its own" says 0 \
    "^[0-9]+ limit_changes holds 3: 1.0 MiB of a device; it holds 96.0 MiB$" \
    "$(pid_of one)" 1MiB
top_shows() { # expression...
    "$CUDAPOOL_TOOL" top --count 1 "$(pid_of one)" >"$work/top" && has_lines "$work/top" "$@"
}
expect "top shows that limit, and what is beside the pool" top_shows " in use .* unpooled +limit  neighbours" \
    " 64[.]0 MiB .* 32[.]0 MiB +1[.]0 MiB +- " "^ +unpooled +- .* 32[.]0 MiB .*device 0, cuMemCreate$"
# NVIDIA's management library says what the process holds in all; 96 MiB of that are counted.
mkdir "$work/nvml"
cp "$BUILD/tests/e2e/libnvml.so" "$work/nvml/libnvidia-ml.so.1"
top_beside() { # variable...
    env "LD_LIBRARY_PATH=$work/nvml" "$@" "$CUDAPOOL_TOOL" top --count 1 "$(pid_of one)" >"$work/top"
}
other() { # expression, variable...
    top_beside "${@:2}" && has_lines "$work/top" "$1"
}
if [ "$(readlink /proc/self/ns/pid)" != "pid:[4026531836]" ]; then
    skip other "the driver numbers processes in another PID namespace"
else
    expect "what the driver has beyond that is told" other "^ +other +- .* 604[.]0 MiB .*device 0, not counted$" \
        "NVML_PID=$(pid_of one)" "NVML_BYTES=$((700 << 20))"
fi
nothing_other() {
    top_beside "$@" && ! grep -E "^ +other" "$work/top"
}
expect "of no other process" nothing_other NVML_PID=1 "NVML_BYTES=$((700 << 20))"
expect "nor where the driver does not say" nothing_other "NVML_PID=$(pid_of one)"
expect "nor without that library's help" nothing_other NVML_BYTES=1

stopped() {
    kill -STOP "$(pid_of two)" && says 0 "what its settings say" --group "crew-$$" settings
    local status=$?
    kill -CONT "$(pid_of two)"
    return "$status"
}
expect "a stopped process is told as well" stopped
expect "without the limit there is room" takes crew 27
let_go one two
expect "when all have ended, who comes later has none" takes crew 32

# --- what cannot be done -------------------------------------------------------------------------------

expect "nobody is in the group" says 2 "no process of yours in group \"crew-$$\" is on the pool" --group "crew-$$" 1GiB
expect "no such process" says 2 "no process $$ of yours is on the pool" $$ 1GiB
expect "no process" says 2 "found \"0\", allowed is a number from 1 to" 0 1GiB
expect "no number" says 2 "found \"12x\", allowed is a number from 1 to" 12x 1GiB
expect "no size" says 2 "found \"much\", allowed is a size such as 20GiB, 1MiB at least, or the word settings" 1 much
expect "a share" says 2 "found \"50%\", allowed is a size" 1 50%
expect "too small a size" says 2 "found \"1000\", allowed is a size such as 20GiB, 1MiB at least" 1 1000
expect "no words" says 2 "found 0 words, allowed are PID SIZE, or --group NAME SIZE"
expect "too many words" says 2 "found 2 words, allowed are PID SIZE, or --group NAME SIZE" --group a 1 1GiB
expect "an empty group" says 2 "group: found \"\", allowed is a name of 1 to 63 bytes" --group "" 1GiB
expect "an option that there is not" says 2 "allowed is --group NAME" --grup a 1GiB

expect_alone() {
    mkfifo "$work/stdin.alone"
    on_pool SIMCUDA_MEMORY=1GiB "CUDAPOOL_REPORT=$work/alone.json" \
        'CUDAPOOL_CONFIG={"version": 1, "neighbours": {"enabled": false}}' \
        -- "$program" holds 1 <"$work/stdin.alone" >"$work/held.alone" 2>&1 &
    exec {fd}>"$work/stdin.alone"
    input[alone]=$fd
    until grep -q holds "$work/held.alone"; do sleep 0.02; done
    says 1 "cannot be told: neighbours.enabled is false there" "$(pid_of alone)" 1GiB
    local status=$?
    let_go alone
    return "$status"
}
unset SIMCUDA_SHARED
expect "a process that leaves its neighbours alone" expect_alone

# Another user's process has another board.
as_other() {
    setpriv --reuid 12345 --regid 12345 --clear-groups "$@"
}
of_another_user() {
    local status=0
    mkfifo -m 666 "$work/stdin.other"
    as_other env LD_LIBRARY_PATH="$SIM" LD_PRELOAD="$PRELOAD" CUDAPOOL_REPORT="$work/other.json" \
        "$program" holds 1 <"$work/stdin.other" >"$work/held.other" 2>&1 &
    exec {fd}>"$work/stdin.other"
    input[other]=$fd
    until grep -q holds "$work/held.other"; do
        sleep 0.02
        kill -0 $! || { cat "$work/held.other"; return 1; }
    done
    says 0 "^[0-9]+ limit_changes holds 1: 1.0 GiB of a device$" "$(pid_of other)" 1GiB || status=$?
    let_go other
    return "$status"
}
chmod 777 "$work"
other_can() {
    [ "$(id -u)" -eq 0 ] && as_other test -x "$program" && as_other test -r "$PRELOAD" &&
        as_other test -r "$SIM/libcuda.so.1"
}
if ! other_can 2>/dev/null; then
    skip "root limits another user's process" "no other user can run the program here"
else
    expect "root limits another user's process" of_another_user
fi

finish
