"""What the benchmarks share: the reference that results are verified against, timing, and records."""

from __future__ import annotations

import contextlib
import gc
import json
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import fourtap

Levels = Sequence[tuple[int, int]]


def device_named(name: str) -> torch.device:
    """The device for ``auto``, ``cpu`` or ``cuda``."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no CUDA device\nhint: --device cpu")
    return torch.device(name)


def device_words(device: torch.device) -> str:
    """The name of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    information = pathlib.Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.machine()}, {torch.get_num_threads()} threads"


def level_tensors(levels: Levels, device: torch.device) -> tuple[Tensor, Tensor]:
    """``spatial_shapes`` and ``level_start_index`` as tensors."""
    shapes = torch.tensor(levels, device=device)
    sizes = shapes.prod(-1)
    return shapes, sizes.cumsum(0) - sizes


def grid_sample_attention(value: Tensor, levels: Levels, locations: Tensor, weights: Tensor) -> Tensor:
    """The operator composed in PyTorch, as in transformers: one grid_sample per level and a weighted sum."""
    images, _, heads, channels = value.shape
    queries = locations.shape[1]
    grids = 2 * locations - 1
    samples = []
    for level, pixels in enumerate(value.split([height * width for height, width in levels], dim=1)):
        image = pixels.flatten(2).transpose(1, 2).reshape(images * heads, channels, *levels[level])
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        samples.append(functional.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    weights = weights.transpose(1, 2).reshape(images * heads, 1, queries, -1)
    result = (torch.stack(samples, dim=-2).flatten(-2) * weights).sum(-1)
    return result.view(images, heads * channels, queries).transpose(1, 2).contiguous()


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Relative error in the 2-norm, computed in f64; absolute where all is expected to be 0; NaN if anything is NaN."""
    found, expected = found.detach().double(), expected.detach().double()
    error, norm = (found - expected).norm().item(), expected.norm().item()
    return error / (norm or 1.0)


def mark(device: torch.device) -> float | torch.cuda.Event:
    """A mark in the device's queue, or the time on the CPU."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(first: float | torch.cuda.Event, last: float | torch.cuda.Event) -> float:
    """Waits until the device has reached ``last``."""
    if isinstance(first, torch.cuda.Event):
        last.synchronize()
        return first.elapsed_time(last) / 1e3
    return last - first


def synchronize(device: torch.device) -> None:
    """Waits until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_seconds(call: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """Seconds per call, from an idle device until the last call's work is done."""
    synchronize(device)
    first = mark(device)
    for _ in range(calls):
        call()
    return seconds_between(first, mark(device)) / calls


def host_seconds(call: Callable[[], object], device: torch.device, calls: int) -> float:
    """Seconds per call until it returns; on CUDA its work may not be done by then.

    So few calls that the queue of launches does not fill up: the host would wait for the device otherwise.
    """
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - begin
    synchronize(device)
    return seconds / calls


@dataclass
class Samples:
    """Seconds, of many repetitions."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.seconds)

    @property
    def low(self) -> float:
        """The 10th percentile."""
        return self._at(0.1)

    @property
    def high(self) -> float:
        """The 90th percentile."""
        return self._at(0.9)

    def _at(self, part: float) -> float:
        return sorted(self.seconds)[round(part * (len(self.seconds) - 1))]

    def fields(self) -> dict[str, float | int]:
        """The fields of a record."""
        return {
            "median_us": self.median * 1e6,
            "low_us": self.low * 1e6,
            "high_us": self.high * 1e6,
            "repetitions": len(self.seconds),
        }


class Records:
    """Records with their provenance, written as one JSON object per line if there is a file for them."""

    def __init__(self, benchmark: str, device: torch.device, file: pathlib.Path | None) -> None:
        """For the benchmark of this name on this device."""
        self._file = file
        self._source = {
            "benchmark": benchmark,
            "device": device_words(device),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "fourtap": fourtap.__version__,
        }

    @property
    def heading(self) -> str:
        """The provenance of the records, for the printed heading."""
        source = self._source
        return f"{source['device']}, PyTorch {source['torch']}, Python {source['python']}, fourtap {source['fourtap']}"

    def write(self, **fields: Any) -> None:
        """Appends a record."""
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as lines:
            lines.write(json.dumps(self._source | fields | {"unix_time": int(time.time())}) + "\n")


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A context without garbage collection during timing."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def show_progress(text: str) -> None:
    """Shows a text on a terminal in place of the previous one; an empty text clears it."""
    if sys.stderr.isatty():
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints a table: text left-aligned, numbers right-aligned, a heading first; empty columns are left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    aligned = []
    for column in columns:
        width = max(map(len, column))
        is_number = any(cell[:1].isdigit() for cell in column[1:])
        aligned.append([cell.rjust(width) if is_number else cell.ljust(width) for cell in column])
    for row in zip(*aligned, strict=True):
        print("  ".join(row).rstrip())
