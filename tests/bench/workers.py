"""Worker processes: one for each allocator, all told the same in turn."""

import json
import os
import select
import statistics
import subprocess
import tempfile
import time


class WorkerFailed(Exception):
    pass


class Worker:
    """A process of worker/worker. Commands are answered one at a time."""

    def __init__(self, name, program, allocator, environment, errors):
        self.name = name
        self.process = subprocess.Popen(
            [program, allocator],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **environment},
        )
        self.answered = b""

    def tell(self, command, seconds=60):
        """Sends a command without waiting for its answer, which `answer` returns."""
        self.told = command
        self.until = time.monotonic() + seconds
        try:
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            self.fail("it has ended")

    def answer(self):
        """What the last command told gave: a dict, with "error" where it could not be measured."""
        output = self.process.stdout
        while b"\n" not in self.answered:
            left = self.until - time.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                self.fail("no answer in time")
            more = os.read(output.fileno(), 65536)
            if not more:
                self.fail(f"it has ended with status {self.process.wait()}")
            self.answered += more
        line, self.answered = self.answered.split(b"\n", 1)
        try:
            return json.loads(line)
        except ValueError:
            self.fail(f"answered {line[:200]!r}")

    def ask(self, command, seconds=60):
        self.tell(command, seconds)
        return self.answer()

    def fail(self, why):
        self.process.kill()
        self.process.wait()
        raise WorkerFailed(f"{self.name}: {self.told}: {why}")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def end(self):
        """Ends the worker as a program ends, so that the pool writes its report."""
        if self.process.poll() is None:
            try:
                self.process.stdin.close()
                self.process.wait(timeout=30)
            except (OSError, subprocess.TimeoutExpired):
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()


def command_line(name, parameters):
    return " ".join([name] + [f"{key}={value}" for key, value in parameters.items()])


class Crew:
    """The workers of a run, by the allocators' names."""

    def __init__(self, program, output):
        self.program = program
        self.workers = {}
        self.failures = {}
        self.turn = 0
        self.errors = open(os.path.join(output, "workers.log"), "w")

    def start(self, name, allocator, environment=None):
        """Adds a worker; where it can't be started, says why in failures. Returns whether it was."""
        worker = Worker(name, self.program, allocator, environment or {}, self.errors)
        try:
            introduced = worker.ask("introduce")
        except WorkerFailed as why:
            introduced = {"error": str(why)}
        if "error" in introduced:
            worker.end()
            self.failures[name] = introduced["error"]
            return None
        self.workers[name] = worker
        return introduced

    def measure(self, name, parameters, allocators, rounds, seconds=60):
        """The same command to each of the allocators in turn, over and over: for each that could do
        it a dict of medians, with all values under "values"."""
        answers = {}
        command = command_line(name, parameters)
        for _ in range(rounds):
            names = [each for each in allocators if each in self.workers]
            self.turn += 1
            first = self.turn % max(len(names), 1)
            for each in names[first:] + names[:first]:
                try:
                    answer = self.workers[each].ask(command, seconds)
                except WorkerFailed as why:
                    self.failures[each] = str(why)
                    del self.workers[each]
                    continue
                if "error" not in answer:
                    answers.setdefault(each, []).append(answer)
                elif self.workers[each].process.poll() is not None:
                    self.failures[each] = answer["error"]
                    del self.workers[each]
        return {each: medians(answers[each]) for each in allocators if each in answers}

    def end(self):
        for worker in self.workers.values():
            worker.end()
        self.errors.close()


def medians(answers):
    """The medians of answers with the same keys."""
    result = {"values": {}}
    for key, value in answers[0].items():
        if isinstance(value, (int, float)):
            values = [answer[key] for answer in answers]
            result["values"][key] = values
            result[key] = statistics.median(values)
        else:
            result[key] = value
    return result


def file_of_driver(worker):
    """The file that the worker has loaded as libcuda.so.1."""
    with open(f"/proc/{worker.process.pid}/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").split(maxsplit=5)[-1]
            if os.path.basename(path).startswith("libcuda.so"):
                return path
    return None


def counted_calls(program, allocator, counting, driver, parameters, environment):
    """The worker's "calls" in a process of its own, in front of the driver of which libcounting.so
    counts the calls."""
    with tempfile.TemporaryDirectory() as directory:
        os.symlink(counting, os.path.join(directory, "libcuda.so.1"))
        paths = [directory] + [p for p in [os.environ.get("LD_LIBRARY_PATH")] if p]
        variables = {
            **environment,
            "LD_LIBRARY_PATH": ":".join(paths),
            "BENCH_REAL_DRIVER": driver,
        }
        worker = Worker("calls", program, allocator, variables, subprocess.DEVNULL)
        try:
            return worker.ask(command_line("calls", parameters))
        except WorkerFailed as why:
            return {"error": str(why)}
        finally:
            worker.end()
