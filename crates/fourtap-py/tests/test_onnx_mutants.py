"""Look-alikes of models that are rewritten: whatever one computes, it computes after it was rewritten, or it stays."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx_layers import AXES, Layer, LayerByPoints, export, operands
from onnx_mutants import Mutant, Tensors, mutants
from onnx_sessions import onnx, onnxruntime
from torch import Tensor, nn

import fourtap.onnx

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
# What a mutant is tried on, besides what rewriting compares: images, height, width, queries.
TRIED = ((2, 4, 6, 5), (1, 12, 20, 3), (3, 10, 4, 5))
SAME, DIFFERENT = 1e-4, 1e-3
OF_EACH_KIND = 12


def of_the_export(sizes: Tensor) -> Tensor:
    return torch.tensor([[6.0, 4.0], [3.0, 2.0]])[None, None, None, :, None, :]


#: Each with the numbers of its references, and whether its sizes may change.
MODELS: dict[str, tuple[nn.Module, int, bool]] = {
    "points": (Layer(), 2, True),
    "boxes": (Layer(), 4, True),
    "by-points": (LayerByPoints(), 4, True),
    # A look-alike to begin with: what is right at the size of the export is wrong at others.
    "constants": (Layer(of_the_export), 2, True),
    "fixed": (Layer(of_the_export), 2, False),
}


class Tried:
    """A model in ONNX Runtime on several inputs."""

    def __init__(self, model: Any, *, with_library: bool = False) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if with_library:
            options.register_custom_ops_library(fourtap.onnx.library_path())
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.names = [output.name for output in self.session.get_outputs()]

    def run(self, feed: dict[str, Any]) -> dict[str, Any]:
        wanted = {given.name for given in self.session.get_inputs()}
        found = self.session.run(None, {name: array for name, array in feed.items() if name in wanted})
        return dict(zip(self.names, found, strict=True))


def inputs(coordinates: int, *, sizes_change: bool) -> list[dict[str, Any]]:
    tried = TRIED if sizes_change else TRIED[:1] * 2
    given = [operands(*sizes, coordinates=coordinates) for sizes in tried]
    return [{name: one.numpy() for name, one in zip(AXES, those, strict=True)} for those in given]


def results(model: Any, feeds: list[dict[str, Any]], **options: Any) -> list[Any]:
    """Of each input, or None where the model does not run."""
    try:
        tried = Tried(model, **options)
    except Exception:  # onnxruntime's own, of a graph that is none
        return [None] * len(feeds)
    found: list[Any] = []
    for feed in feeds:
        try:
            found.append(tried.run(feed)["out"])
        except Exception:
            found.append(None)
    return found


def off(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest number."""
    if found is None or found.shape != expected.shape or (np.isfinite(found) != np.isfinite(expected)).any():
        return float("inf")
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0
    return float(np.abs(found - expected)[finite].max() / max(np.abs(expected[finite]).max(), 1e-6))


def tensors_of(model: Any, feeds: list[dict[str, Any]]) -> Tensors:
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    there = {info.name for info in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name not in there]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    found = [feed | Tried(watched).run(feed) for feed in feeds]
    types = {name: array.dtype for name, array in found[0].items()}
    return Tensors(types, {name: tuple(run[name].shape for run in found) for name in types})


def some_of_each_kind(of: list[Mutant]) -> list[Mutant]:
    kinds = defaultdict(list)
    for mutant in of:
        kinds[mutant.kind].append(mutant)
    source = random.Random(0)
    return [one for those in kinds.values() for one in source.sample(those, min(OF_EACH_KIND, len(those)))]


def outcome(mutant: Mutant, feeds: list[dict[str, Any]], expected: list[Any]) -> str:
    """What became of a mutant; a failure where it was rewritten to what computes something else."""
    computed = results(mutant.model, feeds)
    if all(one is None for one in computed):
        return "does not run"
    differs = any(
        one is not None and off(one, other) > DIFFERENT for one, other in zip(computed, expected, strict=True)
    )
    kind = "other" if differs else "same"
    try:
        rewritten = fourtap.onnx.rewrite(mutant.model).model
    except (fourtap.onnx.PatternError, fourtap.onnx.VerificationError):
        return f"{kind}, left alone"
    for with_library in (True, False):
        found = results(rewritten, feeds, with_library=with_library)
        for one, other in zip(found, computed, strict=True):
            assert other is None or off(one, other) <= SAME, f"{mutant.what}: off by {off(one, other)}"
    return f"{kind}, rewritten"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_look_alikes_compute_what_they_did(name: str, tmp_path: Path) -> None:
    layer, coordinates, sizes_change = MODELS[name]
    feeds = inputs(coordinates, sizes_change=sizes_change)
    export(layer, tmp_path / "model.onnx", operands(coordinates=coordinates), sizes_change=sizes_change)
    model = onnx.load(tmp_path / "model.onnx")
    expected = results(model, feeds)
    chosen = some_of_each_kind(list(mutants(model, tensors_of(model, feeds))))
    outcomes = Counter(outcome(mutant, feeds, expected) for mutant in chosen)
    # Enough that run, compute something else and are seen, and some that are served all the same.
    assert outcomes["other, left alone"] + outcomes["other, rewritten"] >= 36, outcomes
    assert outcomes["other, left alone"] >= 10 and outcomes["other, rewritten"] >= 5, outcomes
