"""Python programs whose use of GPU memory is recorded (record.sh), each with its library's own pool
switched off. They call bench_record_mark() where a step begins, if a recorder is there.

usage: record_apps.py torch_training|torch_inference|cupy
"""

import ctypes
import sys

mark = getattr(ctypes.CDLL(None), "bench_record_mark", lambda: None)


def marked_steps(step, inputs):
    """A step for each input: the first round of inputs unmarked, so that libraries have loaded what
    they load, then one marked round and the mark at its end."""
    for given in inputs:
        step(given)
    for given in inputs:
        mark()
        step(given)
    mark()


def torch_training():
    """A small transformer on sequences of changing length, with Adam."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(1000, 256), torch.nn.TransformerEncoder(layer, 3), torch.nn.Linear(256, 1000)
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(length):
        tokens = torch.randint(1000, (16, length + 1)).cuda()
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    marked_steps(step, [128, 96, 128, 160])


def torch_inference():
    """A residual network on batches of changing size."""
    import torch
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet18().cuda().eval()

    def step(batch):
        with torch.no_grad():
            return model(torch.randn(batch, 3, 224, 224).cuda()).argmax(1).cpu()

    marked_steps(step, [1, 8, 4, 1, 16, 8, 1, 4])


def cupy_arrays():
    """Statistics, a transform, a sort and a conjugate gradient on arrays of changing size."""
    import cupy

    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)

    def conjugate_gradient(size):
        diagonal = cupy.linspace(2, 3, size)
        solution = cupy.zeros(size)
        residual = cupy.ones(size)
        direction = residual.copy()
        for _ in range(8):
            product = diagonal * direction - 0.5 * cupy.roll(direction, 1)
            alpha = residual @ residual / (direction @ product)
            solution = solution + alpha * direction
            remaining = residual - alpha * product
            direction = remaining + (remaining @ remaining) / (residual @ residual) * direction
            residual = remaining
        return solution

    def step(size):
        angles = cupy.arange(size, dtype=cupy.float32) * 0.001
        waves = cupy.sin(angles) * 2 + cupy.cos(angles)
        spectrum = cupy.abs(cupy.fft.rfft(waves))
        largest = cupy.sort(spectrum)[-10:]
        spread = (waves - waves.mean()) / waves.std()
        kept = spread[spread > 0.5]
        return float(largest.sum() + kept.sum() + conjugate_gradient(size // 4).sum())

    marked_steps(step, [1 << 20, 1 << 16, 3 << 18, 1 << 20, 1 << 12, 5 << 18])


PROGRAMS = {
    "torch_training": torch_training,
    "torch_inference": torch_inference,
    "cupy": cupy_arrays,
}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in PROGRAMS:
        sys.exit(f"usage: record_apps.py {'|'.join(PROGRAMS)}")
    PROGRAMS[sys.argv[1]]()
    print(f"{sys.argv[1]}: done")


main()
