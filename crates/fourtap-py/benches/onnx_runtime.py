"""Times Deformable DETR's encoder and RT-DETR's decoder in ONNX Runtime: exports as they come, and with our nodes.

Four models of each part, made by PyTorch's exporter from the modules of transformers in their published sizes, with
random weights: as it comes (``stock``), that file rewritten, the patched module exported by fourtap, and the same file
where our library is not registered (``function``). All run in turns in one process, on the CPU, on the same tensors.
Before anything is timed, their outputs are compared with those of the stock model.
"""

from __future__ import annotations

import argparse
import copy
import os
import pathlib
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

# Before transformers is imported: modules are made from a configuration, and nothing must be downloaded.
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import onnxruntime
import torch
import transformers
from measuring import Records, Samples, level_tensors, no_garbage_collection, print_table, show_progress
from torch import Tensor, nn
from transformers.models.deformable_detr import modeling_deformable_detr
from transformers.models.rt_detr import modeling_rt_detr

import fourtap.onnx
from fourtap.compat import transformers as compat

ENCODER_LEVELS = [(100, 167), (50, 84), (25, 42), (13, 21)]  # of an image of 800 x 1333
DECODER_LEVELS = [(80, 80), (40, 40), (20, 20)]  # of one of 640 x 640
QUERIES = 300
CHANNELS = 256
SIGMA = 4.0  # pixels that points are away from where they would be in an untrained layer
MODELS = ("stock", "rewritten", "exported", "function")
ALLOWED_ERROR = 1e-4


class Part(nn.Module):
    """A module of transformers with its levels, which are constants."""

    def __init__(self, module: nn.Module, levels: list[tuple[int, int]], names: tuple[str, ...]) -> None:
        """``names`` are those that its other arguments have there."""
        super().__init__()
        self.module, self.names, self.levels = module, names, levels
        shapes, starts = level_tensors(levels, torch.device("cpu"))
        self.register_buffer("shapes", shapes)
        self.register_buffer("starts", starts)

    def forward(self, *given: Tensor) -> Tensor:
        """The first thing that the module returns."""
        found = self.module(
            **dict(zip(self.names, given, strict=True)),
            spatial_shapes=self.shapes,
            spatial_shapes_list=self.levels,
            level_start_index=self.starts,
        )
        return found[0] if isinstance(found, tuple) else found


@dataclass
class Case:
    """A part of a model, with the tensors that it is run on."""

    what: str
    part: Part
    inputs: tuple[Tensor, ...]
    sessions: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, Samples] = field(default_factory=lambda: {name: Samples() for name in MODELS})
    errors: dict[str, float] = field(default_factory=dict)

    @property
    def feed(self) -> dict[str, Any]:
        """The tensors by the names they have in the file."""
        return {f"given_{at}": tensor.numpy() for at, tensor in enumerate(self.inputs)}


class Projected(nn.Module):
    """An attention module without its four linear layers, whose outputs it is given instead."""

    def __init__(self, attention: nn.Module) -> None:
        """Of a module with these layers, which is copied."""
        super().__init__()
        self.attention = copy.deepcopy(attention)
        given: dict[str, Tensor] = {}

        class Given(nn.Module):
            def __init__(self, name: str) -> None:
                super().__init__()
                self.name = name

            def forward(self, _: Tensor) -> Tensor:
                return given[self.name]

        for name in ("sampling_offsets", "attention_weights", "value_proj"):
            setattr(self.attention, name, Given(name))
        self.attention.output_proj = nn.Identity()
        # Not an attribute, which an export would not let change.
        self.give = given.update

    def forward(self, offsets: Tensor, logits: Tensor, value: Tensor, **named: Any) -> Any:
        """As the module, of what its layers would put out."""
        self.give({"sampling_offsets": offsets, "attention_weights": logits, "value_proj": value})
        queries = offsets[..., :CHANNELS]
        return self.attention(hidden_states=queries, encoder_hidden_states=value, **named)


def spread(attention: nn.Module) -> None:
    """Lets places differ from query to query, as in a trained layer."""
    nn.init.normal_(attention.sampling_offsets.weight, std=SIGMA / CHANNELS**0.5)
    nn.init.normal_(attention.attention_weights.weight, std=1 / CHANNELS**0.5)


def encoder(scale: int) -> list[Case]:
    """Deformable DETR's encoder layer, and the attention in it."""
    config = transformers.DeformableDetrConfig(
        use_timm_backbone=False,
        backbone_config=transformers.ResNetConfig(out_features=["stage2", "stage3", "stage4"]),
        d_model=CHANNELS,
        encoder_layers=1,
        encoder_attention_heads=8,
        encoder_n_points=4,
        encoder_ffn_dim=1024,
        dropout=0.0,
    )
    levels = [(height // scale, width // scale) for height, width in ENCODER_LEVELS]
    layer = modeling_deformable_detr.DeformableDetrEncoder(config).layers[0].eval()
    spread(layer.self_attn)
    pixels = sum(height * width for height, width in levels)
    hidden, positions = (torch.randn(1, pixels, CHANNELS) for _ in range(2))
    mask = torch.ones(1, pixels, dtype=torch.bool)
    ratios = torch.ones(1, len(levels), 2)
    places = modeling_deformable_detr.DeformableDetrEncoder.get_reference_points(
        tuple(levels), ratios, torch.device("cpu")
    ).float()
    of_layer = ("hidden_states", "attention_mask", "spatial_position_embeddings", "reference_points")
    if "spatial_position_embeddings" not in layer.forward.__code__.co_varnames:
        of_layer = ("hidden_states", "attention_mask", "position_embeddings", "reference_points")
    of_attention = (
        "hidden_states",
        "attention_mask",
        "encoder_hidden_states",
        "position_embeddings",
        "reference_points",
    )
    return [
        Case("encoder layer", Part(layer, levels, of_layer), (hidden, mask, positions, places)),
        Case(
            "attention in it",
            Part(layer.self_attn, levels, of_attention),
            (hidden, mask, hidden.clone(), positions, places),
        ),
        without_layers(layer.self_attn, levels, hidden + positions, hidden, places, mask),
    ]


@torch.no_grad()
def without_layers(
    attention: nn.Module,
    levels: list[tuple[int, int]],
    queries: Tensor,
    features: Tensor,
    places: Tensor,
    mask: Tensor | None = None,
) -> Case:
    """What is left of an attention module when its linear layers are taken out: what our node is for."""
    inputs = [attention.sampling_offsets(queries), attention.attention_weights(queries), attention.value_proj(features)]
    names = ["offsets", "logits", "value", "reference_points"]
    if mask is not None:
        return Case(
            "its part without linear layers",
            Part(Projected(attention), levels, (*names, "attention_mask")),
            (*inputs, places, mask),
        )
    return Case("its part without linear layers", Part(Projected(attention), levels, tuple(names)), (*inputs, places))


def decoder(scale: int) -> list[Case]:
    """RT-DETR's decoder layer, and the attention to pixels in it."""
    config = transformers.RTDetrConfig(d_model=CHANNELS, decoder_layers=1)
    layer = modeling_rt_detr.RTDetrDecoderLayer(config).eval()
    spread(layer.encoder_attn)
    levels = [(height // scale, width // scale) for height, width in DECODER_LEVELS]
    pixels = sum(height * width for height, width in levels)
    hidden, positions = (torch.randn(1, QUERIES, CHANNELS) for _ in range(2))
    features = torch.randn(1, pixels, CHANNELS)
    boxes = torch.rand(1, QUERIES, 1, 4) * torch.tensor([1, 1, 0.3, 0.3])
    names = layer.forward.__code__.co_varnames
    positional = "position_embeddings" if "position_embeddings" in names else "object_queries_position_embeddings"
    of_layer = ("hidden_states", "encoder_hidden_states", positional, "reference_points")
    of_attention = ("hidden_states", "encoder_hidden_states", "position_embeddings", "reference_points")
    inputs = (hidden, features, positions, boxes)
    return [
        Case("decoder layer", Part(layer, levels, of_layer), inputs),
        Case("attention to pixels in it", Part(layer.encoder_attn, levels, of_attention), inputs),
        without_layers(layer.encoder_attn, levels, hidden + positions, features, boxes),
    ]


def load(file: pathlib.Path, threads: int, *, with_library: bool) -> Any:
    """A session of a file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if with_library:
        options.register_custom_ops_library(fourtap.onnx.library_path())
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


@torch.no_grad()
def prepare(case: Case, folder: pathlib.Path, threads: int) -> None:
    """Makes the models of a case and compares their outputs."""
    show_progress(f"exporting: {case.what}")
    files = {name: folder / f"{name}.onnx" for name in MODELS}
    names = {"input_names": list(case.feed), "verbose": False}
    torch.onnx.export(case.part, case.inputs, files["stock"], dynamo=True, **names)
    fourtap.onnx.rewrite(files["stock"], files["rewritten"])
    compat.patch()
    try:
        fourtap.onnx.export(case.part, case.inputs, files["exported"], **names)
    finally:
        compat.unpatch()
    files["function"] = files["exported"]
    case.sessions = {name: load(file, threads, with_library=name != "function") for name, file in files.items()}
    (expected,) = case.sessions["stock"].run(None, case.feed)
    for name, session in case.sessions.items():
        (found,) = session.run(None, case.feed)
        case.errors[name] = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        if not case.errors[name] <= ALLOWED_ERROR:
            sys.exit(f"error: {case.what}, {name}: off by {case.errors[name]:.1e}, {ALLOWED_ERROR:.1e} allowed")


def measure(case: Case, repetitions: int) -> None:
    """Times all models of a case in turns."""
    feed = case.feed
    with no_garbage_collection():
        for repetition in range(repetitions):
            show_progress(f"{case.what}: repetition {repetition + 1} of {repetitions}")
            for name, session in case.sessions.items():
                # Threads of the session before go on spinning for a while.
                time.sleep(0.05)
                begin = time.perf_counter()
                session.run(None, feed)
                case.samples[name].seconds.append(time.perf_counter() - begin)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=9, help="turns each model gets")
    parser.add_argument("--quick", action="store_true", help="two repetitions, levels an eighth as wide and high")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="append JSON records to it, one per line")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    scale, repetitions = (8, 2) if options.quick else (1, options.repetitions)

    cases = [*encoder(scale), *decoder(scale)]
    records = Records("onnx_runtime", torch.device("cpu"), options.json)
    rows = [("what", *MODELS, "rewritten", "exported", "function", "error")]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            prepare(case, pathlib.Path(folder), threads)
    for case in cases:
        measure(case, repetitions)
        for name in MODELS:
            records.write(
                what=case.what,
                model=name,
                level_sizes=case.part.levels,
                onnxruntime=onnxruntime.__version__,
                transformers=transformers.__version__,
                **case.samples[name].fields(),
                verified=case.errors[name],
            )
        medians = {name: case.samples[name].median for name in MODELS}
        times = (f"{medians[name] * 1e3:.2f}" for name in MODELS)
        ratios = (f"{medians['stock'] / medians[name]:.2f}x" for name in MODELS[1:])
        rows.append((case.what, *times, *ratios, f"{max(case.errors.values()):.0e}"))
    show_progress("")

    print(f"ONNX Runtime {onnxruntime.__version__}, transformers {transformers.__version__}, batch 1, f32")
    print(f"on {records.heading}")
    print(f"milliseconds, medians of {repetitions} in turns; then stock over each of the others\n")
    print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
