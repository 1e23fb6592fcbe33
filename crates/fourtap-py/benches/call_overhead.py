"""Times the host overhead of a call from Python, on the smallest workload that matters: RT-DETR's decoder.

Its kernel takes a few microseconds, so the overhead before the launch dominates. Host time is the time until a call
returns, with the launch queue never full; "loop" is the time per call in a long loop without a CUDA graph, whichever
of launch and kernel takes longer. Baselines of the same run are PyTorch's grid_sample composition, and the cheapest
PyTorch call, `relu_` of 16 numbers, which shows how fast this host launches at all. Every result is compared
with that composition in f64 before anything is timed. Without a GPU the same is measured on CPU tensors, where a call
returns when it has computed.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from measuring import (
    Records,
    Samples,
    device_named,
    device_seconds,
    grid_sample_attention,
    host_seconds,
    level_tensors,
    no_garbage_collection,
    print_table,
    relative_error,
    show_progress,
)
from torch import Tensor

import fourtap

LEVELS = [(80, 80), (40, 40), (20, 20)]
IMAGES, QUERIES, HEADS, CHANNELS, POINTS = 1, 300, 8, 32, 4
SIGMA = 4.0  # pixels that points are away from their query's reference point
ALLOWED_ERROR = 1e-5
HOST_CALLS, LOOP_CALLS = 100, 2000
# For calls that compute on the host, that many calls would take minutes.
MOST_SECONDS = 1.0


@dataclass
class Case:
    """One thing to time."""

    what: str
    levels: str
    call: Callable[[], Tensor]
    loop: bool = False
    gradients: bool = False
    expected: Tensor | None = None  # if not the attention
    calls: int = 0
    error: float = 0.0
    samples: Samples = field(default_factory=Samples)

    def seconds(self, device: torch.device, calls: int) -> float:
        """Seconds per call."""
        measure = device_seconds if self.loop else host_seconds
        with torch.set_grad_enabled(self.gradients):
            return measure(self.call, device, calls)


def make_inputs(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Value, locations and weights."""
    generator = torch.Generator().manual_seed(0)
    pixels = sum(height * width for height, width in LEVELS)
    shape = (IMAGES, QUERIES, HEADS, len(LEVELS), POINTS)
    value = torch.randn(IMAGES, pixels, HEADS, CHANNELS, generator=generator)
    sizes = torch.tensor([(width, height) for height, width in LEVELS])[:, None]
    references = torch.rand(IMAGES, QUERIES, 1, 1, 1, 2, generator=generator)
    locations = references + torch.randn(*shape, 2, generator=generator) * SIGMA / sizes
    weights = torch.randn(shape, generator=generator).flatten(3).softmax(-1).view(shape)
    return value.to(device), locations.to(device), weights.to(device)


def make_cases(value: Tensor, locations: Tensor, weights: Tensor) -> list[Case]:
    """Everything that is timed."""
    shapes, starts = level_tensors(LEVELS, value.device)
    leaves = [tensor.clone().requires_grad_() for tensor in (value, locations, weights)]

    # Two functions, since torch.compile would keep both results in one cache and search it on every call.
    def with_list(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return fourtap.ms_deform_attn(value, LEVELS, locations, weights)

    def with_tensors(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return fourtap.ms_deform_attn(value, shapes, locations, weights, level_start_index=starts)

    # The call itself, without a wrapper function.
    calls: list[tuple[str, Callable[[], Tensor], Callable[[], Tensor], Callable[..., Tensor]]] = [
        (
            "list",
            lambda: fourtap.ms_deform_attn(value, LEVELS, locations, weights),
            lambda: fourtap.ms_deform_attn(leaves[0], LEVELS, leaves[1], leaves[2]),
            with_list,
        ),
        (
            "tensors",
            lambda: fourtap.ms_deform_attn(value, shapes, locations, weights, level_start_index=starts),
            lambda: fourtap.ms_deform_attn(leaves[0], shapes, leaves[1], leaves[2], level_start_index=starts),
            with_tensors,
        ),
    ]
    cases = []
    for name, plain, differentiable, function in calls:
        compiled = torch.compile(function, fullgraph=True)
        cases += [
            Case("host, no gradient", name, plain),
            Case("host, with gradient", name, differentiable, gradients=True),
            # `compiled` is bound now, because the lambda runs after the loop.
            Case("host, compiled", name, lambda compiled=compiled: compiled(value, locations, weights)),
            Case("loop, no gradient", name, plain, loop=True),
        ]
    few = torch.arange(16.0, device=value.device)
    baselines = [
        Case("host, relu_ of 16 numbers", "-", lambda: few.relu_(), expected=few.clone()),
        Case("loop, grid_sample", "list", lambda: grid_sample_attention(value, LEVELS, locations, weights), loop=True),
    ]
    return [*cases, *baselines]


def verify(case: Case, expected: Tensor) -> bool:
    """Whether it computes the right thing. One that cannot be compiled here is left out; a wrong one ends the run."""
    try:
        with torch.set_grad_enabled(case.gradients):
            found = case.call()
    except Exception as error:
        if case.what != "host, compiled":
            raise
        reason = (str(error).splitlines() or [""])[0]
        print(f"left out: {case.what}, {case.levels}: {type(error).__name__}: {reason}", file=sys.stderr)
        return False
    case.error = relative_error(found, expected if case.expected is None else case.expected)
    if not case.error <= ALLOWED_ERROR:
        sys.exit(
            f"error: {case.what}, {case.levels}: off by {case.error:.1e} in the 2-norm, {ALLOWED_ERROR:.0e} allowed"
        )
    return True


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--repetitions", type=int, default=50, help="of each host time (default: 50); loops get a fifth"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="append JSON records to it, one per line")
    options = parser.parse_args()
    if options.repetitions < 1:
        parser.error("--repetitions: expected at least 1")

    device = device_named(options.device)
    inputs = make_inputs(device)
    value, locations, weights = (tensor.double() for tensor in inputs)
    expected = grid_sample_attention(value, LEVELS, locations, weights)
    cases = [case for case in make_cases(*inputs) if verify(case, expected)]

    for case in cases:
        show_progress(f"warming up: {case.what}, {case.levels}")
        most = LOOP_CALLS if case.loop else HOST_CALLS
        case.seconds(device, 3)
        case.calls = max(1, min(most, round(MOST_SECONDS / case.seconds(device, 3))))
    with no_garbage_collection():
        # Interleaved, so that other load on the machine affects all of them.
        for repetition in range(options.repetitions):
            show_progress(f"repetition {repetition + 1} of {options.repetitions}")
            for case in cases:
                if not case.loop or repetition % 5 == 0:
                    case.samples.seconds.append(case.seconds(device, case.calls))
    show_progress("")

    records = Records("call_overhead", device, options.json)
    print(f"rtdetr-decoder, f32, on {records.heading}")
    if device.type == "cpu":
        print("CPU tensors: a call returns when it has computed, so these are not times of launches")
    print("microseconds per call: median, and from the 10th to the 90th percentile\n")
    rows = [("what", "levels", "median", "from", "to", "calls", "times", "error")]
    for case in cases:
        records.write(
            what=case.what, levels=case.levels, calls=case.calls, verified=case.error, **case.samples.fields()
        )
        spread = (f"{seconds * 1e6:.2f}" for seconds in (case.samples.median, case.samples.low, case.samples.high))
        counts = (str(case.calls), str(len(case.samples.seconds)))
        rows.append((case.what, case.levels, *spread, *counts, f"{case.error:.0e}"))
    print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
