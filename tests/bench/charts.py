"""Line charts as SVG files that need nothing else, and are readable on light and on dark."""

import math
from xml.sax.saxutils import escape

# For each series a colour on light and one on dark, and a dash, so that no colour must be told from
# another. The pool's line is the thick one.
STYLES = {
    "pool": ("#b4325a", "#ff7d9c", ""),
    "pool_async": ("#7a1fa0", "#dd92ff", "14 3"),
    "driver": ("#4a4a4a", "#c0c0c0", "2 3"),
    "async": ("#1f6fb4", "#6db6f2", "8 3"),
    "cub": ("#5c7a12", "#a9cf4d", "6 3 2 3"),
    "torch": ("#c0560a", "#ffa05a", "10 3 2 3"),
    "mimalloc": ("#0d7d72", "#48cfc0", "4 2"),
    "once": ("#7a6a9c", "#b9a8e0", "1 3"),
}
OTHERS = [("#8a4f9e", "#d59ae8", "12 4"), ("#8a6d00", "#e0c040", "3 5")]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, FOOT = 460, 300, 62, 92, 40, 46, 24


def style_of(name, position):
    return STYLES.get(name, OTHERS[position % len(OTHERS)])


def css(names):
    light, dark = [], []
    for position, name in enumerate(names):
        one, other, _ = style_of(name, position)
        light.append(f".s{position}{{stroke:{one};fill:{one}}}")
        dark.append(f".s{position}{{stroke:{other};fill:{other}}}")
    return (
        "text{font:12px system-ui,sans-serif;fill:#222;stroke:none}"
        ".title{font-weight:600;font-size:14px}.grid{stroke:#ddd}.axis{stroke:#888}"
        ".back{fill:#fff}path{fill:none;stroke-width:1.7}.pool{stroke-width:3.2}"
        + "".join(light)
        + "path.line{fill:none}@media(prefers-color-scheme:dark){text{fill:#ddd}.back{fill:#15171a}"
        ".grid{stroke:#33383e}.axis{stroke:#777}" + "".join(dark) + "path.line{fill:none}}"
        # Labels have their line's colour from the classes above, on top of text's own.
        + "text.label{font-weight:600}"
    )


def decades(low, high):
    """The powers of ten that enclose both."""
    first = math.floor(math.log10(low) + 1e-9)
    last = math.ceil(math.log10(high) - 1e-9)
    return first, max(last, first + 1)


def short(value):
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def apart(labels, distance):
    """Moves labels (y, text...) down until none hides another."""
    moved = []
    for y, *rest in sorted(labels):
        if moved and y - moved[-1][0] < distance:
            y = moved[-1][0] + distance
        moved.append((y, *rest))
    return moved


def panel(chart, names, x0, y0):
    """One chart: {"title", "x", "y", "series": {name: [(x, y), ...]}}, both axes logarithmic."""
    points = [p for series in chart["series"].values() for p in series]
    if not points:
        return []
    xs = sorted({p[0] for p in points})
    low_x, high_x = math.log(xs[0]), math.log(max(xs[-1], xs[0] * 1.01))
    first, last = decades(min(p[1] for p in points), max(p[1] for p in points))
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x_of(value):
        return x0 + LEFT + inner_w * (math.log(value) - low_x) / (high_x - low_x)

    def y_of(value):
        return y0 + TOP + inner_h * (last - math.log10(value)) / (last - first)

    out = [f'<text class="title" x="{x0 + LEFT}" y="{y0 + 18}">{escape(chart["title"])}</text>']
    out.append(f'<text x="{x0 + LEFT}" y="{y0 + 33}">{escape(chart["y"])}</text>')
    for power in range(first, last + 1):
        y = y_of(10.0**power)
        out.append(
            f'<line class="grid" x1="{x0 + LEFT}" x2="{x0 + WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{x0 + LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(10.0**power)}</text>'
        )
    bottom = y0 + HEIGHT - BOTTOM
    out.append(f'<line class="axis" x1="{x0 + LEFT}" x2="{x0 + WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    for value in xs:
        out.append(f'<text x="{x_of(value):.1f}" y="{bottom + 16}" text-anchor="middle">{short(value)}</text>')
    middle = x0 + LEFT + inner_w / 2
    out.append(f'<text x="{middle:.0f}" y="{bottom + 34}" text-anchor="middle">{escape(chart["x"])}</text>')
    labels = []
    for name, series in chart["series"].items():
        if not series:
            continue
        position = names.index(name)
        dash = style_of(name, position)[2]
        path = "M" + "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in sorted(series))
        thick = " pool" if name == "pool" else ""
        out.append(
            f'<path class="line s{position}{thick}" d="{path}"'
            + (f' stroke-dasharray="{dash}"' if dash else "")
            + "/>"
        )
        for x, y in series:
            out.append(
                f'<circle class="s{position}" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2.6">'
                f"<title>{escape(name)}, {short(x)}: {y:.4g}</title></circle>"
            )
        x, y = max(series)
        labels.append((y_of(y), x_of(x), position, name))
    for y, x, position, name in apart(labels, 13):
        out.append(
            f'<text class="label" x="{x + 8:.1f}" y="{y + 4:.1f}">'
            f'<tspan class="s{position}" stroke="none" style="stroke:none">{escape(name)}</tspan></text>'
        )
    return out


def draw(charts, path, where, columns=2):
    """Writes one SVG with these charts, so many beside each other, and a line that says where they
    were measured. False where there is nothing to draw."""
    charts = [chart for chart in charts if any(chart["series"].values())]
    if not charts:
        return False
    names = []
    for chart in charts:
        names += [name for name in chart["series"] if name not in names]
    columns = min(columns, len(charts))
    rows = (len(charts) + columns - 1) // columns
    width, height = columns * WIDTH, rows * HEIGHT + FOOT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<style>{css(names)}</style>",
        f'<rect class="back" width="{width}" height="{height}"/>',
    ]
    for i, chart in enumerate(charts):
        out += panel(chart, names, i % columns * WIDTH, i // columns * HEIGHT)
    out.append(f'<text x="{LEFT}" y="{height - 8}">{escape(where)}</text>')
    out.append("</svg>")
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n")
    return True
