#!/usr/bin/env python3
"""A terminal's screen as a drawing: reads what `tmux capture-pane -e -p` writes, and prints SVG.

usage: terminal_svg.py TITLE <screen >drawing.svg
"""

import html
import re
import sys

CELL, LINE, SIZE, MARGIN = 8.0, 18, 13.3, 14
BACK, TEXT = "#10151c", "#d7dde4"
COLOURS = ["#10151c", "#f47067", "#57ab5a", "#c69026", "#539bf5", "#b083f0", "#39c5cf", "#d7dde4"]


class Style:
    def __init__(self):
        self.reset()

    def reset(self):
        self.bold = self.underline = self.reverse = False
        self.text, self.back = None, None

    def take(self, code):
        if code == 0:
            self.reset()
        elif code in (1, 4, 7):
            setattr(self, {1: "bold", 4: "underline", 7: "reverse"}[code], True)
        elif code in (22, 24, 27):
            setattr(self, {22: "bold", 24: "underline", 27: "reverse"}[code], False)
        elif 30 <= code <= 37:
            self.text = COLOURS[code - 30]
        elif 40 <= code <= 47:
            self.back = COLOURS[code - 40]
        elif code == 39:
            self.text = None
        elif code == 49:
            self.back = None

    def drawn(self):
        """The colours of the text and of what is behind it, and attributes."""
        text, back = self.text or TEXT, self.back
        if self.reverse:
            text, back = back or BACK, text
        attributes = ' font-weight="bold"' if self.bold else ""
        return text, back, attributes + (' text-decoration="underline"' if self.underline else "")


def draw_line(line, style, y):
    """Runs of one style each."""
    column = 0
    for sequence, text in re.findall(r"\x1b\[([0-9;]*)m|([^\x1b]+)", line):
        if not text:
            for code in sequence.split(";"):
                style.take(int(code or 0))
            continue
        colour, back, attributes = style.drawn()
        x, width = MARGIN + column * CELL, len(text) * CELL
        column += len(text)
        if back:
            yield f'<rect x="{x:g}" y="{y - 13:g}" width="{width:g}" height="{LINE}" fill="{back}"/>'
        # More than one space in a row is not drawn everywhere.
        for words in re.finditer(r"\S+(?: \S+)*", text):
            place, shown = x + words.start() * CELL, words.group()
            yield (f'<text x="{place:g}" y="{y}" fill="{colour}"{attributes} textLength="{len(shown) * CELL:g}">'
                   f"{html.escape(shown)}</text>")


def main():
    lines = sys.stdin.read().rstrip("\n").split("\n")
    columns = max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines)
    width, height = columns * CELL + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" '
          f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="{SIZE}">'
          f'<title>{html.escape(sys.argv[1])}</title>')
    print(f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{BACK}"/>')
    style = Style()
    for i, line in enumerate(lines):
        for element in draw_line(line, style, MARGIN + 13 + i * LINE):
            print(element)
    print("</svg>")


main()
