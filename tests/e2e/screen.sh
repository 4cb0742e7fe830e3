#!/usr/bin/env bash
# What there is no room for on a terminal is told; `cudapool top` without colours and on a dumb terminal, and
# what it counts of a trim; the demo.
# shellcheck source=tests/e2e/terminal_lib.sh disable=SC2317
. "$(dirname "$0")/terminal_lib.sh"
export LD_LIBRARY_PATH=$SIM
unset LD_PRELOAD

# Lines that the terminal had to continue on the next one.
nothing_wraps() {
    screen >"$work/screen"
    joined >"$work/joined"
    diff "$work/screen" <(sed 's/ *$//' "$work/joined")
}
# No sequence that sets a colour.
no_colours() {
    ! coloured | grep -aE $'\e\\[([0-9]*;)*[34][0-7]m'
}
start() { # name, program that waits for the end of what it reads; its number goes to $work/pid.NAME
    local name=$1 tries=0
    shift
    env "LD_PRELOAD=$PRELOAD" CUDAPOOL_REPORT=none "$@" <"$work/in" >"$work/ready.$name" 2>/dev/null &
    disown
    until grep -q ready "$work/ready.$name" 2>/dev/null || [ $((tries += 1)) -gt 3000 ]; do sleep 0.01; done
    sed -n 's/^ready //p' "$work/ready.$name" | tee "$work/pid.$name"
}

# --- columns and rows that have no room -------------------------------------------------------------------------

"$cudapool" run --report "$work/sizes.json" "$programs/outputs" sizes=30 device=40 device=40 2>/dev/null
"$cudapool" run --report "$work/two.json" sh -c "'$programs/outputs' sizes=30; '$programs/outputs' device=9 device=9" 2>/dev/null
columns=$("$cudapool" report "$work/sizes.json" | sed -n 's/^ *bucket  *//p')
terminal 200 80 "'$cudapool' report '$work/sizes.json'"
expect "a wide terminal" shows 'status 0' '^ +bucket .*misses' '[0-9]+ more: --all$'
expect "has room for all columns" shows_no 'left out'
terminal 64 80 "'$cudapool' report '$work/sizes.json'"
expect "64 columns" shows 'status 0' '^ +left out for width: ' '[0-9]+ more: --all$'
expect "do not wrap" nothing_wraps
unfolded() { # what is on the screen, each line in one
    awk 'NR > 1 && !/^      [^ ]/ { print "" } { sub(/^      +/, " "); printf "%s", $0 } END { print "" }' "$work/screen"
}
# Each column is shown, or told, or zero throughout.
each_is_shown_or_told() {
    local told shown name
    told=$(unfolded | sed -nE 's/^ +left out for width: (.*): --all$/, \1,/p')
    shown=$(grep -E '^ +bucket ' "$work/screen")
    for name in clean queried barrier waited "given back" "saved at least" misses failed live peak driver; do
        [[ $columns == *"$name"* ]] || { echo "no column $name"; return 1; }
        [[ $shown == *"$name"* ]] && [[ $told == *", $name,"* ]] && { echo "$name is shown and told"; return 1; }
        if [[ $shown != *"$name"* && $told != *", $name,"* ]]; then
            total "$name" && return 1
        fi
    done
    return 0
}
total() { # column: true, with a word, where it is more than zero
    local value
    value=$("$cudapool" report --format csv "$work/sizes.json" | awk -F, -v name="$1" '
        NR == 1 { for (i = 1; i <= NF; i++) place[$i] = i
                  from["clean"] = "hits_clean"; from["queried"] = "hits_queried"; from["barrier"] = "hits_barrier"
                  from["waited"] = "hits_waited"; from["misses"] = "misses"; from["live"] = "live_blocks" }
        NR > 1 && (name in from) { sum += $place[from[name]] } END { print sum + 0 }')
    [ "$value" -gt 0 ] && echo "$1 is $value, and neither shown nor told"
}
expect "and tell what is left out" each_is_shown_or_told
terminal 60 80 "'$cudapool' report --compare '$work/sizes.json' '$work/two.json'"
expect "a comparison in 60 columns" shows 'status 0' '^ +left out for width: ' 'A and B ran different'
terminal 60 80 "'$cudapool' report --merge '$work/two.json'"
expect "two processes in 60 columns" shows 'status 0' 'left out for width: ' 'misses'
expect "wrap nothing" nothing_wraps
terminal 64 80 "env CUDAPOOL_CONFIG= LD_PRELOAD=$PRELOAD '$programs/outputs' sizes=30 device=40 device=40"
expect "what a process prints itself" shows 'status 0' '^ +left out for width: ' 'CUDAPOOL_REPORT=FILE'
expect "wraps nothing" nothing_wraps

# --- the demo ------------------------------------------------------------------------------------------------------

if [ -x "$BUILD/demo/demo" ] && [ -z "$SANITIZE" ] && ! env -u LD_LIBRARY_PATH "$BUILD/demo/demo" steps=1 >/dev/null 2>&1; then
    terminal 80 60 "cd '$here' && env -u LD_LIBRARY_PATH BUILD='$BUILD' scripts/demo.sh"
    expect "the demo" shows 'status 0' 'times as fast' '^ +4 MiB +502 '
    expect "fits the terminal" nothing_wraps
    last=$(grep -v '^ *$' "$work/screen" | tail -n 2 | head -n 1)
    expect "and ends with what to try next" test "$(sed -E 's/.*(make && [^ ]*cudapool try ).*/\1/' <<<"$last")" = "  make && ${BUILD#"$here"/}/cudapool try " \
        -o "${last#  make && }" != "$last"
else
    skip "the demo" "it is not built, or for the GPU here"
fi

# --- top without colours, and on a dumb terminal ---------------------------------------------------------------------

mkfifo "$work/in"
exec 8<>"$work/in"
limit='{"version": 1, "limits": {"device_bytes": "8GiB"}}'
one=$(start one "CUDAPOOL_CONFIG=$limit" "$programs/outputs" device=64 physical=8 wait)
two=$(start two "$programs/outputs" device=32 pinned=4 wait)
[ -d "$runtime/cudapool-$(id -u)" ] || mkdir -m 700 "$runtime/cudapool-$(id -u)"
top="'$cudapool' top --interval 0.2 '$runtime/cudapool-$(id -u)'"
low=$(printf '%s\n' "$one" "$two" | sort -n | head -n 1)
high=$(printf '%s\n' "$one" "$two" | sort -n | tail -n 1)
terminal 150 24 "env TERM=tmux-256color NO_COLOR=1 $top"
expect "top with NO_COLOR" shows '2 processes on the pool' '# in use +\+ cached +- pending += unpooled'
expect "has no colour" no_colours
expect "its bar has a character for each part" shows '^device 0, Simulated device +\[#*\+*-+=+ '
expect "the chosen row is marked" shows "^> +$low "
keys Down
expect "wherever it is" shows "^> +$high " "^  +$low "
keys q
expect "and q ends it" shows 'status 0'
terminal 150 24 "env TERM=vt100 $top"
expect "a terminal that has no colours" shows '# in use +\+ cached +- pending' "^> +$low "
keys q
terminal 60 24 "env TERM=tmux-256color $top"
expect "top says what has no room" shows '^2 processes on the pool; no room for [a-z/, ]*pending'
keys q
terminal 100 5 "env TERM=tmux-256color $top"
expect "and how many rows" shows '2 processes on the pool; 1 row more'
keys q
for kind in dumb no-such-terminal ''; do
    terminal 70 24 "env TERM=$kind $top --count 2"
    expect "on a terminal \"$kind\" top prints lines" shows 'status 0' "^ +$low .*\.\.\.$" '^ +process .*command$'
    expect "that fit it" nothing_wraps
    expect "twice" test "$(grep -c ': 2 processes on the pool$' "$work/screen")" -eq 2
    expect "without a sequence" bash -c "! grep \$'\\e' '$work/screen'"
done
# shellcheck disable=SC2046 # one number to a word
kill -KILL $(cat "$work"/pid.one "$work"/pid.two)

# --- what a trim in top gives ------------------------------------------------------------------------------------------

top_of_who_gives() {
    local tries=0
    rm -f "$work/ready.gives"
    "$programs/neighbour" "uuid=$(printf '%08x' $$)" cached=1073741824 pending=2147483648 after=3000 >"$work/ready.gives" 2>/dev/null &
    disown
    until grep -q ready "$work/ready.gives" 2>/dev/null || [ $((tries += 1)) -gt 3000 ]; do sleep 0.01; done
    gives=$(sed -n 's/^ready //p' "$work/ready.gives" | tee "$work/pid.gives")
    terminal 120 24 "env TERM=tmux-256color '$cudapool' top --interval 0.2 $gives"
    shows "^process $gives, "
}
trimmed=gives
expect "t has it give" trimmed_shows \
    '^PID neighbour .*: 1\.0 GiB back, 2\.0 GiB still in use by the GPU$' top_of_who_gives
keys t
expect "t again asks on, and what has come counts" shows "^$gives neighbour .*: (1\\.0 GiB back, 2\\.0 GiB still in use by the GPU|3\\.0 GiB back)\$"
expect "to the end" shows "^$gives neighbour .*: 3\\.0 GiB back\$"
keys q
expect "q ends it" shows 'status 0'
finish
