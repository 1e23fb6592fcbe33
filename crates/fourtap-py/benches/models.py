"""Times whole models of transformers as they come ("stock") and with `fourtap.compat.transformers.patch()`.

Models have their published sizes and random weights; nothing is downloaded. Inference is a forward pass, training a
forward and backward pass of the sum of all outputs' squares; in f32, and in bf16 or f16 by autocast.

- "eager": both take turns, call by call.
- "compiled": through `torch.compile`, one after the other, as patching makes it compile again.
- "graph": in CUDA graphs, which take turns. A model whose pass cannot be captured is left out, with the reason.

On a GPU a step also runs under PyTorch's profiler: "GPU ms" is what its kernels take together, and in brackets what
deformable attention takes of it, ours or grid_sample's forward and backward. In small models the GPU waits for the
host, and wall times say little.

Before anything is timed, outputs in f32 are compared; those of models that sort or threshold may be further apart.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Before transformers is imported: models are made from configurations.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from kernel_time import KernelTime, kernel_time
from measuring import (
    Records,
    Samples,
    device_named,
    device_seconds,
    no_garbage_collection,
    print_table,
    show_progress,
)
from torch import Tensor, nn

from fourtap.compat import transformers as compat

STOCK, FOURTAP = "stock", "fourtap"
DTYPES = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}
MODES = ("eager", "compiled", "graph")
PASSES = ("inference", "training")
# Of an output, in the 2-norm; the second for models whose masks are thresholds, or that choose the best proposals.
ALLOWED_ERROR, ALLOWED_OF_CHOICES = 1e-4, 5e-2
WARM_UP = 3
PROFILED_STEPS = 3

Inputs = dict[str, Tensor]


def deformable_detr(**options: Any) -> nn.Module:
    """With ResNet-50."""
    config = transformers.DeformableDetrConfig(
        backbone=None,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone_config=transformers.ResNetConfig(out_features=["stage2", "stage3", "stage4"]),
        **options,
    )
    return transformers.DeformableDetrForObjectDetection(config)


@dataclass(frozen=True)
class Family:
    """A model, and what it may get wrong."""

    make: Callable[[], nn.Module]
    has_choices: bool = False
    has_text: bool = False


FAMILIES = {
    "deformable-detr": Family(deformable_detr),
    "deformable-detr-two-stage": Family(
        lambda: deformable_detr(two_stage=True, with_box_refine=True), has_choices=True
    ),
    "rt-detr": Family(lambda: transformers.RTDetrForObjectDetection(transformers.RTDetrConfig()), has_choices=True),
    "rt-detr-v2": Family(
        lambda: transformers.RTDetrV2ForObjectDetection(transformers.RTDetrV2Config()), has_choices=True
    ),
    "d-fine": Family(lambda: transformers.DFineForObjectDetection(transformers.DFineConfig()), has_choices=True),
    "mask2former": Family(
        lambda: transformers.Mask2FormerForUniversalSegmentation(transformers.Mask2FormerConfig()), has_choices=True
    ),
    "grounding-dino": Family(
        lambda: transformers.GroundingDinoForObjectDetection(transformers.GroundingDinoConfig()),
        has_choices=True,
        has_text=True,
    ),
}


def inputs_of(family: Family, images: int, size: int, device: torch.device) -> Inputs:
    """Random images, and a few words where a model reads them."""
    generator = torch.Generator().manual_seed(1)
    inputs = {"pixel_values": torch.randn(images, 3, size, size, generator=generator)}
    if family.has_text:
        words = torch.tensor([[101, 4937, 1012, 3899, 1012, 102]]).repeat(images, 1)
        inputs |= {"input_ids": words, "attention_mask": torch.ones_like(words)}
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def numbers(found: Any) -> Iterator[Tensor]:
    """The floating-point tensors of a model's output, in order."""
    if isinstance(found, Tensor):
        if found.is_floating_point():
            yield found
    elif isinstance(found, dict):
        for part in found.values():
            yield from numbers(part)
    elif isinstance(found, (list, tuple)):
        for part in found:
            yield from numbers(part)


def difference(found: Any, expected: Any) -> float:
    """The largest relative error of an output in the 2-norm, of what is finite in both."""
    worst = 0.0
    for mine, theirs in zip(numbers(found), numbers(expected), strict=True):
        counts = mine.isfinite() & theirs.isfinite()
        apart = (mine - theirs)[counts].double().norm()
        worst = max(worst, (apart / theirs[counts].double().norm().clamp(min=1e-12)).item())
    return worst


def use(implementation: str) -> None:
    """Patches transformers, or not."""
    if implementation == FOURTAP:
        compat.patch()
    else:
        compat.unpatch()


@dataclass
class Step:
    """One pass of a model."""

    model: nn.Module
    inputs: Inputs
    dtype: torch.dtype | None
    trains: bool

    def __call__(self) -> Any:
        """Computes it."""
        device = next(iter(self.inputs.values())).device
        with torch.autocast(device.type, self.dtype, enabled=self.dtype is not None):
            if not self.trains:
                with torch.no_grad():
                    return self.model(**self.inputs)
            outputs = self.model(**self.inputs)
        loss = sum(part.float().nan_to_num(0, 0, 0).square().mean() for part in numbers(outputs) if part.requires_grad)
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        return loss


@dataclass
class Timing:
    """What was measured of an implementation."""

    samples: Samples = field(default_factory=Samples)
    peak_bytes: int = 0
    kernels: KernelTime | None = None  # on a GPU


def captured(step: Step) -> Callable[[], object]:
    """The pass as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def warm(run: Callable[[], object], device: torch.device) -> int:
    """Runs it a few times; returns the most bytes it had on a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP):
        run()
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def measure(step: Step, mode: str, device: torch.device, rounds: int) -> dict[str, Timing]:
    """Times both implementations in one mode."""
    timings = {STOCK: Timing(), FOURTAP: Timing()}
    runs: dict[str, Callable[[], object]] = {}
    with no_garbage_collection():
        for name, timing in timings.items():
            use(name)
            if mode == "compiled":
                torch._dynamo.reset()
                run = Step(torch.compile(step.model), step.inputs, step.dtype, step.trains)
            else:
                run = step
            runs[name] = captured(run) if mode == "graph" else run
            timing.peak_bytes = warm(runs[name], device)
            if mode == "compiled":
                timing.samples.seconds += [device_seconds(run, device) for _ in range(rounds)]
                timing.kernels = profiled(run, device)
        if mode != "compiled":
            for _ in range(rounds):
                for name, timing in timings.items():
                    use(name)
                    timing.samples.seconds.append(device_seconds(runs[name], device))
            for name, timing in timings.items():
                use(name)
                timing.kernels = profiled(runs[name], device)
    return timings


def profiled(run: Callable[[], object], device: torch.device) -> KernelTime | None:
    """The time of its kernels, on a GPU; after all timing, as the profiler slows the host down."""
    return kernel_time(run, PROFILED_STEPS) if device.type == "cuda" else None


def verified(family: Family, model: nn.Module, inputs: Inputs) -> float:
    """How far apart both are in f32; ends the benchmark if that is too far."""
    found = {}
    for name in (STOCK, FOURTAP):
        use(name)
        found[name] = Step(model, inputs, None, trains=False)()
    error = difference(found[FOURTAP], found[STOCK])
    allowed = ALLOWED_OF_CHOICES if family.has_choices else ALLOWED_ERROR
    if not error <= allowed:
        sys.exit(f"error: outputs are {error:.1e} apart, {allowed:.1e} allowed")
    return error


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--models", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="NAME")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["f32", "bf16"])
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["eager"])
    parser.add_argument("--images", nargs="+", type=int, default=[4])
    parser.add_argument("--size", type=int, default=640, help="height and width of the images")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="append JSON records to it, one per line")
    options = parser.parse_args()

    device = device_named(options.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    records = Records("models", device, options.json)
    heading = ["model", "images", "dtype", "pass", "mode", "stock ms", "fourtap ms", "speedup"]
    table = [[*heading, "stock GPU ms", "fourtap GPU ms", "peak GiB", "apart"]]
    for name, images in ((name, images) for name in options.models for images in options.images):
        family = FAMILIES[name]
        torch.manual_seed(0)
        model = family.make().to(device).eval()  # dropout would make both differ
        inputs = inputs_of(family, images, options.size, device)
        error = verified(family, model, inputs)
        for dtype, what, mode in (
            (dtype, what, mode) for dtype in options.dtypes for what in options.passes for mode in options.modes
        ):
            show_progress(f"{name}, images {images}, {dtype}, {what}, {mode}")
            try:
                step = Step(model, inputs, DTYPES[dtype], what == "training")
                timings = measure(step, mode, device, options.rounds)
            except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as reason:
                use(STOCK)
                print(
                    f"left out: {name}, images {images}, {dtype}, {what}, {mode}: {str(reason).splitlines()[0]}",
                    file=sys.stderr,
                )
                continue
            for implementation, timing in timings.items():
                records.write(
                    model=name,
                    images=images,
                    size=options.size,
                    dtype=dtype,
                    what=what,
                    mode=mode,
                    implementation=implementation,
                    transformers=transformers.__version__,
                    **timing.samples.fields(),
                    **(timing.kernels.fields() if timing.kernels else {}),
                    peak_bytes=timing.peak_bytes,
                    verified=error,
                )
            stock, ours = (timings[which].samples.median * 1e3 for which in (STOCK, FOURTAP))
            peaks = " to ".join(f"{timings[which].peak_bytes / 2**30:.1f}" for which in (STOCK, FOURTAP))
            peak = peaks if device.type == "cuda" else ""
            cells = [name, str(images), dtype, what, mode, f"{stock:.1f}", f"{ours:.1f}", f"{stock / ours:.2f}x"]
            kernels = [timing.kernels.words() if timing.kernels else "" for timing in timings.values()]
            table.append([*cells, *kernels, peak, f"{error:.0e}"])
        del model
    use(STOCK)
    show_progress("")

    print(f"models of transformers {transformers.__version__} on {records.heading}")
    print(f"images of {options.size} x {options.size}, medians of {options.rounds}\n")
    print_table(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
