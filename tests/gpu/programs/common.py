"""What the programs of this directory share: the loop, the clock, and the line that each prints.

A program calls one of the run functions below with a function that builds its model. That function
returns step(number), which does one step of work and returns one number, on the device or not. The
numbers of all steps so far make a step's checksum. PROGRAM_STEPS in the environment says how many steps
there are, PROGRAM_SHARE=0.25 that there is a quarter of those after the first 20. PROGRAM_FENCES=N records N fences after each module's call.

The line is JSON: the milliseconds of each step, from its start until the device is idle; the checksums;
the most that the framework reserved; and what the device had in use at the end, as NVML counts it.
With PROGRAM_WAIT=1 a program answers the first line of stdin with {"ready": true} once it has imported its
libraries, and uses the device only after the second line.
"""

import ctypes
import hashlib
import json
import os
import struct
import sys
import time
import warnings

import pynvml

warnings.simplefilter("ignore")
# Steps that are looked at on their own: libraries load their kernels in them.
FIRST = 20


def loop(step, wait, steps):
    """Runs the steps. Returns the milliseconds of each, and its checksum."""
    milliseconds, checksums, checksum = [], [], hashlib.sha256()
    mark = getattr(ctypes.CDLL(None), "bench_times_mark", None)  # of tests/bench/libtimes.c
    for number in range(steps):
        if number == FIRST and mark:
            mark()
        start = time.perf_counter()
        value = step(number)
        wait()
        milliseconds.append(round((time.perf_counter() - start) * 1e3, 4))
        checksum.update(struct.pack("<d", float(value)))
        checksums.append(checksum.hexdigest()[:8])
    return milliseconds, checksums


def number_of_steps(steps):
    steps = int(os.environ.get("PROGRAM_STEPS", steps))
    return FIRST + round((steps - FIRST) * float(os.environ.get("PROGRAM_SHARE", 1))) if steps > FIRST else steps


def run(make, wait, reserved, steps):
    if os.environ.get("PROGRAM_WAIT"):
        sys.stdin.readline()
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    started = time.perf_counter()
    step = make()
    wait()
    made = time.perf_counter()
    milliseconds, checksums = loop(step, wait, number_of_steps(steps))
    line = {
        "steps_ms": milliseconds,
        "checksums": checksums,
        "make_seconds": round(made - started, 3),
        "reserved_bytes": reserved(),
        "device_bytes": pynvml.nvmlDeviceGetMemoryInfo(device).used,
        "device": pynvml.nvmlDeviceGetName(device),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
    }
    print(json.dumps(line), flush=True)


def fence_modules(fences):
    """After each call of a module, this many context fences that nobody asks about: what the pool's cost."""
    import ctypes

    import torch

    driver, context, ring = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), []
    call_module = torch.nn.Module.__call__

    def call(*arguments, **options):
        result = call_module(*arguments, **options)
        if not ring:
            driver.cuCtxGetCurrent(ctypes.byref(context))
            ring.extend(ctypes.c_void_p() for _ in range(64))
            for event in ring:
                driver.cuEventCreate(ctypes.byref(event), 2)
        for _ in range(fences):
            driver.cuCtxRecordEvent(context, ring[0])
            ring.append(ring.pop(0))
        return result

    torch.nn.Module.__call__ = call


def run_torch(make, steps, strict=False):
    """A PyTorch program. What `make` creates lies on the GPU. Strict: flash attention's gradients are
    deterministic as well, and an operation that has no deterministic form is an error."""
    import torch

    # Without it cuBLAS may add in another order where streams share a workspace.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    # Filling empty tensors is for finding faults. No program does it, and it takes time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    # The gradients of these two kinds of attention are summed in an order that varies.
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    if "PROGRAM_FENCES" in os.environ:
        fence_modules(int(os.environ["PROGRAM_FENCES"]))

    def make_on_gpu():
        torch.manual_seed(0)
        with torch.device("cuda"):
            return make()

    run(make_on_gpu, torch.cuda.synchronize, torch.cuda.max_memory_reserved, steps)


def descend(optimizer, loss):
    """The end of a step of training with PyTorch. Returns the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def run_cupy(make, steps):
    """A CuPy program: with PROGRAM_CUPY_POOL=off without CuPy's pools."""
    import cupy

    if os.environ.get("PROGRAM_CUPY_POOL") == "off":
        cupy.cuda.set_allocator(None)
        cupy.cuda.set_pinned_memory_allocator(None)
    pool = cupy.get_default_memory_pool()
    run(make, lambda: cupy.cuda.runtime.deviceSynchronize(), pool.total_bytes, steps)


def run_jax(make, steps):
    """A JAX program. Its arrays have no device to wait for but their own."""
    import jax

    def reserved():
        statistics = jax.local_devices()[0].memory_stats() or {}
        return statistics.get("peak_pool_bytes") or statistics.get("peak_bytes_in_use") or 0

    run(make, lambda: jax.block_until_ready(jax.live_arrays()), reserved, steps)
