"""Times deformable attention from the projections on, against the same with locations and weights computed first.

What lies between a module's linear layers, on the workloads of three models: value, offsets and logits are what those
layers put out (offsets and logits as slices of one matrix product), reference points are points for the encoder and
boxes for the decoders.

- "from projections": one call of `fourtap.ms_deform_attn_from_projections`.
- "in steps": sampling locations and the softmax in PyTorch, in float32, then `fourtap.ms_deform_attn`: what
  `fourtap.nn.MSDeformAttn` did before it had that operator.
- "in steps, compiled": the same through `torch.compile` (CUDA only).
- "operator alone": `fourtap.ms_deform_attn` on locations and weights that are there already.

On CUDA forward passes are timed in CUDA graphs, so that launching costs nothing; forward with backward as PyTorch runs
it; "backward" is the gradients' kernels alone, in a graph. All run in turns. Before anything is timed, results and
gradients of all ways are compared with a composition in f64.
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
    no_garbage_collection,
    print_table,
    relative_error,
    show_progress,
)
from torch import Tensor

import fourtap
from fourtap import _native

ENCODER = [(100, 167), (50, 84), (25, 42), (13, 21)]
SIGMA = 2.0  # of offsets, in pixels around points and in parts of boxes
ALLOWED = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-5}
# A point that rounding moves into the neighbouring pixel gets another gradient.
ALLOWED_GRADIENT = 5e-3
GRAPH_CALLS = 20


@dataclass
class Workload:
    """The sizes of a model's attention."""

    name: str
    images: int
    levels: list[tuple[int, int]]
    queries: int | None  # None: every pixel
    dtype: torch.dtype
    boxes: bool
    heads: int = 8
    channels: int = 32
    points: int = 4


CUDA = [
    Workload("detr-encoder", 4, ENCODER, None, torch.bfloat16, False),
    Workload("detr-encoder", 4, ENCODER, None, torch.float32, False),
    Workload("dino-decoder", 4, ENCODER, 900, torch.float16, True),
    Workload("rtdetr-decoder", 1, [(80, 80), (40, 40), (20, 20)], 300, torch.float16, True),
]
CPU = [
    Workload("detr-encoder", 1, ENCODER, None, torch.float32, False),
    Workload("rtdetr-decoder", 1, [(80, 80), (40, 40), (20, 20)], 300, torch.float32, True),
]


class Inputs:
    """What linear layers put out, and reference points."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        """Random, the same every time."""
        generator = torch.Generator().manual_seed(0)
        pixels = sum(height * width for height, width in workload.levels)
        images, heads, levels = workload.images, workload.heads, len(workload.levels)
        queries = workload.queries or pixels
        samples = levels * workload.points
        self.levels = workload.levels
        self.points = workload.points
        self.value = torch.randn(images, pixels, heads, workload.channels, generator=generator)
        self.value = self.value.to(device, workload.dtype)
        both = torch.randn(images, queries, heads * samples * 3, generator=generator)
        both[..., : heads * samples * 2] *= SIGMA
        both = both.to(device, workload.dtype)
        self.offsets = both[..., : heads * samples * 2].unflatten(-1, (heads, samples, 2))
        self.logits = both[..., heads * samples * 2 :].unflatten(-1, (heads, samples))
        if workload.queries is None:
            centres = [
                torch.cartesian_prod((torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width).flip(
                    -1
                )
                for height, width in workload.levels
            ]
            references = torch.cat(centres)[None, :, None].expand(images, queries, levels, 2)
            # Off the centres, as padded images have them: offsets of 16 bits would put one point in 64 on the border of
            # two cells, where the gradient jumps.
            cell = torch.cat(
                [torch.tensor([1 / width, 1 / height]).expand(height * width, 2) for height, width in workload.levels]
            )
            references = (
                references + (torch.rand(images, queries, levels, 2, generator=generator) - 0.5) * cell[:, None]
            )
        else:
            references = torch.rand(images, queries, 1, 4 if workload.boxes else 2, generator=generator)
            references[..., 2:] *= 0.4
        self.references = references.to(device)
        self.sizes = torch.tensor([(width, height) for height, width in workload.levels], device=device)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Those that get gradients."""
        return self.value, self.offsets, self.logits


def locations_and_weights(inputs: Inputs, offsets: Tensor, logits: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As Deformable DETR computes them."""
    shape = (len(inputs.levels), inputs.points)
    offsets = offsets.to(dtype).unflatten(3, shape)
    references = inputs.references.to(dtype)[:, :, None, :, None]
    if references.shape[-1] == 2:
        locations = references + offsets / inputs.sizes.to(dtype)[:, None]
    else:
        locations = references[..., :2] + offsets * references[..., 2:] * (0.5 / inputs.points)
    return locations, logits.softmax(-1, dtype=dtype).unflatten(3, shape)


def in_steps(inputs: Inputs, value: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
    """Locations and softmax in PyTorch, then the operator."""
    return fourtap.ms_deform_attn(value, inputs.levels, *locations_and_weights(inputs, offsets, logits, torch.float32))


def from_projections(inputs: Inputs, value: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
    """All of it in the operator."""
    return fourtap.ms_deform_attn_from_projections(value, inputs.levels, inputs.references, offsets, logits)


Way = Callable[[Inputs, Tensor, Tensor, Tensor], Tensor]


def with_gradients(way: Way, inputs: Inputs, dtype: torch.dtype | None = None) -> list[Tensor]:
    """The result, and the gradients of value, offsets and logits for a gradient of ones and minus ones."""
    tensors = [tensor.detach().to(dtype or tensor.dtype).requires_grad_() for tensor in inputs.tensors()]
    result = way(inputs, *tensors)
    signs = torch.arange(result.numel(), device=result.device).view_as(result) % 3 - 1
    return [result, *torch.autograd.grad(result, tensors, signs.to(result.dtype))]


def verify(ways: dict[str, Way], inputs: Inputs, dtype: torch.dtype) -> dict[str, float]:
    """Largest error of each way's results; exits where one is too large."""

    def composed(inputs: Inputs, value: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        return grid_sample_attention(
            value, inputs.levels, *locations_and_weights(inputs, offsets, logits, torch.float64)
        )

    expected = with_gradients(composed, inputs, torch.float64)
    errors = {}
    for name, way in ways.items():
        found = [relative_error(one, other) for one, other in zip(with_gradients(way, inputs), expected, strict=True)]
        allowed = [ALLOWED[dtype]] + [max(ALLOWED[dtype], ALLOWED_GRADIENT)] * 3
        if not all(error <= most for error, most in zip(found, allowed, strict=True)):
            sys.exit(f"error: {name}, {dtype}: off by {found} in the 2-norm, {allowed} allowed")
        errors[name] = max(found)
    return errors


@dataclass
class Timed:
    """One thing to time, in several ways."""

    what: str
    calls: dict[str, Callable[[], object]]
    each: int = 1  # times that a call does it
    samples: dict[str, Samples] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)


def in_graph(call: Callable[[], object]) -> Callable[[], object]:
    """The call, so many times, as one graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            call()
    return graph.replay


def without_gradients(call: Callable[[], object]) -> Callable[[], object]:
    """The call where autograd records nothing."""

    def plain() -> object:
        with torch.no_grad():
            return call()

    return plain


def things_to_time(inputs: Inputs, ways: dict[str, Way], device: torch.device) -> list[Timed]:
    """Forward, backward, and both."""
    forward = {name: without_gradients(lambda way=way: way(inputs, *inputs.tensors())) for name, way in ways.items()}
    given = locations_and_weights(inputs, inputs.offsets, inputs.logits, torch.float32)
    given = tuple(tensor.contiguous() for tensor in given)
    forward["operator alone"] = without_gradients(lambda: fourtap.ms_deform_attn(inputs.value, inputs.levels, *given))
    both = {name: lambda way=way: with_gradients(way, inputs) for name, way in ways.items()}
    if device.type != "cuda":
        return [Timed("forward", forward), Timed("forward + backward", both)]
    grad_out = torch.randn_like(from_projections(inputs, *inputs.tensors()))
    operands = (*inputs.tensors()[:1], inputs.levels, None, inputs.references, *inputs.tensors()[1:], None)
    settings = (None, False, None, False)
    backward = {
        "from projections": lambda: _native.torch_projected_backward(
            grad_out, (*operands, settings), False, (True, False, True, True)
        ),
        "operator alone": lambda: _native.torch_backward(
            grad_out, inputs.value, inputs.levels, None, *given, False, (True, True, True)
        ),
    }
    return [
        Timed("forward", {name: in_graph(call) for name, call in forward.items()}, GRAPH_CALLS),
        Timed("backward", {name: in_graph(call) for name, call in backward.items()}, GRAPH_CALLS),
        Timed("forward + backward", both),
    ]


def measure(timed: Timed, device: torch.device, repetitions: int) -> None:
    """All in turns, after a first call of each that warms up and shows its memory."""
    for name, call in timed.calls.items():
        call()
        timed.samples[name] = Samples()
        if device.type == "cuda" and timed.each == 1:
            torch.cuda.reset_peak_memory_stats(device)
            call()
            timed.peak_bytes[name] = torch.cuda.max_memory_allocated(device)
    with no_garbage_collection():
        for _ in range(repetitions):
            for name, call in timed.calls.items():
                timed.samples[name].seconds.append(device_seconds(call, device) / timed.each)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--repetitions", type=int, help="turns each way gets (default: 20 on CUDA, 5 on the CPU)")
    parser.add_argument("--quick", action="store_true", help="two repetitions, only the smallest workload")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="append JSON records to it, one per line")
    options = parser.parse_args()
    device = device_named(options.device)
    on_cuda = device.type == "cuda"
    repetitions = 2 if options.quick else options.repetitions or (20 if on_cuda else 5)
    workloads = CUDA if on_cuda else CPU
    records = Records("projections", device, options.json)
    rows = [("workload", "dtype", "what", "way", "microseconds", "ratio", "peak memory, MiB", "error")]
    for workload in workloads[-1:] if options.quick else workloads:
        dtype = str(workload.dtype).removeprefix("torch.")
        show_progress(f"{workload.name}, {dtype}")
        inputs = Inputs(workload, device)
        ways: dict[str, Way] = {"from projections": from_projections, "in steps": in_steps}
        if on_cuda:
            ways["in steps, compiled"] = torch.compile(in_steps, dynamic=False)
        errors = verify(ways, inputs, workload.dtype)
        for timed in things_to_time(inputs, ways, device):
            measure(timed, device, repetitions)
            first = timed.samples["from projections"].median
            for name, samples in timed.samples.items():
                records.write(
                    workload=workload.name,
                    what=timed.what,
                    implementation=name,
                    dtype=dtype,
                    images=workload.images,
                    queries=inputs.offsets.shape[1],
                    level_sizes=workload.levels,
                    in_graph=timed.each > 1,
                    **samples.fields(),
                    peak_bytes=timed.peak_bytes.get(name),
                    verified=errors.get(name),
                )
                peak = timed.peak_bytes.get(name)
                rows.append(
                    (
                        workload.name,
                        dtype,
                        timed.what,
                        name,
                        f"{samples.median * 1e6:.1f}",
                        f"{samples.median / first:.2f}x",
                        f"{peak / 2**20:.0f}" if peak else "",
                        f"{errors[name]:.0e}" if name in errors else "",
                    )
                )
    show_progress("")
    print(f"Deformable attention from projections, on {records.heading}")
    print(f"medians of {repetitions}; ratio: to the operator from projections\n")
    print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
