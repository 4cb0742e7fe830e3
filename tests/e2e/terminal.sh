#!/usr/bin/env bash
# What people see on a terminal: tables that fit it, colours, `cudapool top`, and completion in zsh. The
# terminal is tmux's; its screen is looked at as text.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

if [ -n "${RUN_WITH:-}" ] || ! command -v tmux >/dev/null; then
    echo "ok terminal: left out, there is no tmux or the command is for another processor"
    exit 0
fi
cudapool=$BUILD/cudapool
runtime=$(mktemp -d /dev/shm/cudapool-test-XXXXXX) || exit 1
export XDG_RUNTIME_DIR=$runtime
unset CUDAPOOL_FIGURES CUDAPOOL_REPORT CUDAPOOL_CONFIG NO_COLOR
seconds=600 # that the processes which are looked at may take
clean_up() {
    end_terminal
    # shellcheck disable=SC2046 # one number to a word
    kill -KILL $(cat "$work"/pid.* 2>/dev/null) 2>/dev/null
    rm -rf "$work" "$runtime"
}
trap clean_up EXIT
python3 "$here/tests/e2e/terminal_reports.py" "$work"

# A server that is ending does not bear a new one at its place: each has its own.
on_terminal() { # command of tmux
    tmux -S "$(cat "$work/socket")" "$@"
}
end_terminal() {
    [ ! -e "$work/socket" ] || on_terminal kill-server 2>/dev/null
}
# Runs a command in a new terminal of this size; it stays when the command is over, with "status N".
terminal() { # columns lines command
    end_terminal
    mktemp -u "$work/tmux-XXXXXX" >"$work/socket"
    on_terminal -f /dev/null new-session -d -x "$1" -y "$2" "$3; echo status \$?; sleep 1000"
}
screen() { # options of capture-pane
    on_terminal capture-pane -p "$@" 2>/dev/null
}
keys() {
    on_terminal send-keys "$@"
}
# Waits until the screen has all of these expressions.
shows() { # expression...
    local tries=0 expression missing
    while [ $((tries += 1)) -le 100 ]; do
        screen >"$work/screen"
        missing=
        for expression in "$@"; do
            grep -Eq -- "$expression" "$work/screen" || missing=$expression
        done
        [ -n "$missing" ] || return 0
        sleep 0.1
    done
    echo "no \"$missing\" in:" && grep -v '^ *$' "$work/screen"
    return 1
}
shows_no() { # expression
    ! grep -E -- "$1" "$work/screen"
}
# Lines that the terminal had to continue on the next one.
nothing_wraps() { # command; the width is the first terminal's
    screen >"$work/screen"
    screen -J >"$work/joined"
    diff "$work/screen" <(sed 's/ *$//' "$work/joined")
}

# --- tables fit the terminal ------------------------------------------------------------------------------

for width in 80 100 132; do
    terminal $width 60 "'$cudapool' report '$work/many.json'"
    expect "a table in $width columns" shows 'status 0' '^ +bucket +requests +hits' 'ran 1d 2h:' '118 more: --all$'
    expect "does not wrap, $width" nothing_wraps
    expect "has the ten busiest buckets, $width" test "$(grep -cE '^ +[0-9]+ MiB ' "$work/screen")" -eq 10
    expect "of which the tenth is there, $width" shows '^ +10 MiB +119000 '
    expect "and no column of zeros, $width" shows_no 'barrier .*waited|given back|failed'
    terminal $width 60 "'$cudapool' report --compare '$work/many.json' '$work/other.json'"
    expect "a comparison in $width columns" shows 'status 0' '^ +bucket .*hits' '118 more: --all$'
    expect "does not wrap either, $width" nothing_wraps
    terminal $width 60 "'$cudapool' report --merge '$work/many.json' '$work/other.json'"
    expect "two processes in $width columns" shows 'status 0' '^ +(host +)?process ' '118 more: --all$'
    expect "do not wrap either, $width" nothing_wraps
done
terminal 200 200 "'$cudapool' report --all '$work/many.json'"
expect "--all has all buckets" shows 'status 0' '^ +128 MiB +1000 ' 'barrier +waited'
terminal 80 60 "'$cudapool' report '$work/failed.json'"
expect "what failed is never left out" shows 'status 0' 'failed' '^ +20 MiB +1000 ' '10 more: --all'
"$cudapool" report "$work/many.json" >"$work/piped"
expect "where it is no terminal, the table is whole" test "$(grep -cE '^ +[0-9]+ MiB ' "$work/piped")" -eq 128
expect "in all columns" grep -Eq 'barrier +waited' "$work/piped"
terminal 60 60 "'$cudapool' check strict"
expect "check in 60 columns" shows 'status 0' 'device.free_synchronizes = true'
expect "folds its sentences" nothing_wraps

# The table that the process itself prints, without `cudapool run`.
terminal 80 60 "env LD_LIBRARY_PATH=$SIM LD_PRELOAD=$PRELOAD '$programs/figures' exit"
expect "a program's own table in 80 columns" shows 'status 0' '^ +bucket +requests +hits' '^ +1 MiB +100 '
expect "does not wrap" nothing_wraps
expect "has no column of zeros" shows_no 'failed'

# --- colours ----------------------------------------------------------------------------------------------

escapes() { # terminal's kind, variables
    terminal 100 60 "env TERM=$1 $2 '$cudapool' report '$work/many.json' 2>&1 | cat >'$work/none'; env TERM=$1 $2 '$cudapool' report '$work/many.json'"
    shows 'status 0' >/dev/null && screen -e | grep -c $'\e\\[[0-9;]*[13]'
}
expect "colours where the terminal has some" test "$(escapes tmux-256color '')" -gt 3
expect "none with NO_COLOR" test "$(escapes tmux-256color NO_COLOR=1)" -eq 0
expect "which means nothing where it is empty" test "$(escapes tmux-256color NO_COLOR=)" -gt 3
expect "none on a terminal that has none" test "$(escapes vt100 '')" -eq 0
expect "none on one that nobody knows" test "$(escapes no-such-terminal '')" -eq 0
if grep -q $'\e' "$work/none" "$work/piped"; then fail "none in a pipe" "there are"; else ok "none in a pipe"; fi

# --- top --------------------------------------------------------------------------------------------------

start_waiting() { # name; its number goes to $work/pid.NAME
    # Figures, and not the report, are what is looked at.
    on_pool CUDAPOOL_REPORT=none -- "$programs/figures" wait >"$work/ready.$1" 2>/dev/null &
    local tries=0
    until grep -q ready "$work/ready.$1" 2>/dev/null || [ $((tries += 1)) -gt 500 ]; do sleep 0.01; done
    sed -n 's/^ready //p' "$work/ready.$1" >"$work/pid.$1"
}
first=$'^ +([0-9]+) .*figures wait'
processes_in_order() {
    screen | sed -nE "s/$first.*/\\1/p" | tr '\n' ' '
}
chosen() { # the line in the colours of the choice
    screen -e | grep -aE $'\e\\[[0-9;]*46m' | sed -E 's/\x1b\[[0-9;]*m//g' | awk '{ print $1 }' | head -n 1
}
# What is shown may be on its way.
becomes() { # expected, command...
    local expected=$1 tries=0
    shift
    until [ "$("$@")" = "$expected" ]; do
        [ $((tries += 1)) -le 50 ] || { echo "\"$("$@")\", not \"$expected\""; screen | head -n 12; return 1; }
        sleep 0.1
    done
}
top="env TERM=tmux-256color XDG_RUNTIME_DIR=$runtime '$cudapool' top --interval 0.2 '$runtime/cudapool-$(id -u)'"
[ -d "$runtime/cudapool-$(id -u)" ] || mkdir -m 700 "$runtime/cudapool-$(id -u)"
# Wide enough for the commands at the end of the lines, wherever this is built.
terminal 250 24 "$top"
expect "top without a process says how to start one" shows 'No process of yours is on the pool: cudapool run' '0 processes'
for name in a b c; do start_waiting $name; done
all="$(cat "$work/pid.a" "$work/pid.b" "$work/pid.c" | sort -n | tr '\n' ' ')"
read -r one two three <<<"$all"
expect "top has a line for each process" shows '3 processes on the pool' " $one .*figures wait" " $two " " $three "
expect "a bar for the device" shows '^device 0, Simulated device +\[\|+ +[0-9.]+ MiB of [0-9.]+ GiB\]$' '\| in use +\| cached +\| pending'
expect "and its keys at the bottom" shows '\? help +q quit'
expect "in order of process numbers" becomes "$all" processes_in_order
expect "the first is chosen" becomes "$one" chosen
keys Down
expect "the arrow chooses the next" becomes "$two" chosen
keys j
expect "j as well" becomes "$three" chosen
keys Down
expect "until the last" becomes "$three" chosen
keys Home
expect "Home the first" becomes "$one" chosen
keys End Up
expect "End the last, Up the one before" becomes "$two" chosen
keys Enter
expect "Enter shows its buckets" shows "^process $two, ran .*figures wait" '^ +bucket +requests/s +hits' '^ +1 MiB .*device 0, device' 'Esc back'
keys Escape
expect "Esc goes back" shows "^ +$one .*figures wait" 'Enter buckets'
keys '?'
expect "? explains" shows 'Enter +the buckets of the process' 'm +the most memory first' 'any key goes back'
keys x
expect "any key leaves the help" shows "^ +$one .*figures wait"
for key in m h n c r p; do
    keys $key
    sleep 0.3
    expect "sorted by $key, what is equal keeps its place" becomes "$all" processes_in_order
done
# A busy one, which came last.
on_pool CUDAPOOL_REPORT=none -- "$BUILD/demo/demo" steps=100000000 >/dev/null 2>&1 &
expect "one more" shows '4 processes on the pool' 'steps=100000000'
busy=$(screen | sed -nE 's/^ +([0-9]+) .*steps=100000000.*/\1/p')
echo "$busy" >"$work/pid.busy"
# Numbers of processes begin anew when they are used up.
lowest=$(printf '%s\n' "$one" "$busy" | sort -n | head -n 1)
first_line() {
    screen | sed -nE 's/^ +([0-9]+) +[0-9]+.*/\1/p' | head -n 1
}
for key in m h n r; do
    keys $key
    expect "sorted by $key, what has most comes first" becomes "$busy" first_line
    keys p
    expect "and by p the first process, after $key" becomes "$lowest" first_line
done
keys Home Down r
expect "who is chosen stays so, wherever it goes" becomes "$two" chosen
keys p
kill -KILL "$busy"
expect "it goes" shows '3 processes on the pool'
kill -KILL "$one"
expect "a process that is gone goes" shows '2 processes on the pool'
keys q
expect "q ends it" shows 'status 0'
terminal 40 6 "$top"
expect "top on a small terminal" shows 'processes on' "^ +$two " '^Enter buckets'
keys q
expect "and ends" shows 'status 0'
terminal 100 24 "$top --sort nothing"
expect "an unknown order" shows '--sort: found "nothing", allowed is process, requests, hits, memory, cached or name' 'status 2'
terminal 100 24 "env TERM=no-such-terminal XDG_RUNTIME_DIR=$runtime '$cudapool' top --count 1 '$runtime/cudapool-$(id -u)'"
expect "on a terminal that nobody knows top prints lines" shows '^ +process +rank' "^ +$two " 'status 0'
terminal 100 24 "$top --count 2"
expect "top ends after --count" shows 'status 0'
terminal 132 24 "$top"
expect "top runs" shows '2 processes'
kill -TERM "$(pgrep -P "$(on_terminal display-message -p '#{pane_pid}')")"
expect "a signal ends it" shows 'status 0'

kill -KILL "$two" "$three"
wait 2>/dev/null

# --- trim in top ----------------------------------------------------------------------------------------------

# A process on the board, of a device that no other test has. Others of this user are on the board as well:
# it is the only one that is looked at.
start_neighbour() { # name, arguments
    local name=$1 tries=0
    shift
    "$programs/neighbour" "uuid=$(printf '%08x' $$)" "$@" >"$work/ready.$name" 2>/dev/null &
    until grep -q ready "$work/ready.$name" 2>/dev/null || [ $((tries += 1)) -gt 500 ]; do sleep 0.01; done
    sed -n 's/^ready //p' "$work/ready.$name" | tee "$work/pid.$name"
}
# Waits until the screen has nothing that fits the expression.
loses() { # expression
    local tries=0
    while screen | grep -E -- "$1"; do
        [ $((tries += 1)) -le 50 ] || return 1
        sleep 0.1
    done
}
neighbour=$(start_neighbour gives cached=1073741824 pending=2147483648 after=1500)
terminal 120 24 "env TERM=tmux-256color '$cudapool' top --interval 0.2 $neighbour"
expect "top of a process without figures" shows "^process $neighbour, which has no figures: .*/neighbour " 't trim '
keys t
expect "t trims it" shows "^$neighbour neighbour .*: 1\.0 GiB back, 2\.0 GiB still in use by the GPU\$"
expect "and follows what the GPU still uses" shows "^$neighbour neighbour .*: 3\.0 GiB back\$"
keys r
expect "until the next key" loses 'GiB back'
expect "which brings back the keys" shows '^Esc back  t trim '
keys t
expect "t again finds nothing" shows "^$neighbour neighbour .*: nothing to give back\$"
keys '?'
expect "? tells of t" shows '^  t +trim: '
keys x
keys q
expect "q ends it" shows 'status 0'
kill -KILL "$neighbour"
neighbour=$(start_neighbour stopped cached=1073741824 group=jobs)
kill -STOP "$neighbour"
terminal 120 24 "env TERM=tmux-256color '$cudapool' top --interval 0.2 $neighbour"
keys t
expect "t of one that is stopped" shows "^$neighbour neighbour .*: keeps 1\.0 GiB: no answer, it is stopped\$"
keys q
kill -KILL "$neighbour"
wait 2>/dev/null
start_waiting pool
pool=$(cat "$work/pid.pool")
terminal 160 24 "$top"
expect "top of a process with the pool" shows "^ +$pool .*figures wait"
keys t
expect "t trims it, too" shows "^$pool figures wait: 32\.0 MiB back\$"
expect "and nothing is cached there" shows "^ +$pool +.* 0 B .*figures wait"
keys q
kill -KILL "$pool"
wait 2>/dev/null

# --- completion in zsh -------------------------------------------------------------------------------------

if command -v zsh >/dev/null; then
    mkdir "$work/zsh"
    cp "$here/packaging/cudapool.zsh" "$work/zsh/_cudapool"
    terminal 100 50 "cd '$here'; PATH=$BUILD:\$PATH zsh -f"
    keys "fpath=($work/zsh \$fpath); autoload -Uz compinit; compinit -u -D; PS1='> '; clear" Enter
    sleep 1
    zsh_completes() { # line, what it becomes
        keys C-u
        keys -l "cudapool $1"
        keys Tab
        shows "cudapool ${2//+/\\+} *\$"
    }
    expect "zsh completes commands" zsh_completes 'rep' 'report'
    expect "zsh completes formats" zsh_completes 'report --format h' 'report --format html'
    expect "zsh completes settings" zsh_completes 'run --set device.gr' 'run --set device.growth_budget='
    expect "zsh completes names of settings" zsh_completes 'run --config st' 'run --config strict'
    expect "zsh completes check" zsh_completes 'check lo' 'check low-memory'
    expect "zsh completes top" zsh_completes 'top --sort m' 'top --sort memory'
    expect "zsh completes trim" zsh_completes 'trim --d' 'trim --device'
    expect "zsh completes a program's arguments" zsh_completes 'run ls conf' 'run ls configs/'
else
    ok "zsh: left out, it is not installed"
fi
finish
