#!/usr/bin/env bash
# What people see on a terminal: tables that fit it, colours, `cudapool top`, and completion in zsh.
# shellcheck source=tests/e2e/terminal_lib.sh disable=SC2317
. "$(dirname "$0")/terminal_lib.sh"
seconds=600 # that the processes which are looked at may take
python3 "$here/tests/e2e/terminal_reports.py" "$work"

# Lines that the terminal had to continue on the next one.
nothing_wraps() { # command; the width is the first terminal's
    screen >"$work/screen"
    joined >"$work/joined"
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
    shows 'status 0' >/dev/null && coloured | grep -c $'\e\\[[0-9;]*[13]'
}
expect "colours where the terminal has some" test "$(escapes tmux-256color '')" -gt 3
expect "none with NO_COLOR" test "$(escapes tmux-256color NO_COLOR=1)" -eq 0
expect "which means nothing where it is empty" test "$(escapes tmux-256color NO_COLOR=)" -gt 3
expect "none on a terminal that has none" test "$(escapes vt100 '')" -eq 0
expect "none on one that nobody knows" test "$(escapes no-such-terminal '')" -eq 0
if grep -q $'\e' "$work/none" "$work/piped"; then fail "none in a pipe" "there are"; else ok "none in a pipe"; fi

# --- top --------------------------------------------------------------------------------------------------

start_waiting() { # name; its number goes to $work/pid.NAME
    rm -f "$work/ready.$1" # an earlier one's
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
    coloured | grep -aE $'\e\\[[0-9;]*46m' | sed -E 's/\x1b\[[0-9;]*m//g' | awk '{ print $1 }' | head -n 1
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
ln -s "$BUILD/demo/demo" "$work/demo" # in order of names before the others
on_pool CUDAPOOL_REPORT=none -- "$work/demo" steps=100000000 >/dev/null 2>&1 &
expect "one more" shows '4 processes on the pool' 'steps=100000000'
busy=$(screen | sed -nE 's/^ +([0-9]+) .*steps=100000000.*/\1/p')
echo "$busy" >"$work/pid.busy"
# Numbers of processes begin anew when they are used up.
read -r lowest second _ <<<"$(printf '%s\n' "$one" "$two" "$three" "$busy" | sort -n | tr '\n' ' ')"
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
expect "who is chosen stays so, wherever it goes" becomes "$second" chosen
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
expect "on a terminal that nobody knows top prints lines" shows '^ +process +.*requests/s' "^ +$two " 'status 0'
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
    rm -f "$work/ready.$name" # an earlier one's
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
top_of_who_gives() {
    neighbour=$(start_neighbour gives cached=1073741824 pending=2147483648 after=3000)
    terminal 120 24 "env TERM=tmux-256color '$cudapool' top --interval 0.2 $neighbour"
    shows "^process $neighbour, which has no figures: .*/neighbour " 't trim '
}
trimmed=gives
expect "t trims it" trimmed_shows \
    '^PID neighbour .*: 1\.0 GiB back, 2\.0 GiB still in use by the GPU$' top_of_who_gives
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
top_of_the_pool() {
    start_waiting pool
    pool=$(cat "$work/pid.pool")
    terminal 160 24 "$top"
    shows "^ +$pool .*figures wait"
}
trimmed=pool
expect "t trims it, too" trimmed_shows '^PID figures wait: 32\.0 MiB back$' top_of_the_pool
expect "and nothing is cached there" shows "^ +$pool +.* 0 B .*figures wait"
keys q
kill -KILL "$pool"
wait 2>/dev/null

# --- try --------------------------------------------------------------------------------------------------

try="env LD_LIBRARY_PATH=$SIM '$cudapool' try '$programs/tried' waits '$work/starts'"
terminal 80 24 "$try"
expect "try says which run is under way" shows '^run 4 of 7, with the pool: [0-9]+\.0 s$'
keys C-c
expect "Ctrl-C ends it" shows 'cudapool: try: SIGINT ended it after 1 of 3 pairs of runs$' 'status 130'
expect "and shows the pair that is done" shows '^ +wall time +peak device memory$' '^  with the pool +[0-9.]+ [mun]?s +1\.0 MiB$'
read -r one two <"$work/starts.running"
is_gone() { # process number
    ! grep -qs '^State:[[:space:]][^ZX]' "/proc/$1/status"
}
expect "with the program" becomes yes eval "is_gone $one && echo yes"
expect "and its child" becomes yes eval "is_gone $two && echo yes"
rm -f "$work/starts" "$work/starts.running"
terminal 80 24 "env TERM=dumb $try"
expect "a terminal that cannot clear a line" becomes yes eval "test -e '$work/starts.running' && echo yes"
sleep 0.5
expect "sees no progress" shows_no 'run 4'
keys C-c
expect "and Ctrl-C all the same" shows 'status 130'

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
    expect "zsh completes try" zsh_completes 'try --j' 'try --json'
    expect "zsh completes a program's arguments" zsh_completes 'run ls conf' 'run ls configs/'
else
    skip "completion in zsh" "there is no zsh"
fi
finish
