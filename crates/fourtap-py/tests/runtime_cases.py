"""The operator and whole models as files for other runtimes, each in several forms, with what they have to compute."""

from __future__ import annotations

import json
import pathlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import reference
import torch
from onnx_sessions import Outputs
from torch import Tensor, nn
from torch.nn import functional

import fourtap
import fourtap.onnx
from fourtap.compat import transformers as compat

#: With levels of one pixel across.
SHAPES: reference.Shapes = ((20, 30), (1, 7), (9, 1), (1, 1))
#: How the operator is written: by GridSample, as exports come; made of Gather and MatMul; or as a node of our library.
FORMS = ("GridSample", "portable", "our node")


@dataclass
class Case:
    """A module, what to run it on, and the same with the operator called as ours."""

    name: str
    stock: nn.Module
    inputs: dict[str, Tensor]
    expected: list[Tensor]
    ours: Callable[[], Any]
    "Made when it is exported, in whatever context that takes."

    def write(self, folder: pathlib.Path, *, programs: bool) -> None:
        """Files of all forms, and case.json, which names them; exported programs only for who wants them."""
        folder.mkdir(parents=True, exist_ok=True)
        given = tuple(self.inputs.values())
        files = {form: f"{form.replace(' ', '-')}.onnx" for form in FORMS}
        names = [f"out_{at}" for at in range(len(self.expected))]
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                self.stock,
                given,
                folder / files["GridSample"],
                dynamo=False,
                opset_version=17,
                input_names=list(self.inputs),
                output_names=names,
            )
            inputs = {name: tensor.numpy() for name, tensor in self.inputs.items()}
            for form, to in (("portable", "portable"), ("our node", "fourtap")):
                source, target = folder / files["GridSample"], folder / files[form]
                fourtap.onnx.rewrite(source, target, to=to, inputs=inputs, with_functions=False)
            torch.jit.trace(self.stock, given, check_trace=False).save(folder / "GridSample.pt")
            if programs:
                torch.export.save(torch.export.export(self.stock, given), folder / "GridSample.pt2")
                torch.export.save(self.ours(), folder / "portable.pt2")
        content = {
            "name": self.name,
            "library": fourtap.onnx.library_path(),
            "inputs": {name: _written(folder / f"{name}.bin", tensor) for name, tensor in self.inputs.items()},
            "outputs": names,
            "forms": files,
        }
        (folder / "case.json").write_text(json.dumps(content))

    def error(self, found: Sequence[Any]) -> float:
        """The largest difference to the largest number, in any order of queries: those that score alike swap places."""
        outputs = [torch.from_numpy(np.asarray(one)).double() for one in found]
        expected = [one.double() for one in self.expected]
        outputs = [one.reshape(other.shape) for one, other in zip(outputs, expected, strict=True)]
        if len(expected) == 1:
            off = (outputs[0] - expected[0]).abs().max().item()
            return off / expected[0].abs().max().item()
        axes = expected[0].shape[:-1]
        rows, others = (
            torch.cat([one for one in these if one.shape[:-1] == axes], -1) for these in (outputs, expected)
        )
        off = (rows.unsqueeze(2) - others.unsqueeze(1)).abs().amax(-1)
        return max(off.amin(1).max().item(), off.amin(2).max().item()) / others.abs().max().item()


def _written(file: pathlib.Path, tensor: Tensor) -> dict[str, Any]:
    array = tensor.numpy()
    array.tofile(file)
    return {"type": str(array.dtype), "shape": list(array.shape), "file": file.name}


class _Composed(nn.Module):
    """The operator as models of transformers have it."""

    def forward(self, value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        images, _, heads, channels = value.shape
        queries = locations.shape[1]
        grids = 2 * locations - 1
        samples = []
        for level, pixels in enumerate(value.split([height * width for height, width in SHAPES], 1)):
            image = pixels.flatten(2).transpose(1, 2).reshape(images * heads, channels, *SHAPES[level])
            grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            samples.append(functional.grid_sample(image, grid, align_corners=False))
        shares = weights.transpose(1, 2).reshape(images * heads, 1, queries, -1)
        found = (torch.stack(samples, -2).flatten(-2) * shares).sum(-1).view(images, heads * channels, queries)
        return found.transpose(1, 2).contiguous()


class _Ours(nn.Module):
    def forward(self, value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return fourtap.ms_deform_attn(value, SHAPES, locations, weights)


def operator(images: int = 2, queries: int = 300, heads: int = 8, channels: int = 32) -> Case:
    """Points outside the image, on borders and on centres of pixels; expected of the formula in float64."""
    given = reference.problem(
        0, device="cpu", shapes=SHAPES, batch=images, queries=queries, heads=heads, channels=channels
    )
    value, locations, weights = (tensor.detach().float() for tensor in given.differentiable)
    sides = torch.tensor(SHAPES, dtype=torch.float32).flip(1)[:, None]
    locations[:, ::2] = (locations[:, ::2] * sides * 2).round() / (2 * sides)
    inputs = {"value": value, "locations": locations, "weights": weights}
    expected = reference.ms_deform_attn(value.double(), SHAPES, locations.double(), weights.double())
    ours = lambda: _decomposed(_Ours(), inputs)  # noqa: E731
    return Case("operator", _Composed().eval(), inputs, [expected], ours)


def model(name: str, built: tuple[nn.Module, dict[str, Tensor]]) -> Case:
    """A model of transformers; expected of itself."""
    module, inputs = built
    wrapped = Outputs(module, list(inputs)).eval()
    with torch.no_grad():
        expected = [tensor.clone() for tensor in wrapped(*inputs.values())]

    def ours() -> Any:
        compat.patch()
        try:
            return _decomposed(wrapped, inputs)
        finally:
            compat.unpatch()

    return Case(name, wrapped, inputs, expected, ours)


def _decomposed(module: nn.Module, inputs: dict[str, Tensor]) -> Any:
    program = torch.export.export(module.eval(), tuple(inputs.values()))
    return program.run_decompositions(fourtap.decompositions())
