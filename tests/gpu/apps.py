"""Python programs that take GPU memory through their libraries, each timed and checked.

usage: apps.py NAME [STEPS]
Prints one line "NAME: MILLISECONDS ms a step, RESULT"; the same NAME always computes the same
result, so that the lines of two runs can be compared.
"""

import sys
import time
import warnings

WARM_UP_STEPS = 10

# Elements of four bytes: 64 KiB to 8 MiB, and sizes between.
PINNED_COUNTS = (1 << 14, 100_000, 1 << 18, 1 << 20, 1 << 21)


def timed(step, steps, wait):
    """The milliseconds of one step, and what the last one returned."""
    for _ in range(WARM_UP_STEPS):
        step()
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        result = step()
    wait()
    return (time.perf_counter() - start) / steps * 1e3, result


def torch_mlp():
    """A multi-layer perceptron, trained: a step of it, and how to wait for the GPU. Caching is
    torch's own unless the environment says PYTORCH_NO_CUDA_MEMORY_CACHING=1."""
    import torch

    torch.manual_seed(0)
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(1024, 1024), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(256, 1024, device="cuda")

    def step():
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, torch.cuda.synchronize


def torch_transformer():
    """The same of a small transformer, with Adam, on sequences of changing length."""
    import itertools

    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(1000, 256), torch.nn.TransformerEncoder(layer, 3), torch.nn.Linear(256, 1000)
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    lengths = (128, 96, 128, 160)
    given = itertools.cycle([torch.randint(1000, (16, length + 1)).cuda() for length in lengths])

    def step():
        tokens = next(given)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, torch.cuda.synchronize


def torch_training(steps):
    """The multi-layer perceptron, timed."""
    step, wait = torch_mlp()
    milliseconds, loss = timed(step, steps, wait)
    return milliseconds, f"loss {loss.item():.6f}"


def torch_two_devices(steps):
    """Tensors that are made on each of two devices and copied to the other, without an order
    between the devices but the copies' own."""
    import torch

    torch.manual_seed(0)
    here, there = torch.device("cuda:0"), torch.device("cuda:1")
    weights = torch.randn(512, 512)
    weights_of = {here: weights.to(here), there: weights.to(there)}
    total = torch.zeros((), device=here)

    def step():
        nonlocal total
        on_one = torch.ones(256, 512, device=here) @ weights_of[here]
        on_other = on_one.to(there).tanh() @ weights_of[there]
        back = on_other.to(here).tanh()
        total = 0.5 * total + (back * back).mean()
        return total

    def wait():
        torch.cuda.synchronize(here)
        torch.cuda.synchronize(there)

    milliseconds, result = timed(step, steps, wait)
    return milliseconds, f"total {result.item():.6f}"


def cupy_sort(memory):
    """Element-wise work and a sort on a million floats, a step of it, and how to wait: with CuPy's
    own pool, with none, or with the driver's stream-ordered one."""
    import cupy

    if memory == "stream-ordered":
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    elif memory == "none":
        cupy.cuda.set_allocator(None)
    if memory != "own":
        cupy.cuda.set_pinned_memory_allocator(None)
    angles = cupy.arange(1 << 20, dtype=cupy.float32)

    def step():
        return float(cupy.sort(cupy.sin(angles) * 2 + cupy.cos(angles)).sum())

    return step, cupy.cuda.runtime.deviceSynchronize


def cupy_arrays(steps, memory):
    """The same, timed."""
    step, wait = cupy_sort(memory)
    milliseconds, total = timed(step, steps, wait)
    return milliseconds, f"sum {total:.4f}"


def cupy_pinned(steps):
    """Arrays of several sizes that go to the device and back through pinned memory of their own,
    without CuPy's pool of it."""
    import cupy
    import numpy

    cupy.cuda.set_pinned_memory_allocator(None)
    stream = cupy.cuda.Stream(non_blocking=True)
    sources = [numpy.arange(count, dtype=numpy.float32) for count in PINNED_COUNTS]

    def pinned_like(array):
        memory = cupy.cuda.alloc_pinned_memory(array.nbytes)
        return numpy.frombuffer(memory, array.dtype, array.size)

    def step():
        total = 0.0
        for source in sources:
            staged, result = pinned_like(source), pinned_like(source)
            staged[:] = source
            with stream:
                on_device = cupy.empty(source.shape, source.dtype)
                on_device.set(staged, stream=stream)
                (on_device * 2).get(stream=stream, out=result, blocking=False)
            stream.synchronize()
            total += float(result[-1])
        return total

    milliseconds, total = timed(step, steps, stream.synchronize)
    if total != sum(2.0 * (count - 1) for count in PINNED_COUNTS):
        sys.exit("cupy: wrong result")
    return milliseconds, f"last elements {total:.0f} in all"


def import_numba():
    """NumPy, and Numba's module for CUDA."""
    import numpy

    # A name that newer versions of NumPy have dropped and that Numba may still want.
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack
    from numba import cuda

    warnings.simplefilter("ignore")
    return numpy, cuda


def numba_pinned(steps):
    """A kernel on pinned arrays that are made for it in every step."""
    numpy, cuda = import_numba()

    @cuda.jit
    def double(array):
        i = cuda.grid(1)
        if i < array.size:
            array[i] = 2 * array[i]

    sources = [numpy.arange(count, dtype=numpy.float32) for count in PINNED_COUNTS]
    stream = cuda.stream()

    def step():
        total = 0.0
        for source in sources:
            array = cuda.pinned_array(source.shape, source.dtype)
            array[:] = source
            on_device = cuda.to_device(array, stream=stream)
            double[(source.size + 255) // 256, 256, stream](on_device)
            on_device.copy_to_host(array, stream=stream)
            stream.synchronize()
            total += float(array[-1])
        return total

    milliseconds, total = timed(step, steps, cuda.synchronize)
    if total != sum(2.0 * (count - 1) for count in PINNED_COUNTS):
        sys.exit("numba: wrong result")
    return milliseconds, f"last elements {total:.0f} in all"


def numba_copies(steps):
    """A kernel on arrays that are copied to the device and back in every step."""
    numpy, cuda = import_numba()

    @cuda.jit
    def double_and_add(a, b, out):
        i = cuda.grid(1)
        if i < a.size:
            out[i] = 2 * a[i] + b[i]

    a = numpy.arange(1 << 20, dtype=numpy.float32)
    b = a * 3

    def step():
        on_device = cuda.to_device(a), cuda.to_device(b)
        out = cuda.device_array_like(a)
        double_and_add[4096, 256](*on_device, out)
        return out.copy_to_host()

    milliseconds, out = timed(step, steps, cuda.synchronize)
    if not numpy.array_equal(out, a * 5):
        sys.exit("numba: wrong result")
    return milliseconds, "all elements right"


def jax_training(steps):
    """Gradient descent on a small network, as JAX comes."""
    import jax
    import jax.numpy as jnp

    def loss(weights, data):
        for weight in weights:
            data = jnp.tanh(data @ weight)
        return jnp.mean(data * data)

    @jax.jit
    def update(weights, data):
        value, gradients = jax.value_and_grad(loss)(weights, data)
        return [w - 1e-2 * g for w, g in zip(weights, gradients)], value

    keys = jax.random.split(jax.random.PRNGKey(0), 7)
    weights = [jax.random.normal(key, (1024, 1024)) / 32 for key in keys[1:]]
    data = jax.random.normal(keys[0], (256, 1024))

    def step():
        nonlocal weights
        weights, value = update(weights, data)
        return value

    milliseconds, value = timed(step, steps, lambda: jax.block_until_ready(weights))
    # XLA times its algorithms at each start: which it chooses shows in later digits.
    return milliseconds, f"loss {float(value):.4f}"


PROGRAMS = {
    "torch": (torch_training, 100),
    "torch_two_devices": (torch_two_devices, 200),
    "cupy": (lambda steps: cupy_arrays(steps, "none"), 100),
    "cupy_own_pool": (lambda steps: cupy_arrays(steps, "own"), 100),
    "cupy_async": (lambda steps: cupy_arrays(steps, "stream-ordered"), 100),
    "cupy_pinned": (cupy_pinned, 60),
    "numba": (numba_copies, 100),
    "numba_pinned": (numba_pinned, 60),
    "jax": (jax_training, 200),
}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
        sys.exit(f"usage: apps.py {'|'.join(PROGRAMS)} [STEPS]")
    name = sys.argv[1]
    program, steps = PROGRAMS[name]
    if len(sys.argv) > 2:
        steps = int(sys.argv[2])
    milliseconds, result = program(steps)
    print(f"{name}: {milliseconds:.4f} ms a step, {result}")


if __name__ == "__main__":
    main()
