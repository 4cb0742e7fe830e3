#!/usr/bin/env python3
"""The chart of the README, out of the newest results in tests/gpu/RESULTS.md.

usage: results_chart.py        writes docs/results.svg
       results_chart.py check  exits 1 where that file is not what the results say
"""

import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests/gpu/RESULTS.md"
CHART = ROOT / "docs/results.svg"

# How a row of the results begins, and what it is.
ROWS = [
    ("torch, no caching", "PyTorch training, its caching off", "ms a step"),
    ("cupy, no pool", "CuPy, its pool off", "ms a step"),
    ("numba", "Numba, arrays there and back", "ms a step"),
    ("thrust_sort, 4 Mi keys", "Thrust sort, 4 Mi keys", "ms"),
    ("overlap, 16 threads, 200 us", "16 threads, 200 µs kernels", "ms"),
]

# plain ms, pool ms, faster; further columns follow.
NUMBERS = r"\s+([0-9.]+)\s+([0-9.]+)\s+([0-9.]+)\s"

WIDTH, LEFT, BAR, RIGHT = 860, 300, 320, 240
ROW_HEIGHT, TOP = 44, 46


def newest(name):
    """Milliseconds without and with the pool, of the first row of that name."""
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        found = re.match(re.escape(name) + NUMBERS, line)
        if found:
            return float(found[1]), float(found[2])
    sys.exit(f"{RESULTS}: there is no row of {name}")


def spell(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def text(x, y, content, more=""):
    return f'<text x="{x}" y="{y}"{more}>{html.escape(content)}</text>'


def chart():
    measured = [(label, unit, *newest(name)) for name, label, unit in ROWS]
    factors = [plain / pool for _, _, plain, pool in measured]
    height = TOP + ROW_HEIGHT * len(measured) + 12
    described = "; ".join(f"{label}: {factor:.1f} times as fast" for (label, *_), factor in zip(measured, factors))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        "<title>Times as fast with the pool</title>",
        f"<desc>{html.escape(described)}</desc>",
        "<style>text{font:14px system-ui,sans-serif;fill:#1b1f24}.soft{fill:#57606a;font-size:12px}.bar{fill:#0b5394}"
        ".one{stroke:#9aa4af;stroke-dasharray:3 3}.back{fill:#fff}"
        "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9aa4af}.bar{fill:#79b8ff}.back{fill:#0d1117}}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}" rx="6"/>',
        text(LEFT, 24, "times as fast with the pool (one NVIDIA H200)", ' class="soft"'),
    ]
    scale = BAR / max(factors)
    for i, ((label, unit, plain, pool), factor) in enumerate(zip(measured, factors)):
        y = TOP + ROW_HEIGHT * i
        length = factor * scale
        lines += [
            text(LEFT - 12, y + 19, label, ' text-anchor="end"'),
            f'<rect class="bar" x="{LEFT}" y="{y}" width="{length:.1f}" height="26" rx="3"/>',
            text(f"{LEFT + length + 8:.1f}", y + 14, f"{factor:.1f}×", ' font-weight="600"'),
            text(f"{LEFT + length + 8:.1f}", y + 29, f"{spell(plain)} → {spell(pool)} {unit}", ' class="soft"'),
        ]
    one = LEFT + scale
    lines += [f'<path class="one" d="M{one:.1f} {TOP - 8}V{height - 12}"/>', "</svg>"]
    return "\n".join(lines) + "\n"


if sys.argv[1:] == ["check"]:
    if CHART.read_text(encoding="utf-8") != chart():
        sys.exit(f"{CHART} is not what {RESULTS} says: run scripts/results_chart.py")
elif sys.argv[1:]:
    sys.exit(__doc__)
else:
    CHART.write_text(chart(), encoding="utf-8")
