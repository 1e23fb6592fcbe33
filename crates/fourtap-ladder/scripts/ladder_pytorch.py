"""Dense attention by PyTorch with one backend forced, or the product of queries and keys alone: rung d09 of the ladder.

Run by `fourtap-ladder ladder d09` as `python ladder_pytorch.py FOLDER`. The folder holds task.json and the tensors as
raw bytes. The rows that the task asks for come back in found.bin, for fourtap to compare with its oracle, and a line
of JSON says how long it took; whether that counts is decided there.
"""

import contextlib
import json
import os
import pathlib
import sys
import threading
import time

REPLAY_MS = 3.0  # long beside the microsecond that the launch of a graph is uncertain by
MOST_LAUNCHES = 200
WARM_UP_S = 0.1
FEWEST_SAMPLES, MOST_SAMPLES = 20, 200


def answer(**fields):
    print(json.dumps(fields), flush=True)
    os._exit(0)


def end_with_parent():
    sys.stdin.buffer.read()
    os._exit(1)


threading.Thread(target=end_with_parent, daemon=True).start()
try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    answer(unavailable=f"{sys.executable} has no PyTorch that can force a backend: {error}")

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def tensors(folder, task):
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[task["dtype"]]
    for name in ("query", "key", "value"):
        data = bytearray((folder / f"{name}.bin").read_bytes())
        yield torch.frombuffer(data, dtype=dtype).reshape(task["shapes"][name]).cuda()


def elapsed_ms(work):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def captured(work):
    """A graph of as many computations as fill a replay, how many that are, and where the last leaves its result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    one = elapsed_ms(lambda: [work() for _ in range(3)]) / 3
    launches = int(min(max(REPLAY_MS / max(one, 1e-4), 1), MOST_LAUNCHES))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            out = work()
    return graph, launches, out


def samples_of(graph, launches, budget):
    begun = time.monotonic()
    while time.monotonic() - begun < WARM_UP_S:
        elapsed_ms(graph.replay)
    samples, begun = [], time.monotonic()
    while len(samples) < FEWEST_SAMPLES or (len(samples) < MOST_SAMPLES and time.monotonic() - begun < budget):
        samples.append(elapsed_ms(graph.replay) / launches)
    return samples


def main():
    folder = pathlib.Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    if not torch.cuda.is_available():
        answer(unavailable=f"PyTorch {torch.__version__} of {sys.executable} finds no CUDA device")
    torch.cuda.set_device(task["device"])
    query, key, value = tensors(folder, task)
    forced = contextlib.nullcontext()
    if task["what"] == "gemm":
        transposed = key.transpose(2, 3)

        def work():
            return torch.matmul(query, transposed)
    else:
        forced = sdpa_kernel(BACKENDS[task["what"]])

        def work():
            return F.scaled_dot_product_attention(query, key, value, is_causal=task["causal"])

    with torch.inference_mode(), forced:
        try:
            first = work()
        except RuntimeError as error:
            answer(refused=str(error).splitlines()[0])
        rows = torch.tensor(task["rows"], device="cuda")
        found = first.reshape(-1, first.shape[-1])[rows].contiguous().cpu()
        (folder / "found.bin").write_bytes(found.view(torch.int16).numpy().tobytes())
        graph, launches, out = captured(work)
        out.fill_(float("nan"))  # so that it is seen if what is timed does not compute
        samples = samples_of(graph, launches, task["budget_s"])
        answer(
            software=f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",
            samples_ms=samples,
            launches=launches,
            same_bits=torch.equal(first, out),
        )


main()
