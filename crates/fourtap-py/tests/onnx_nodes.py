"""Models of one node of ours, mmcv's or TensorRT's, for random problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import projections
import pytest
import reference
import torch
from torch import Tensor

onnx = pytest.importorskip("onnx")
helper = onnx.helper

TENSORRT = "MultiscaleDeformableAttnPlugin_TRT"

#: Level sizes of one pixel across, alone and at the end of the value.
SHAPES = ((6, 9), (1, 4), (5, 1), (1, 1))


@dataclass
class NodeProblem:
    """Inputs of a node by their names, and what it has to make of them."""

    inputs: dict[str, Any]
    expected: Tensor
    "In float64."
    naive: Tensor
    "In float32, by the same formula; in the type of ``value``."
    attributes: dict[str, Any]
    node: str

    def model(self, node: str = "", domain: str = "fourtap", *, opset: int = 17, levels_change: bool = False) -> Any:
        """With free axes, but for those that models fix; the levels are constants unless they change."""
        node = node or self.node
        constants = [] if levels_change else ["spatial_shapes", "level_start_index"]
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), _axes(name, array))
            for name, array in self.inputs.items()
            if name not in constants
        ]
        value = self.inputs["value"]
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        out = helper.make_tensor_value_info("out", kind, ["n", "q", "m", "d"][: 4 if node == TENSORRT else 3])
        given = [name if name in self.inputs else "" for name in _INPUTS[self.node]]
        made = helper.make_node(node, given, ["out"], name="attention", domain=domain, **self.attributes)
        tensors = [onnx.numpy_helper.from_array(self.inputs[name], name) for name in constants]
        graph = helper.make_graph([made], "attention", infos, [out], tensors)
        opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def feed(self, model: Any) -> dict[str, Any]:
        return {given.name: self.inputs[given.name] for given in model.graph.input}

    def assert_within_tolerance(self, found: Any) -> None:
        """The rule of every backend: at most twice as far off as the naive form, and one unit in the last place."""
        found = torch.from_numpy(np.asarray(found))
        assert found.dtype is self.naive.dtype and found.numel() == self.expected.numel()
        expected = self.expected.reshape(found.shape)
        off = (found.double() - expected).abs().max().item()
        naive = (self.naive.reshape(found.shape).double() - expected).abs().max().item()
        floor = torch.finfo(found.dtype).eps * expected.abs().max().item()
        assert off <= 2 * naive + floor, f"off by {off:.3g}, naive by {naive:.3g}"


_LEVELS = ("value", "spatial_shapes", "level_start_index")
_INPUTS = {
    "MSDeformAttn": (*_LEVELS, "sampling_locations", "attention_weights"),
    "MSDeformAttnFromProjections": (
        *_LEVELS,
        "reference_points",
        "sampling_offsets",
        "attention_logits",
        "value_mask",
    ),
}


def _axes(name: str, array: Any) -> list[Any]:
    """Images, pixels and queries change from run to run; levels, heads, points and channels do not."""
    sizes: list[Any] = list(array.shape)
    if name in ("spatial_shapes", "level_start_index"):
        return sizes
    sizes[0] = f"{name}_n" if sizes[0] == 1 else "n"
    sizes[1] = "s" if name.startswith("value") else f"{name}_q" if sizes[1] == 1 else "q"
    return sizes


def from_locations(
    seed: int, *, dtype: torch.dtype = torch.float32, shapes: reference.Shapes = SHAPES, **sizes: int
) -> NodeProblem:
    given = reference.problem(seed, device="cpu", shapes=shapes, **sizes)
    value = given.value.detach().to(dtype)
    locations, weights = given.locations.detach().float(), given.weights.detach().float()
    # Centres and borders of pixels, exactly: half pixels of each level.
    sides = torch.tensor(shapes, dtype=torch.float32).flip(1)[:, None]
    locations[:, ::2] = (locations[:, ::2] * sides * 2).round() / (2 * sides)
    expected, naive = (
        reference.ms_deform_attn(value.to(kind), shapes, locations.to(kind), weights.to(kind))
        for kind in (torch.float64, torch.float32)
    )
    inputs = _arrays(value, shapes, {"sampling_locations": locations, "attention_weights": weights})
    return NodeProblem(inputs, expected, naive.to(dtype), {}, "MSDeformAttn")


def from_projections(
    seed: int, *, dtype: torch.dtype = torch.float32, shapes: reference.Shapes = SHAPES, **options: Any
) -> NodeProblem:
    made = projections.problem(seed, device="cpu", shapes=shapes, **options)
    value = made.value.detach().to(dtype)
    references, offsets, logits = (tensor.detach().float() for tensor in (made.references, made.offsets, made.logits))
    rounded = replace(made, value=value, references=references, offsets=offsets, logits=logits)
    naive = reference.from_projections(
        value.float(),
        shapes,
        references,
        offsets,
        logits,
        points=made.options.get("points_per_level"),
        mask=made.options.get("value_mask"),
        nearest=made.options.get("sampling") == "nearest",
        box_scale=made.options.get("box_scale"),
    )
    operands = {"reference_points": references, "sampling_offsets": offsets, "attention_logits": logits}
    if "value_mask" in made.options:
        operands["value_mask"] = made.options["value_mask"]
    names = ("points_per_level", "sampling", "box_scale")
    attributes = {name: made.options[name] for name in names if name in made.options}
    node = "MSDeformAttnFromProjections"
    return NodeProblem(_arrays(value, shapes, operands), rounded.expected(), naive.to(dtype), attributes, node)


def _arrays(value: Tensor, shapes: reference.Shapes, operands: Mapping[str, Tensor]) -> dict[str, Any]:
    levels = np.array(shapes, np.int64)
    starts = np.concatenate([[0], np.cumsum(levels.prod(1))[:-1]])
    arrays = {name: tensor.numpy() for name, tensor in operands.items()}
    return {"value": value.numpy(), "spatial_shapes": levels, "level_start_index": starts, **arrays}
