"""Times one encoder layer of Deformable DETR in transformers, unpatched and with fourtap.

The layer has its published size, random weights, and the levels of an 800 x 1333 image. Both run in turns on the same
tensors. Before anything is timed, output and all gradients are compared with those of the layer as it comes, in f32;
under autocast fourtap's may be at most twice as far from them as those of the layer as it comes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Before transformers is imported: the layer is made from a configuration, and nothing must be downloaded.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from measuring import (
    Records,
    Samples,
    device_named,
    device_seconds,
    level_tensors,
    mark,
    no_garbage_collection,
    print_table,
    relative_error,
    seconds_between,
    show_progress,
)
from torch import Tensor, nn
from transformers.models.deformable_detr import modeling_deformable_detr as modeling

import fourtap.nn
from fourtap.compat import transformers as compat

LEVELS = [(100, 167), (50, 84), (25, 42), (13, 21)]
CHANNELS = 256
SIGMA = 4.0  # pixels that points are away from where they would be in an untrained layer
DTYPES = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}
IMPLEMENTATIONS = ("stock", "fourtap")
ALLOWED_ERROR = 1e-5
# Rounding alone moves a few points into the neighbouring pixel, and a few activations across the kink of the ReLU,
# where the gradient jumps: about 1e-4 in a norm over all of them.
ALLOWED_GRADIENT_ERROR = 5e-3
ALLOWED_TIMES_STOCK = 2.0

Errors = dict[str, dict[str, float]]  # of each implementation and tensor, in the 2-norm, relative


class Layer:
    """The layer with all it needs to run."""

    def __init__(self, images: int, device: torch.device) -> None:
        """With random weights and inputs."""
        torch.manual_seed(0)
        config = transformers.DeformableDetrConfig(
            use_timm_backbone=False,
            backbone_config=transformers.ResNetConfig(out_features=["stage2", "stage3", "stage4"]),
            d_model=CHANNELS,
            num_feature_levels=len(LEVELS),
            encoder_layers=1,
            encoder_attention_heads=8,
            encoder_n_points=4,
            encoder_ffn_dim=1024,
            dropout=0.0,  # or no two runs could be compared
        )
        # Through the encoder, which initialises the layer's parameters like those of a model.
        encoder = modeling.DeformableDetrEncoder(config)
        self.module: nn.Module = encoder.layers[0]
        with torch.no_grad():
            # In an untrained layer all offsets are whole pixels, unlike in a trained one: every point would lie on the
            # border of two cells, where the gradient of its location depends on rounding.
            nn.init.normal_(self.module.self_attn.sampling_offsets.weight, std=SIGMA / CHANNELS**0.5)
            nn.init.normal_(self.module.self_attn.attention_weights.weight, std=1 / CHANNELS**0.5)
        self.module.to(device)
        self.device = device
        pixels = sum(height * width for height, width in LEVELS)
        self.hidden_states = torch.randn(images, pixels, CHANNELS).to(device).requires_grad_()
        self.grad_out = torch.randn(images, pixels, CHANNELS).to(device)
        shapes, starts = level_tensors(LEVELS, device)
        valid_ratios = torch.ones(images, len(LEVELS), 2, device=device)
        # Positional, since some of their names differ between versions of transformers.
        self._arguments = (
            torch.ones(images, pixels, dtype=torch.bool, device=device),  # attention mask
            torch.randn(1, pixels, CHANNELS).to(device).expand(images, -1, -1),  # position embeddings
            modeling.DeformableDetrEncoder.get_reference_points(tuple(LEVELS), valid_ratios, device),
            shapes,
            LEVELS,
            starts,
        )

    def forward(self, dtype: str) -> Tensor:
        """The layer's output."""
        with torch.autocast(self.device.type, dtype=DTYPES[dtype], enabled=DTYPES[dtype] is not None):
            output = self.module(self.hidden_states, *self._arguments)
        return output[0] if isinstance(output, tuple) else output

    def inference(self, dtype: str) -> Tensor:
        """Without gradients."""
        self.module.eval()
        with torch.no_grad():
            return self.forward(dtype)

    def forget_gradients(self) -> None:
        """Frees them, too."""
        self.module.zero_grad(set_to_none=True)
        self.hidden_states.grad = None

    def training(self, dtype: str) -> dict[str, Tensor]:
        """Output and all gradients."""
        self.module.train()
        self.forget_gradients()
        output = self.forward(dtype)
        output.backward(self.grad_out.to(output.dtype))
        gradients = {name: parameter.grad for name, parameter in self.module.named_parameters()}
        return {"output": output.detach(), "hidden_states": self.hidden_states.grad, **gradients}


@contextlib.contextmanager
def implementation(name: str) -> Iterator[None]:
    """A context in which transformers uses this implementation."""
    if name == "fourtap":
        replaced = compat.patch()
        expected = f"{modeling.__name__}.MultiScaleDeformableAttention"
        if expected not in replaced:
            sys.exit(f"error: patch() did not replace {expected}")
    try:
        yield
    finally:
        compat.unpatch()


def verify(layer: Layer, dtypes: list[str]) -> dict[str, Errors]:
    """Errors of both relative to the reference, in each dtype; exits if fourtap exceeds the tolerance."""
    with implementation("stock"):
        reference = layer.training("f32")
    reference["output without gradients"] = reference["output"]
    errors: dict[str, Errors] = {}
    for dtype in dtypes:
        found: Errors = {}
        for name in IMPLEMENTATIONS:
            show_progress(f"verifying: {name}, {dtype}")
            with implementation(name):
                results = layer.training(dtype) | {"output without gradients": layer.inference(dtype)}
            found[name] = {tensor: relative_error(result, reference[tensor]) for tensor, result in results.items()}
        for tensor, error in found["fourtap"].items():
            allowed = ALLOWED_ERROR if tensor.startswith("output") else ALLOWED_GRADIENT_ERROR
            allowed = max(allowed, ALLOWED_TIMES_STOCK * found["stock"][tensor])
            if not error <= allowed:
                sys.exit(f"error: {dtype}, {tensor}: off by {error:.1e} in the 2-norm, {allowed:.1e} allowed")
        errors[dtype] = found
    return errors


@dataclass
class Case:
    """One thing to time, for both implementations."""

    what: str
    dtype: str
    call: Callable[[], object]
    samples: dict[str, Samples] = field(default_factory=lambda: {name: Samples() for name in IMPLEMENTATIONS})
    peak_bytes: dict[str, int] = field(default_factory=dict)
    operator_share: dict[str, float] = field(default_factory=dict)


def measure(case: Case, layer: Layer, repetitions: int, calls: int) -> None:
    """Times both in turns, after a first call of each that warms up and shows its cost."""
    for name in IMPLEMENTATIONS:
        with implementation(name):
            case.call()
            layer.forget_gradients()
            if layer.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(layer.device)
                case.call()
                case.peak_bytes[name] = torch.cuda.max_memory_allocated(layer.device)
            if case.what == "forward":
                case.operator_share[name] = operator_share(name, case.call, layer, calls)
    with no_garbage_collection():
        for repetition in range(repetitions):
            show_progress(f"{case.what}, {case.dtype}: repetition {repetition + 1} of {repetitions}")
            for name in IMPLEMENTATIONS:
                with implementation(name):
                    case.samples[name].seconds.append(device_seconds(case.call, layer.device, calls))


def operator_share(name: str, call: Callable[[], object], layer: Layer, calls: int) -> float:
    """Which part of the forward pass is the attention operator itself; fourtap's takes the projections as they are."""
    marks: list[Any] = []
    from_projections = fourtap.nn.from_projections

    def marked(*arguments: Any) -> Tensor:
        marks.append(mark(layer.device))
        result = from_projections(*arguments)
        marks.append(mark(layer.device))
        return result

    hooks = []
    if name == "fourtap":
        fourtap.nn.from_projections = marked
    else:
        operator = layer.module.self_attn.attn
        hooks.append(operator.register_forward_pre_hook(lambda *_: marks.append(mark(layer.device))))
        hooks.append(operator.register_forward_hook(lambda *_: marks.append(mark(layer.device))))
    total = device_seconds(call, layer.device, calls) * calls
    fourtap.nn.from_projections = from_projections
    for hook in hooks:
        hook.remove()
    return sum(seconds_between(*pair) for pair in zip(marks[::2], marks[1::2], strict=True)) / total


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--images", type=int, help="in a batch (default: 4 on CUDA, 1 on the CPU)")
    parser.add_argument("--repetitions", type=int, help="turns each side gets (default: 20 on CUDA, 5 on the CPU)")
    parser.add_argument("--quick", action="store_true", help="two repetitions")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="append JSON records to it, one per line")
    options = parser.parse_args()

    device = device_named(options.device)
    on_cuda = device.type == "cuda"
    images = options.images or (4 if on_cuda else 1)
    repetitions = 2 if options.quick else options.repetitions or (20 if on_cuda else 5)
    dtypes = list(DTYPES) if on_cuda else ["f32"]
    # On CUDA several calls between two events, so that the time until the first kernel starts hardly matters.
    calls = 10 if on_cuda else 1

    layer = Layer(images, device)
    errors = verify(layer, dtypes)
    cases = [
        case
        for dtype in dtypes
        for case in (
            Case("forward", dtype, lambda dtype=dtype: layer.inference(dtype)),
            Case("forward + backward", dtype, lambda dtype=dtype: layer.training(dtype)),
        )
    ]
    records = Records("encoder_layer", device, options.json)
    rows = [("what", "dtype", *IMPLEMENTATIONS, "ratio", "operator's share", "peak memory, MiB", "error")]
    for case in cases:
        measure(case, layer, repetitions, calls)
        for name in IMPLEMENTATIONS:
            records.write(
                what=case.what,
                implementation=name,
                dtype=case.dtype,
                images=images,
                level_sizes=LEVELS,
                transformers=transformers.__version__,
                calls=calls,
                **case.samples[name].fields(),
                operator_share=case.operator_share.get(name),
                peak_bytes=case.peak_bytes.get(name),
                verified=errors[case.dtype][name]["output"],
                verified_gradients=max(errors[case.dtype][name].values()),
            )
        medians = [case.samples[name].median for name in IMPLEMENTATIONS]
        shares = " / ".join(f"{case.operator_share[name]:.0%}" for name in IMPLEMENTATIONS if case.operator_share)
        peaks = " / ".join(f"{case.peak_bytes[name] / 2**20:.0f}" for name in IMPLEMENTATIONS if case.peak_bytes)
        times = (f"{median * 1e3:.2f}" for median in medians)
        ratio = f"{medians[0] / medians[1]:.2f}x"
        rows.append(
            (case.what, case.dtype, *times, ratio, shares, peaks, f"{errors[case.dtype]['fourtap']['output']:.0e}")
        )
    show_progress("")

    print(f"Deformable DETR's encoder layer, batch {images}, transformers {transformers.__version__}")
    print(f"on {records.heading}")
    print(f"milliseconds, medians of {repetitions}; ratio: stock over fourtap; 16-bit types by autocast\n")
    print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
