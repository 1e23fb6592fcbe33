"""Threads, processes, and what crosses between them."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reference
import torch

import fourtap


def checksums(seed: int) -> list[float]:
    """Of the result and its gradients, on several threads. PyTorch itself only holds the numbers.

    Its own threads, unlike ours, do not survive a fork.
    """
    generator = np.random.default_rng(seed)
    numbers = [
        torch.from_numpy(generator.random(shape, np.float32))
        for shape in ((2, 20, 8, 32), (2, 200, 8, 1, 4, 2), (2, 200, 8, 1, 4), (2, 200, 256))
    ]
    value, locations, weights, grad_out = numbers
    found = fourtap.ms_deform_attn(value, [(4, 5)], locations, weights)
    gradients = fourtap.ms_deform_attn_backward(grad_out, value, [(4, 5)], locations, weights)
    return [float(tensor.numpy().sum()) for tensor in (found, *gradients)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_compute_what_their_parent_does(method: str) -> None:
    if method == "fork" and torch.cuda.is_initialized():
        pytest.skip("CUDA does not survive a fork, whoever uses it")
    # The parent has threads by now; a fork would inherit a pool without any.
    expected = [checksums(seed) for seed in range(4)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map_async(checksums, range(4)).get(timeout=60) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_children_forked_during_the_first_call_of_a_thread_compute(tmp_path: pathlib.Path) -> None:
    # A PyTorch that takes long to import, and then cannot be.
    (tmp_path / "torch.py").write_text("import time; time.sleep(1); raise ImportError('there is none')")
    program = """
import os, signal, threading, time, numpy, fourtap
one = numpy.ones
shape = (1, 500, 8, 1, 4)

def call():
    fourtap.ms_deform_attn(one((1, 64, 8, 32)), [(8, 8)], one((*shape, 2)) / 2, one(shape))

threading.Thread(target=call).start()
children = []
for _ in range(20):
    time.sleep(0.02)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # what hangs ends, and is seen
        call()
        os._exit(0)
    children.append(child)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["0"] * 20


def test_many_threads_at_once_give_the_serial_results(device: str) -> None:
    problems = [reference.problem(seed, device=device, dtype=torch.float32, channels=32) for seed in range(8)]
    streams = [torch.cuda.Stream() for _ in problems] if device == "cuda" else []

    def run(index: int) -> list[torch.Tensor]:
        problem = problems[index]
        found = fourtap.ms_deform_attn(problem.value, problem.shapes_tensor, problem.locations, problem.weights)
        return [found, *torch.autograd.grad(found, problem.differentiable, problem.grad_out)]

    def repeat(index: int) -> list[list[torch.Tensor]]:
        if not streams:
            return [run(index) for _ in range(20)]
        with torch.cuda.stream(streams[index]):
            results = [run(index) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
        return results

    torch.use_deterministic_algorithms(True)
    expected = [run(index) for index in range(len(problems))]
    if streams:
        torch.cuda.synchronize()
    with ThreadPoolExecutor(len(problems)) as pool:
        for right, results in zip(expected, pool.map(repeat, range(len(problems))), strict=True):
            for result in results:
                assert all(map(torch.equal, result, right))


def test_other_threads_run_while_a_call_computes() -> None:
    generator = np.random.default_rng(1)
    shapes = [(100, 160)]
    value = generator.random((1, 16000, 8, 32), np.float32)
    locations = generator.random((1, 20000, 8, 1, 16, 2), np.float32)
    weights = generator.random((1, 20000, 8, 1, 16), np.float32)
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    calls: list[tuple[float, float]] = []
    while len(calls) < 3 or sum(ended - began for began, ended in calls) < 0.2:
        began = time.perf_counter()
        fourtap.ms_deform_attn(value, shapes, locations, weights)
        calls.append((began, time.perf_counter()))
    done.set()
    thread.join()
    # With the interpreter's lock held all along there would be none.
    assert sum(began < at < ended for at in ticks for began, ended in calls) >= 3


def test_a_process_ends_though_its_pool_has_threads() -> None:
    program = """
import numpy, fourtap
one = numpy.ones
shape = (1, 500, 8, 1, 4)
fourtap.ms_deform_attn(one((1, 64, 8, 32)), [(8, 8)], one((*shape, 2)) / 2, one(shape))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# Minutes on any machine, in little memory: most of the numbers are one that is spread out.
LONG_CALLS = {
    "forward": "fourtap.ms_deform_attn(value, levels, spread(4000, 1000, 1, 1, 999, 2), spread(4000, 1000, 1, 1, 999))",
    "few queries": "fourtap.ms_deform_attn(value[:1], levels, spread(1, 9999, 1, 1, 10**6, 2), "
    "spread(1, 9999, 1, 1, 10**6))",
    "backward": "fourtap.ms_deform_attn_backward(spread(99, 99, 2048), spread(99, 4, 1, 2048), levels, "
    "spread(99, 99, 1, 1, 1999, 2), spread(99, 99, 1, 1, 1999))",
    "dense": "fourtap.scaled_dot_product_attention(*3 * [spread(1, 64, 20_000, 64)])",
}


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
@pytest.mark.parametrize(("kind", "threads"), [*((kind, 2) for kind in LONG_CALLS), ("forward", 1)])
def test_a_long_call_notices_ctrl_c(kind: str, threads: int) -> None:
    program = f"""
import signal, sys
sys.modules["torch"] = None  # which takes long to import
import numpy, fourtap, fourtap.attention

signal.signal(signal.SIGINT, signal.default_int_handler)  # which background jobs of a shell ignore

def spread(*shape):
    return numpy.broadcast_to(numpy.float32(0.5), shape)

levels = [(2, 2)]
value = spread(4000, 4, 1, 32)
print("ready", flush=True)
try:
    {LONG_CALLS[kind]}
except KeyboardInterrupt:
    print("interrupted", flush=True)
fourtap.ms_deform_attn(value[:1], levels, spread(1, 2, 1, 1, 2, 2), spread(1, 2, 1, 1, 2))
print("goes on", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAYON_NUM_THREADS": str(threads)},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        sent = time.perf_counter()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        # A second or less on a machine that does nothing else; uninterrupted it would be minutes.
        assert time.perf_counter() - sent < 10
        assert process.stdout.readline() == "goes on\n"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_tuning_table_that_is_not_there_is_warned_of(tmp_path: pathlib.Path) -> None:
    missing = str(tmp_path / "tuning.tsv")
    command = [sys.executable, "-c", "import fourtap"]
    environment = os.environ | {"FOURTAP_TUNE": missing, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"UserWarning: FOURTAP_TUNE names {missing}, which is not there" in done.stderr
