/*
 * The style sheet of the page that report_html.c prints: light or dark as the reader's system is,
 * and on paper. Colours differ in lightness as well, for those who don't tell hues apart.
 */
#ifndef CUDAPOOL_TOOLS_HTML_STYLE_H
#define CUDAPOOL_TOOLS_HTML_STYLE_H

static const char html_style[] =
    ":root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#57606a;--line:#d0d7de;"
    "--panel:#f6f8fa;--c1:#0b5394;--c2:#3d85c6;--c3:#8e63b5;--c4:#d9822b;--c5:#b3261e;--c6:#9aa4af;"
    "--good:#1a7f37}"
    "\n"
    "@media (prefers-color-scheme:dark){:root{--back:#0d1117;--text:#e6edf3;--soft:#9aa4af;"
    "--line:#30363d;--panel:#161b22;--c1:#79b8ff;--c2:#388bfd;--c3:#b392f0;--c4:#f0a35e;"
    "--c5:#ff7b72;--c6:#6e7681;--good:#3fb950}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;padding:1rem;max-width:90rem;background:var(--back);color:var(--text);"
    "font:15px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}\n"
    "header p{margin:.25rem 0 1rem;color:var(--soft);overflow-wrap:anywhere}\n"
    "code{font:.9em ui-monospace,monospace;overflow-wrap:anywhere}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.75rem;"
    "margin:0}\n"
    ".tiles div{background:var(--panel);border:1px solid var(--line);border-radius:6px;"
    "padding:.6rem .8rem}\n"
    ".tiles dt{color:var(--soft)}.tiles dd{margin:0;font-size:1.4rem;text-align:left}\n"
    "li{margin:.4rem 0;max-width:75ch}\n"
    ".scroll{overflow-x:auto;margin:.5rem 0 1rem}\n"
    ":focus-visible{outline:2px solid var(--c2);outline-offset:2px}\n"
    "table{border-collapse:collapse}.scroll table{font-size:13px}\n"
    "caption{text-align:left;color:var(--soft);padding:.25rem 0}\n"
    "th,td{padding:.25rem .5rem;border-bottom:1px solid var(--line);text-align:left;"
    "vertical-align:top}\n"
    "thead th{border-bottom-width:2px;font-weight:600}tbody th{font-weight:400}\n"
    ".n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    ".sum th,.sum td{font-weight:600}\n"
    ".bar{display:flex;width:11rem;height:1rem;margin-top:.25rem;background:var(--panel);"
    "border:1px solid var(--line)}\n"
    ".bar i,.legend i{display:block;height:100%;min-width:1px}\n"
    ".legend{margin:.25rem 0;display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;color:var(--soft)}\n"
    ".legend i{display:inline-block;width:.9rem;height:.9rem;margin-right:.4rem;"
    "vertical-align:-.1rem}\n"
    ".clean,.live,.size{background:var(--c1)}.queried,.cached{background:var(--c2)}\n"
    ".barrier,.pending{background:var(--c3)}.waited{background:var(--c4)}\n"
    ".missed{background:var(--c5)}.peak{background:var(--c6)}\n"
    "figure{margin:.5rem 0 1rem;max-width:60rem}svg{display:block;width:100%;height:12rem;"
    "background:var(--panel);border:1px solid var(--line)}\n"
    "figcaption,.axis{color:var(--soft);font-size:.85rem}.axis{display:flex;"
    "justify-content:space-between}h3{font-size:1rem;margin:1.25rem 0 .25rem}\n"
    "polygon.clean,polygon.live{fill:var(--c1)}polygon.queried,polygon.cached{fill:var(--c2)}"
    "polygon.barrier,polygon.pending{fill:var(--c3)}polygon.waited{fill:var(--c4)}"
    "polygon.missed{fill:var(--c5)}\n"
    ".better{color:var(--good)}.worse{color:var(--c5)}\n"
    "@media print{:root{--back:#fff;--text:#000;--soft:#333;--line:#999;--panel:#fff}"
    "body{max-width:none;padding:0;font-size:9pt}.scroll{overflow:visible}"
    ".bar,.bar i,.legend i,svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}"
    "tr,li,figure{break-inside:avoid}th,td{padding:.1rem .3rem}.bar{width:8rem}}\n";

#endif
