# shellcheck shell=bash disable=SC2034
# A terminal whose screen is looked at as text: tmux's. Sourced by terminal.sh and screen.sh, not run; where
# there can be none, the script is skipped.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "${BASH_SOURCE[0]}")/interposition_lib.sh"

if [ -n "${RUN_WITH:-}" ] || ! command -v tmux >/dev/null; then
    skip "$(basename "$0" .sh)" "there is no tmux or the command is for another processor"
    exit 0
fi
runtime=$(mktemp -d /dev/shm/cudapool-test-XXXXXX) || exit 1
cudapool=$BUILD/cudapool
export XDG_RUNTIME_DIR=$runtime
unset CUDAPOOL_FIGURES CUDAPOOL_REPORT CUDAPOOL_CONFIG NO_COLOR
clean_up() {
    end_terminal
    # shellcheck disable=SC2046 # one number to a word
    kill -KILL $(cat "$work"/pid.* 2>/dev/null) 2>/dev/null
    rm -rf "$work" "$runtime"
}
trap clean_up EXIT

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
screen() {
    on_terminal capture-pane -p 2>/dev/null
}
joined() { # the screen, lines that the terminal had to continue in one
    on_terminal capture-pane -p -J 2>/dev/null
}
coloured() { # the screen with the sequences that colour it
    on_terminal capture-pane -p -e 2>/dev/null
}
keys() {
    on_terminal send-keys "$@"
}
# Waits half a minute at most until the screen has all of these expressions.
shows() { # expression...
    local tries=0 expression missing
    while [ $((tries += 1)) -le 300 ]; do
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
# `t` in `top` has a process give back what it caches. Whether it did, in the line that PID stands for its
# number in, is what top shows of it; where it did not answer within 100 ms, since the machine is slow,
# another one is asked, five times at most. The function starts the process, its number goes to
# $work/pid.$trimmed, and shows it in top.
trimmed_shows() { # expression of the line, function
    local tries=0 pid
    while :; do
        "$2" || return 1
        # shellcheck disable=SC2154 # whoever calls has set it
        pid=$(cat "$work/pid.$trimmed")
        keys t
        shows "${1//PID/$pid}|^$pid .*: no answer within 100 ms" || return 1
        grep -Eq -- "${1//PID/$pid}" "$work/screen" && return 0
        [ $((tries += 1)) -lt 5 ] || { cat "$work/screen"; return 1; }
        kill -KILL "$pid"
    done
}
shows_no() { # expression
    ! grep -E -- "$1" "$work/screen"
}
