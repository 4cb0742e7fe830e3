"""Python programs that take GPU memory through their libraries inside a capture in global mode,
which forbids cudaMalloc and cudaFree, unless captures.allocate is set; each replayed and checked.

usage: graph_apps.py cupy|torch [REPLAYS]

Prints one line "NAME: MILLISECONDS ms a replay, RESULT". Exits 3 where the capture is refused, 1
where something is wrong: a word, or memory that is not there again once the last graph has gone.
"""

import gc
import os
import sys
import time

PAGE = 2 << 20  # the driver's; what it knows of free memory is whole ones
REFUSED = 3
ROUND = 500  # replays between two looks of the host


def is_refusal(error):
    """By the words of CUDA's errors of captures."""
    return "captur" in str(error).lower()


def refused(name, error):
    """Ends at once: with the capture spoilt, frees fail as well."""
    print(f"{name}: 0.0 ms, refused: {' '.join(str(error).split())[:200]}", flush=True)
    os._exit(REFUSED)


def timed(step, steps, wait):
    """The milliseconds of one step."""
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - start) / steps * 1e3


def settled(free_bytes):
    """The free memory, once it has not changed for a while: a graph's end is told by a thread of
    the driver's, a little later."""
    gc.collect()
    left, unchanged = free_bytes(), 0
    while unchanged < 5:
        time.sleep(0.02)
        before, left = left, free_bytes()
        unchanged = unchanged + 1 if left == before else 0
    return left


def finish(name, replayed, told, wrong, before, during, after):
    """Prints the line, and ends."""
    kept, lost = max(0, before - during), max(0, before - after)
    print(
        f"{name}: {replayed:.4f} ms a replay, {told}, {wrong} wrong words, "
        f"{kept / 2**20:.1f} MiB kept, {lost / 2**20:.1f} lost",
        flush=True,
    )
    sys.exit(0 if wrong == 0 and kept > 0 and lost <= kept / 100 + PAGE else 1)


# --- CuPy ---------------------------------------------------------------------------------------


def cupy_graph(replays):
    """Expressions over arrays without CuPy's pool: each intermediate array comes from cudaMalloc,
    and goes back as soon as the next one is there. The input changes from round to round; each
    replay compares its sums with what they must be, and counts."""
    import cupy

    cupy.cuda.set_allocator(None)
    runtime = cupy.cuda.runtime
    rows, columns = 1024, 4096
    stream = cupy.cuda.Stream(non_blocking=True)
    beside = cupy.cuda.Stream(non_blocking=True)

    def free_bytes():
        runtime.deviceSynchronize()
        return runtime.memGetInfo()[0]

    with stream:
        # Whole numbers, small enough for floats to be exact.
        pattern = cupy.arange(rows * columns, dtype=cupy.float32).reshape(rows, columns) % 7
        values = pattern.copy()
        expected = cupy.zeros(rows, dtype=cupy.float32)
        wrong = cupy.zeros((), dtype=cupy.int64)

        def sums():
            doubled = values * 2 + 1
            return ((doubled - values) * 3 - cupy.maximum(doubled, values)).sum(axis=1)

        def checked():
            nonlocal wrong
            wrong += (sums() != expected).sum()

        def set_input(number):
            # ((2v+1-v)*3 - (2v+1)) is v+2.
            values[...] = pattern + number
            expected[...] = (pattern + (number + 2)).sum(axis=1)

        def captured():
            stream.begin_capture(mode=runtime.streamCaptureModeGlobal)
            try:
                checked()
                return stream.end_capture()
            except Exception as error:
                if is_refusal(error):
                    refused("cupy_graph", error)
                raise

        for number in range(3):
            set_input(number)
            checked()
        eager = timed(checked, 200, stream.synchronize)
        # The driver keeps something for itself once there was a graph.
        graph = captured()
        graph.launch(stream=stream)
        stream.synchronize()
        del graph
        before = settled(free_bytes)
        graph = captured()
        during = settled(free_bytes)
        replayed = timed(lambda: graph.launch(stream=stream), 2 * ROUND, stream.synchronize)
        for number in range(replays // ROUND):
            set_input(number % 5)
            for _ in range(ROUND):
                graph.launch(stream=stream)
            with beside:
                # What a graph kept too little of would be overwritten here.
                for _ in range(5):
                    cupy.full((rows, columns), -1, dtype=cupy.float32)
            stream.synchronize()
        beside.synchronize()
        del graph
        after = settled(free_bytes)
        count = replays // ROUND * ROUND + 2 * ROUND
        finish(
            "cupy_graph", replayed, f"{eager:.4f} eager, {count} replays", int(wrong), before,
            during, after,
        )


# --- PyTorch ------------------------------------------------------------------------------------


def torch_captures(torch, stream):
    """The ways to capture, by name: each takes a function and returns a graph and what that has
    returned."""

    def as_documented(function):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
            result = function()
        return graph, result

    def begin_and_end(function):
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="global")
            result = function()
            graph.capture_end()
        return graph, result

    return {"torch.cuda.graph": as_documented, "capture_begin": begin_and_end}


class Perceptron:
    """A multi-layer perceptron in training, and the same one that is left as it is."""

    def __init__(self, torch):
        torch.manual_seed(0)
        layers = []
        for _ in range(6):
            layers += [torch.nn.Linear(1024, 1024), torch.nn.GELU()]
        self.torch = torch
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.first = [p.detach().clone() for p in self.model.parameters()]
        self.data = torch.randn(256, 1024, device="cuda")
        self.inputs = self.data.clone()

    def forward(self):
        with self.torch.no_grad():
            return self.model(self.inputs)

    def step(self):
        loss = self.model(self.inputs).square().sum(1).mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def set_input(self, number):
        self.inputs.copy_(self.data * (1 + number / 8))

    def from_the_start(self):
        with self.torch.no_grad():
            for parameter, first in zip(self.model.parameters(), self.first):
                parameter.copy_(first)

    def forget_gradients(self):
        self.optimizer.zero_grad(set_to_none=True)

    def eager_step(self):
        self.forget_gradients()
        return self.step()


def differences(found, expected, scale):
    """How many elements differ by more than another order of sums explains; scale: numbers of the
    size of what was computed."""
    return int((~((found - expected).abs() <= 1e-2 * scale.abs().max())).sum())


def torch_forward(torch, net, capture, stream, replays):
    """Outputs of many replays against eager ones, for inputs that change."""
    with torch.cuda.stream(stream):
        expected = []
        for number in range(4):
            net.set_input(number)
            expected.append(net.forward())
        eager = timed(net.forward, 200, stream.synchronize)
    graph, output = capture(net.forward)
    wrong = 0
    with torch.cuda.stream(stream):
        replayed = timed(graph.replay, 2 * ROUND, stream.synchronize)
        for number in range(replays // ROUND):
            net.set_input(number % 4)
            for _ in range(ROUND):
                graph.replay()
            wrong += differences(output, expected[number % 4], expected[number % 4])
    return f"forward {replayed:.4f}, {eager:.4f} eager", wrong


def torch_training(torch, net, capture, stream, replays):
    """Parameters and losses after many steps against those of eager ones, over and over."""
    steps = 100
    with torch.cuda.stream(stream):
        net.set_input(0)
        net.from_the_start()
        eager = timed(net.eager_step, steps, stream.synchronize)
        net.from_the_start()
        for _ in range(steps):
            expected_loss = net.eager_step().detach()
        expected = [p.detach().clone() for p in net.model.parameters()]
        net.forget_gradients()
    # The gradients are made in the capture, and written anew by each replay.
    graph, loss = capture(net.step)
    wrong = 0
    with torch.cuda.stream(stream):
        for _ in range(max(1, replays // steps)):
            net.from_the_start()
            replayed = timed(graph.replay, steps, stream.synchronize)
            wrong += differences(loss.detach(), expected_loss, expected_loss)
            for found, right, first in zip(net.model.parameters(), expected, net.first):
                wrong += differences(found.detach(), right, right - first)
        net.forget_gradients()
    return replayed, f"{eager:.4f} eager", wrong


def first_that_works(torch, stream):
    """Which of the ways to capture works, with a small graph, which goes again; and the failures
    of those before it."""
    failures, refusals = [], 0
    for name, capture in torch_captures(torch, stream).items():
        try:
            graph, _ = capture(lambda: torch.empty(1 << 20, device="cuda").fill_(1))
            graph.replay()
            torch.cuda.synchronize()
            return name, capture
        except Exception as error:
            print(f"{name}: {error}", flush=True)
            refusals += is_refusal(error)
            failures.append(f"{name}: {error}")
    if refusals:
        refused("torch_graph", "; ".join(failures))
    sys.exit("torch_graph: " + "; ".join(failures))


def torch_graph(replays):
    """A multi-layer perceptron without torch's caching: forward, and a step of training."""
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    import torch

    stream = torch.cuda.Stream()
    net = Perceptron(torch)

    def free_bytes():
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    torch.cuda.synchronize()
    # What is loaded, or taken for good, at a first use is not to be so in a capture.
    with torch.cuda.stream(stream):
        for _ in range(3):
            net.forward()
            net.eager_step()
            differences(net.inputs, net.data, net.data)
        net.forget_gradients()
        net.from_the_start()
    torch.cuda.synchronize()
    name, capture = first_that_works(torch, stream)
    before = settled(free_bytes)
    told, wrong = torch_forward(torch, net, capture, stream, replays)
    with torch.cuda.stream(stream):
        net.set_input(0)
        net.forget_gradients()
    kept, _ = capture(net.step)
    during = settled(free_bytes)
    del kept
    net.forget_gradients()
    replayed, more, wrong_steps = torch_training(torch, net, capture, stream, replays // 2)
    after = settled(free_bytes)
    finish(
        "torch_graph", replayed, f"{more} a step of training; {told}; by {name}",
        wrong + wrong_steps, before, during, after,
    )


PROGRAMS = {"cupy": (cupy_graph, 40000), "torch": (torch_graph, 20000)}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
        sys.exit(f"usage: graph_apps.py {'|'.join(PROGRAMS)} [REPLAYS]")
    program, replays = PROGRAMS[sys.argv[1]]
    program(int(sys.argv[2]) if len(sys.argv) > 2 else replays)


main()
