#!/usr/bin/env bash
# Makes the pictures in docs/: the table and `cudapool top` on a terminal (SVG), and the page (PNG), of programs on
# the simulated driver; or the table and the page of a report that is given, of a run on a GPU for example.
#
# usage: [BUILD=dir] pictures.sh [REPORT.json]      needs tmux, python3 and chromium
set -eu
cd "$(dirname "$0")/.."
build=$(realpath "${BUILD:-build}")
cudapool=$build/cudapool
work=$(mktemp -d)
started=()
clean_up() {
    tmux -S "$work/tmux" kill-server 2>/dev/null || true
    [ ${#started[@]} -eq 0 ] || kill "${started[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
export LD_LIBRARY_PATH=$build/sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} SIMCUDA_TIMING=1 SIMCUDA_MEMORY=1073741824
export XDG_RUNTIME_DIR=$work
unset NO_COLOR CUDAPOOL_CONFIG CUDAPOOL_REPORT CUDAPOOL_FIGURES

show() { # columns lines command
    tmux -S "$work/tmux" -f /dev/null new-session -d -x "$1" -y "$2" "cd '$PWD'; $3; sleep 1000"
}
draw() { # title, file: what is on the screen, without the empty lines at its end
    tmux -S "$work/tmux" capture-pane -e -N -p | sed -e :a -e '/^[[:space:]]*$/{$d;N;ba' -e '}' |
        scripts/terminal_svg.py "$1" >"$2"
    tmux -S "$work/tmux" kill-server
    sleep 0.5
}

report=${1:-$work/report.json}
cp "$build/demo/demo" "$work/solver"
if [ $# -eq 0 ]; then
    (cd "$work" && "$cudapool" run --report "$report" ./solver steps=4000 >/dev/null 2>&1)
    # The machine's name is nobody's business.
    sed -i "s/\"$(hostname)\"/\"node7\"/" "$report"
fi
show 100 40 "env TERM=tmux-256color '$cudapool' report '$(realpath "$report")'"
sleep 1
draw "the table of a run" docs/table.svg

mkdir "$work/figures"
for steps in 9000001 9000002; do
    (cd "$work" && LD_PRELOAD=$build/libcudapool_preload.so CUDAPOOL_REPORT=none CUDAPOOL_FIGURES=$work/figures SIMCUDA_SHARED=$work/memory exec ./solver steps=$steps) >/dev/null 2>&1 &
    started+=($!)
done
sleep 1
# Of these programs alone, whatever else of this user is on the board.
show 100 18 "env TERM=tmux-256color '$cudapool' top '$work/figures'"
sleep 3
tmux -S "$work/tmux" send-keys Down
sleep 0.5
draw "cudapool top" docs/top.svg

"$cudapool" report -o "$work/page.html" "$report"
unset LD_LIBRARY_PATH
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile" --window-size=1280,1270 \
    --screenshot="$work/page.png" "file://$work/page.html" >/dev/null 2>&1
mv "$work/page.png" docs/page.png
ls -l docs/table.svg docs/top.svg docs/page.png
