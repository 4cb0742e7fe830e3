#!/usr/bin/env python3
"""A framework takes memory of the first GPU, by a way that the pool does not serve, until there is no more.

usage: limits.py torch|cupy|jax|nccl [MIB]     MIB: of the limit that is set for it; it exits 1 if more was had

torch: PyTorch's expandable segments (cuMemCreate); cupy: arrays behind textures; jax: XLA's own allocator,
which takes what it holds by cuMemCreate; nccl: two processes, each on a GPU of its own, which reduce sums together,
with buffers of NCCL's own by cuMemCreate, before and after each has taken all that it can. Ends with a line that tests/gpu/run.sh reads: how much was had, and by
which error it ended.
"""
import os
import sys
import time

MIB = 1 << 20
PIECE = 20 * MIB
MOST = 6 << 30  # without a limit it ends there

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("NCCL_CUMEM_ENABLE", "1")


def torch_pieces():
    import torch
    while True:
        yield torch.empty(PIECE, dtype=torch.uint8, device="cuda")


def cupy_pieces():
    from cupy.cuda import texture
    import cupy
    cupy.zeros(1)
    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, 2)
    while True:
        yield texture.CUDAarray(channel, 2560, 2048)


def jax_pieces():
    import jax
    device = jax.devices()[0]
    piece = jax.numpy.zeros(PIECE, dtype="uint8")
    while True:
        yield jax.device_put(piece, device).copy().block_until_ready()


def sums_are_right(torch, distributed, rank):
    ones = torch.full((PIECE // 4,), rank + 1.0, device="cuda")
    for _ in range(20):
        total = ones.clone()
        distributed.all_reduce(total)
        if not bool((total == 3).all()):
            raise ValueError("a sum is wrong")


def reduce_in_turn(rank, limit):
    import torch
    import torch.distributed as distributed
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29517", rank=rank, world_size=2)
    sums_are_right(torch, distributed, rank)
    held, error = [], "the end"
    try:
        while len(held) * PIECE < MOST:
            held.append(torch.empty(PIECE, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        error = "OutOfMemoryError"
    had = len(held) * PIECE // MIB
    del held[-8:]
    sums_are_right(torch, distributed, rank)
    print(f"limits_nccl: 0 ms, rank {rank}: {had} MiB" + (f" of {limit // MIB}" if limit else "") + f", then {error}, sums right before and after")
    sys.stdout.flush()
    distributed.barrier()
    os._exit(1 if limit and (had * MIB > limit or error == "the end") else 0)


def two_processes(limit):
    import subprocess
    ranks = [subprocess.Popen([sys.executable, __file__, "nccl", str(limit // MIB), str(rank)]) for rank in (0, 1)]
    sys.exit(max(rank.wait() != 0 for rank in ranks))


def main():
    program, limit = sys.argv[1], int(sys.argv[2]) * MIB if len(sys.argv) > 2 else 0
    if program == "nccl" and len(sys.argv) > 3:
        reduce_in_turn(int(sys.argv[3]), limit)
    if program == "nccl":
        two_processes(limit)
    held, error = [], "the end"
    start = time.perf_counter()
    try:
        for piece in {"torch": torch_pieces, "cupy": cupy_pieces, "jax": jax_pieces}[program]():
            held.append(piece)
            if len(held) * PIECE >= MOST:
                break
    except Exception as problem:  # each framework has its own
        error = type(problem).__name__ + ": " + " ".join(str(problem).split())[:90]
    ms = (time.perf_counter() - start) * 1e3
    had = len(held) * PIECE
    print(f"limits_{program}: {ms:.1f} ms, {had // MIB} MiB" + (f" of {limit // MIB}, {100 * had / limit:.2f} %" if limit else "") +
          f", then {error}")
    sys.stdout.flush()
    os._exit(1 if limit and (had > limit or error == "the end") else 0)


main()
