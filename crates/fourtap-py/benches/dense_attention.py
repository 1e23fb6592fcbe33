"""Times `fourtap.scaled_dot_product_attention` and PyTorch's with each of its backends forced, all in one run.

On CUDA every contender is captured into a graph of several calls and the graphs are replayed in turns, so that all run
at the same clocks. Every row of a graph's result is compared with attention in f64 before it is timed; a wrong or
unavailable contender is not timed. TFLOP/s count two products of 2 FLOP for each key and channel, half of them
where a causal mask hides half. Heads of queries that share heads of keys are written H32/8. Without a GPU the same is
measured on CPU tensors, without graphs and with smaller shapes.

Masks are those of models: groups that do not see each other beside keys that all see (denoising in DINO's decoder), a
bias for each head (Swin), any keys (Mask2Former), padding at the end of a sequence (ViT).
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from measuring import (
    Records,
    Samples,
    device_named,
    device_seconds,
    no_garbage_collection,
    print_table,
    show_progress,
)
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import fourtap

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
# Relative error in the 2-norm of the worst row.
ALLOWED_ERROR = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 2e-5}
BACKENDS = {
    "FLASH": SDPBackend.FLASH_ATTENTION,
    "CUDNN": SDPBackend.CUDNN_ATTENTION,
    "EFFICIENT": SDPBackend.EFFICIENT_ATTENTION,
    "MATH": SDPBackend.MATH,
}
BACKENDS_OF_THE_CPU = ("FLASH", "MATH")
FOURTAP, BASELINE = "fourtap", "FLASH"
# The approximate time of a replay with a good kernel: long enough that the cost of starting it, and the clocks that the
# contender before it has left behind, hardly matter.
REPLAY_SECONDS, MOST_CALLS = 1e-2, 100
GOOD_FLOP_PER_SECOND = {"f16": 4e14, "bf16": 4e14, "f32": 1e14}
REFERENCE_BYTES = 1 << 30  # of f64 logits at a time

Operands = tuple[Tensor, Tensor, Tensor, Tensor | None]


@dataclass(frozen=True)
class Shape:
    """What is computed: self-attention of this size, unless there is another number of keys."""

    batch: int
    heads: int
    positions: int
    channels: int
    dtype: str
    causal: bool = False
    mask: Literal["groups", "bias", "any", "padding"] | None = None
    other_keys: int | None = None
    key_heads: int | None = None  # if several heads of queries share one of keys

    @property
    def keys(self) -> int:
        """Positions of keys and values."""
        return self.other_keys or self.positions

    @property
    def name(self) -> str:
        """As people write it."""
        keys = f" Sk{self.other_keys}" if self.other_keys else ""
        mask = " causal" if self.causal else f" {self.mask}" if self.mask else ""
        heads = f"H{self.heads}/{self.key_heads}" if self.key_heads else f"H{self.heads}"
        return f"B{self.batch} {heads} S{self.positions}{keys} D{self.channels} {self.dtype}{mask}"

    @property
    def flop(self) -> float:
        """Of both products."""
        all_of_it = 4.0 * self.batch * self.heads * self.positions * self.keys * self.channels
        return all_of_it / 2 if self.causal else all_of_it

    def operands(self, device: torch.device) -> Operands:
        """Random queries, keys, values, and the mask, if there is one."""
        generator = torch.Generator(device).manual_seed(0)

        def random(heads: int, positions: int) -> Tensor:
            size = (self.batch, heads, positions, self.channels)
            return torch.randn(size, generator=generator, device=device).to(DTYPES[self.dtype])

        key_heads = self.key_heads or self.heads
        tensors = random(self.heads, self.positions), random(key_heads, self.keys), random(key_heads, self.keys)
        return *tensors, self._attn_mask(generator, device)

    def _attn_mask(self, generator: torch.Generator, device: torch.device) -> Tensor | None:
        if self.mask == "groups":
            # Ten groups of twenty, which see themselves and the queries after them.
            place = torch.arange(self.positions, device=device)
            group = torch.where(place < 200, place // 20, 10)
            return (group[:, None] == group) | (group == 10)
        if self.mask == "bias":
            size = (1, self.heads, self.positions, self.keys)
            return torch.randn(size, generator=generator, device=device).to(DTYPES[self.dtype])
        if self.mask == "any":
            size = (self.batch, self.heads, self.positions, self.keys)
            return torch.rand(size, generator=generator, device=device) < 0.3
        if self.mask == "padding":
            ends = torch.linspace(self.keys, self.keys * 0.6, self.batch, device=device)
            return (torch.arange(self.keys, device=device) < ends[:, None])[:, None, None]
        return None


def both_masks(*size: int, dtype: str) -> list[Shape]:
    """Without and with a causal mask."""
    return [Shape(*size, dtype), Shape(*size, dtype, causal=True)]  # type: ignore[misc]


SHAPES = {
    "cuda": [
        Shape(1, 8, 512, 64, "f16"),
        Shape(1, 8, 1024, 64, "f16"),
        *both_masks(4, 16, 2048, 64, dtype="f16"),
        *both_masks(4, 16, 8192, 64, dtype="f16"),
        *both_masks(4, 16, 2048, 128, dtype="bf16"),
        *both_masks(2, 16, 8192, 128, dtype="bf16"),
        *both_masks(1, 16, 16384, 128, dtype="bf16"),
        *both_masks(2, 8, 8192, 256, dtype="f16"),
        Shape(8, 12, 1370, 64, "bf16"),
        Shape(4, 16, 4097, 64, "bf16"),
        Shape(64, 32, 1, 128, "bf16", other_keys=8192, key_heads=8),
        Shape(4, 8, 1100, 32, "f16", mask="groups"),
        Shape(2048, 4, 49, 32, "f16", mask="bias"),
        Shape(512, 4, 144, 32, "f16", mask="bias"),
        Shape(4, 8, 100, 32, "f16", mask="any", other_keys=10000),
        Shape(8, 12, 1370, 64, "bf16", mask="padding"),
        Shape(8, 12, 1370, 64, "bf16", mask="bias"),
        Shape(4, 16, 2048, 64, "f32"),
        Shape(4, 8, 1100, 32, "f32", mask="groups"),
        Shape(2048, 4, 49, 32, "f32", mask="bias"),
        Shape(512, 4, 144, 32, "f32", mask="bias"),
        Shape(4, 8, 100, 32, "f32", mask="any", other_keys=10000),
        Shape(8, 12, 1370, 64, "f32", mask="padding"),
    ],
    "cpu": [
        *both_masks(1, 8, 512, 64, dtype="f32"),
        *both_masks(1, 8, 1024, 64, dtype="f32"),
        *both_masks(1, 4, 2048, 128, dtype="f32"),
        *both_masks(1, 8, 1024, 64, dtype="bf16"),
        *(
            shape
            for dtype in ("f32", "bf16")
            for shape in (
                Shape(1, 8, 1100, 32, dtype, mask="groups"),
                Shape(512, 4, 49, 32, dtype, mask="bias"),
                Shape(128, 4, 144, 32, dtype, mask="bias"),
                Shape(1, 8, 100, 32, dtype, mask="any", other_keys=10000),
                Shape(2, 12, 1370, 64, dtype, mask="padding"),
            )
        ),
    ],
}


def attention_in_f64(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """The reference, as plainly as it can be written, some rows at a time."""
    batch, heads, positions, channels = query.shape
    query, key, value = query.double() * channels**-0.5, key.double(), value.double()
    key, value = (tensor.repeat_interleave(heads // tensor.shape[1], dim=1) for tensor in (key, value))
    result = torch.empty_like(query)
    rows = max(1, REFERENCE_BYTES // (8 * heads * key.shape[2]))
    columns = torch.arange(key.shape[2], device=query.device)
    whole = None if mask is None else mask.expand(batch, heads, positions, key.shape[2])
    for sequence in range(batch):
        for first in range(0, positions, rows):
            part = slice(first, first + rows)
            logits = query[sequence, :, part] @ key[sequence].transpose(-2, -1)
            if causal:
                logits.masked_fill_(columns > columns[part, None], -torch.inf)
            if whole is not None and whole.dtype is torch.bool:
                logits.masked_fill_(~whole[sequence, :, part], -torch.inf)
            elif whole is not None:
                logits += whole[sequence, :, part].double()
            result[sequence, :, part] = logits.softmax(-1) @ value[sequence]
    return result


def worst_row(found: Tensor, expected: Tensor) -> float:
    """By how much the row that is furthest off is off, relative in its 2-norm; NaN if anything is not a number."""
    return ((found.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


@dataclass
class Contender:
    """One way to compute a shape, ready to be timed."""

    name: str
    run: Callable[[], object]
    error: float
    samples: Samples = field(default_factory=Samples)


def call_of(name: str, operands: Operands, causal: bool) -> Callable[[], Tensor]:
    """What the contender of this name does."""
    shares_keys = operands[0].shape[1] != operands[1].shape[1]
    if name == FOURTAP:
        return lambda: fourtap.scaled_dot_product_attention(*operands, is_causal=causal, enable_gqa=shares_keys)

    def forced() -> Tensor:
        with sdpa_kernel(BACKENDS[name]):
            return scaled_dot_product_attention(*operands, is_causal=causal, enable_gqa=shares_keys)

    return forced


def ready(call: Callable[[], Tensor], calls: int, device: torch.device) -> tuple[Callable[[], object], Tensor]:
    """So many calls to be timed as one, and what they computed."""
    if device.type != "cuda":
        torch.full_like(call(), torch.nan)  # so that memory which is used again holds nothing right
        return call, call()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            result = call()
    result.fill_(torch.nan)
    graph.replay()
    return graph.replay, result


def contenders(shape: Shape, operands: Operands, calls: int) -> list[Contender]:
    """Those that compute the right thing. If fourtap does not, the run ends."""
    device = operands[0].device
    expected = attention_in_f64(*operands, shape.causal)
    found = []
    backends = BACKENDS if device.type == "cuda" else BACKENDS_OF_THE_CPU
    for name in (FOURTAP, *backends):
        show_progress(f"verifying: {shape.name}, {name}")
        failed: Exception | None = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what backends say of why they are not there
                run, result = ready(call_of(name, operands, shape.causal), calls, device)
            error = worst_row(result, expected)
        except (RuntimeError, fourtap.Error) as failure:  # out of memory, too
            failed, problem = failure, str(failure).splitlines()[0]
        else:
            if error <= ALLOWED_ERROR[shape.dtype]:
                found.append(Contender(name, run, error))
                continue
            problem = f"a row is off by {error:.1e} in the 2-norm, {ALLOWED_ERROR[shape.dtype]:.1e} allowed"
        if name == FOURTAP and not isinstance(failed, fourtap.UnsupportedError):
            sys.exit(f"error: {shape.name}, {name}: {problem}")
        print(f"left out: {shape.name}, {name}: {problem}", file=sys.stderr)
    return found


def measure(shape: Shape, device: torch.device, rounds: int, calls: int) -> list[Contender]:
    """Times all contenders in turns, each round in another order, so that none always follows the same one."""
    found = contenders(shape, shape.operands(device), calls)
    order = random.Random(0)
    with no_garbage_collection():
        for contender in found:
            contender.run()
        for turn in range(rounds):
            show_progress(f"{shape.name}: round {turn + 1} of {rounds}")
            for contender in order.sample(found, len(found)):
                contender.samples.seconds.append(device_seconds(contender.run, device) / calls)
    return found


def report(shape: Shape, found: list[Contender], calls: int, records: Records) -> tuple[list[str], dict[str, float]]:
    """Writes the records; returns a row of the table and fourtap's speedup over each rival."""
    medians = {contender.name: contender.samples.median for contender in found}
    for contender in found:
        records.write(
            what="forward",
            implementation=contender.name,
            batch=shape.batch,
            heads=shape.heads,
            positions=shape.positions,
            channels=shape.channels,
            dtype=shape.dtype,
            causal=shape.causal,
            keys=shape.keys,
            key_heads=shape.key_heads or shape.heads,
            mask=shape.mask,
            calls=calls,
            **contender.samples.fields(),
            tflops=shape.flop / contender.samples.median / 1e12,
            verified=contender.error,
        )
    times = [f"{medians[name] * 1e6:.1f}" if name in medians else "" for name in (FOURTAP, *BACKENDS)]
    if FOURTAP not in medians:
        return [shape.name, *times, *("-" * 6)], {}
    speeds = [f"{shape.flop / medians[name] / 1e12:.3g}" if name in medians else "-" for name in (FOURTAP, BASELINE)]
    times_as_fast = {name: median / medians[FOURTAP] for name, median in medians.items() if name != FOURTAP}
    shown = (times_as_fast.get(BASELINE), times_as_fast.get("CUDNN"), min(times_as_fast.values(), default=None))
    ratios = [f"{one:.2f}x" if one else "-" for one in shown]
    return [shape.name, *times, *speeds, *ratios, f"{found[0].error:.0e}"], times_as_fast


def summary(ratios: list[dict[str, float]]) -> Iterator[str]:
    """Beside each rival, of the shapes that both can compute."""
    for name in BACKENDS:
        both = [of_shape[name] for of_shape in ratios if name in of_shape]
        if both:
            faster = sum(ratio >= 1 for ratio in both)
            yield f"at least as fast as {name} at {faster} of the {len(both)} shapes that both compute"


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--rounds", type=int, help="turns each contender gets (default: 50 on CUDA, 10 on the CPU)")
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--only", default="", metavar="TEXT", help="shapes whose name contains this, like S512")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="append JSON records to it, one per line")
    options = parser.parse_args()

    device = device_named(options.device)
    # f32 is f32 for all: PyTorch's products have TF32 off.
    torch.backends.cuda.matmul.allow_tf32 = False
    on_cuda = device.type == "cuda"
    rounds = 3 if options.quick else options.rounds or (50 if on_cuda else 10)
    shapes = [shape for shape in SHAPES[device.type] if options.only in shape.name]
    if rounds < 1 or not shapes:
        parser.error("--rounds: expected at least 1" if rounds < 1 else f"--only: no shape is named {options.only!r}")

    records = Records("dense_attention", device, options.json)
    heading = ["shape", *(f"{name} us" for name in (FOURTAP, *BACKENDS))]
    rows = [[*heading, f"{FOURTAP} TFLOP/s", f"{BASELINE} TFLOP/s", f"x {BASELINE}", "x CUDNN", "x best", "error"]]
    ratios = []
    for shape in shapes:
        calls = (
            max(1, min(MOST_CALLS, round(REPLAY_SECONDS * GOOD_FLOP_PER_SECOND[shape.dtype] / shape.flop)))
            if on_cuda
            else 1
        )
        row, of_shape = report(shape, measure(shape, device, rounds, calls), calls, records)
        rows.append(row)
        ratios.append(of_shape)
        if on_cuda:
            torch.cuda.empty_cache()  # graphs have memory of their own
    show_progress("")

    print(f"scaled_dot_product_attention on {records.heading}")
    print(f"medians of {rounds} rounds{', in CUDA graphs' if on_cuda else ''}; x: speedup of fourtap\n")
    print_table(rows)
    print()
    for line in summary(ratios):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
