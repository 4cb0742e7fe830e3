#!/usr/bin/env python3
"""Makes the files of figures that the fuzzer and tests/e2e/reports.py start from, anew: to be run whenever
FIGURES_VERSION or a layout in core/figures/figures_layout.h changes.

usage: make_figures.py BUILD      writes tests/fuzz/corpus/figures/
"""

import os
import struct
import subprocess
import sys
import tempfile

BUILD = os.path.realpath(sys.argv[1])
ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
CORPUS = os.path.join(ROOT, "tests/fuzz/corpus/figures")
BOOT, HOST = (80, 40), (136, 256)  # of struct figures_process, in the header: where, and how many bytes


def figures_of(program, *arguments):
    """What the program leaves, as of no machine in particular."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        settings = '{"figures": {"keep": true, "directory": "%s"}, "report": {"at_exit": "none"}}' % directory
        subprocess.run([os.path.relpath(os.path.join(BUILD, program), ROOT), *arguments], cwd=ROOT, check=False, stdout=subprocess.DEVNULL,
                       env={**os.environ, "LD_LIBRARY_PATH": f"{BUILD}/sim", "LD_PRELOAD": f"{BUILD}/libcudapool_preload.so",
                            "CUDAPOOL_CONFIG": settings})
        (name,) = os.listdir(directory)
        with open(os.path.join(directory, name), "rb") as file:
            figures = bytearray(file.read())
        figures = bytearray(figures.replace(directory.encode(), b"/figures".ljust(len(directory), b"\0")))
    used = struct.unpack_from("<Q", figures, 24)[0]
    for (at, room), text in ((BOOT, b"00000000-0000-0000-0000-000000000000"), (HOST, b"node")):
        figures[at:at + room] = text.ljust(room, b"\0")
    return figures[:used]


def with_second_device(figures):
    """Records of a device come again, as those of another: all but the settings and the housekeeper begin with
    its number."""
    used = struct.unpack_from("<Q", figures, 24)[0]
    at, records = struct.unpack_from("<Q", figures, 16)[0], bytearray()
    while at < used:
        kind, length = struct.unpack_from("<II", figures, at)
        if kind not in (1, 9):
            records += figures[at:at + 8] + struct.pack("<q", 1) + figures[at + 16:at + length]
        at += length
    both = figures[:used] + records
    struct.pack_into("<Q", both, 24, len(both))
    return both


def write(name, content):
    with open(os.path.join(CORPUS, name), "wb") as file:
        file.write(content)


killed = figures_of("tests/e2e/figures", "kill")
write("killed", killed)
write("two_devices", with_second_device(killed))
write("cut", killed[:9000])
newer = bytearray(killed[:6000])
newer[8:16] = struct.pack("<Q", 1000)
write("newer", newer)
write("other_order", killed[7::-1] + killed[8:5000])
short = bytearray(killed)
struct.pack_into("<I", short, struct.unpack_from("<Q", killed, 16)[0] + 4, 4)
write("short_record", short)
