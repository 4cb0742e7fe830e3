#!/usr/bin/env bash
# Draws docs/page.png: the page of a report of the demonstration, on the simulated driver, as a
# browser shows it. Needs chromium.
#
# usage: [BUILD=dir] page_picture.sh
set -eu
cd "$(dirname "$0")/.."
build=$(realpath "${BUILD:-build}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp "$build/demo/demo" "$work/solver"
(cd "$work" && LD_LIBRARY_PATH=$build/sim SIMCUDA_TIMING=1 SIMCUDA_MEMORY=1GiB \
    "$build/cudapool" run --report "$work/report.json" ./solver steps=4000 >/dev/null)
# The machine's name is nobody's business.
sed -i "s/\"$(hostname)\"/\"node7\"/" "$work/report.json"
"$build/cudapool" report --format html "$work/report.json" >"$work/page.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=1 \
    --window-size=1280,1270 --screenshot="$work/page.png" "file://$work/page.html" >/dev/null 2>&1
cp "$work/page.png" docs/page.png
