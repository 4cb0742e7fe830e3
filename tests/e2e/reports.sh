#!/usr/bin/env bash
# `cudapool report`: its formats, merging and advice, on reports made up for the purpose. The checks
# are in Python, and what checks the formats of others (promtool, Chromium) is used where it is.
cd "$(dirname "$0")/../.." || exit 2
if ! command -v python3 >/dev/null; then
    echo "skip reports: there is no python3"
    exit 0
fi
exec python3 tests/e2e/reports.py "${BUILD:-build}/cudapool"
