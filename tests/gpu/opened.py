"""Memory that another process shares by an IPC handle is told as opened until it is closed as often as opened.

usage: opened.py CUDAPOOL      in a process with the pool; CUDAPOOL: the command
       opened.py share BYTES   shares so many bytes, writes the handle, and ends at the end of its input
"""

import ctypes
import os
import subprocess
import sys

MIB = 1 << 20
driver = ctypes.CDLL("libcuda.so.1")


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def call(function, *arguments):
    result = function(*arguments)
    if result != 0:
        sys.exit(f"{function.__name__}: CUDA error {result}")


def start():
    context = ctypes.c_void_p()
    call(driver.cuInit, 0)
    call(driver.cuDevicePrimaryCtxRetain, ctypes.byref(context), 0)
    call(driver.cuCtxSetCurrent, context)


def share(size):
    address, handle = ctypes.c_ulonglong(), (ctypes.c_ubyte * 64)()
    start()
    call(driver.cuMemAlloc_v2, ctypes.byref(address), ctypes.c_size_t(size))
    call(driver.cuIpcGetMemHandle, ctypes.byref(handle), address)
    sys.stdout.buffer.write(bytes(handle))
    sys.stdout.buffer.flush()
    sys.stdin.read()


def without_pool():
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def opened(cudapool):
    """What top tells: bytes in MiB."""
    told = subprocess.run([cudapool, "top", "--count", "1", str(os.getpid())], capture_output=True, text=True,
                          env=without_pool(), check=True).stdout
    row = next((line.split() for line in told.splitlines() if line.endswith(", opened")), None)
    if not row:
        sys.exit(f"top has no row: {told}")
    return 0 if row[5] == "B" else float(row[4])


def main():
    start()
    with subprocess.Popen([sys.executable, __file__, "share", str(256 * MIB)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, env=without_pool()) as other:
        handle = Handle.from_buffer_copy(other.stdout.read(64))
        driver.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
        address = ctypes.c_ulonglong()
        for _ in range(2):
            call(driver.cuIpcOpenMemHandle_v2, ctypes.byref(address), handle, 1)
        told = [opened(sys.argv[1])]
        for _ in range(2):
            call(driver.cuIpcCloseMemHandle, address)
            told.append(opened(sys.argv[1]))
        other.stdin.close()
    print(f"opened: 0 ms, {told[0]} MiB, closed once {told[1]}, closed twice {told[2]}")
    sys.exit(told != [256, 256, 0])


if sys.argv[1] == "share":
    share(int(sys.argv[2]))
else:
    main()
