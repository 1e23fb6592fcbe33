"""Comparisons of rewritten models with what they were, which must be able to fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx_layers import AXES, SIZES, Layer, export, operands
from onnx_sessions import onnx, onnxruntime
from torch import Tensor

import fourtap.onnx
from fourtap.onnx import rewriting
from fourtap.onnx.__main__ import main
from fourtap.onnx.random_inputs import feeds

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


class Changed(Layer):
    """A layer that changes an input first."""

    def __init__(self, **changes: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.changes = changes

    def forward(self, *given: Tensor) -> Tensor:
        named = dict(zip(AXES, given, strict=True))
        return super().forward(*(self.changes.get(name, lambda one: one)(one) for name, one in named.items()))


NOTHING_TO_COMPARE = {
    "not a number": Changed(fine=lambda map: (map - 2).sqrt(), coarse=lambda map: (map - 2).sqrt()),
    "zero": Changed(references=lambda points: points + 100),
}


@pytest.mark.parametrize("what", NOTHING_TO_COMPARE)
def test_numbers_that_tell_nothing_are_refused(what: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(NOTHING_TO_COMPARE[what], file, operands())
    sizes = [f"--size={name}={first},{second}" for name, (first, second) in SIZES.items()]
    assert main(["rewrite", str(file), str(file.with_name("out.onnx")), *sizes]) == 4
    error = capsys.readouterr().err
    assert "expected at least 10% of the numbers to be finite and not zero" in error and "--inputs" in error
    assert not file.with_name("out.onnx").exists()
    inputs = {name: one.numpy() for name, one in zip(AXES, operands(), strict=True)}
    inputs |= {"fine": inputs["fine"] ** 2 + 3, "coarse": inputs["coarse"] ** 2 + 3}
    inputs |= {"references": inputs["references"] - (100 if what == "zero" else 0)}
    np.savez(file.with_name("inputs.npz"), **inputs)
    arguments = ["rewrite", str(file), str(file.with_name("out.onnx")), "--inputs", str(file.with_name("inputs.npz"))]
    assert main(arguments) == 0


def test_images_of_a_batch_must_not_be_exchanged(file: Path) -> None:

    export(Layer(), file, operands())
    model = onnx.load(file)
    names = ("last", "before_first", "images", "backwards")
    for name, number in zip(names, (-1, -(2**63) + 1, 0, -1), strict=True):
        model.graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [1], [number]))
    makers = {node.output[0]: node for node in model.graph.node}
    for sampler in [node for node in model.graph.node if node.op_type == "GridSample"]:
        # It only moves numbers, as the views around it do.
        image = makers[sampler.input[0]]
        flip = onnx.helper.make_node("Slice", [image.input[0], *names], [f"{image.input[0]}_flipped"])
        image.input[0] = flip.output[0]
        model.graph.node.insert(list(model.graph.node).index(image), flip)
    with pytest.raises(fourtap.onnx.VerificationError, match="expected an error of at most"):
        fourtap.onnx.rewrite(model, sizes=SIZES)


def test_the_functions_that_a_file_carries_are_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(Layer(), file, operands())

    def wrong(*arguments: Any) -> Any:
        made = rewriting_functions(*arguments)
        double = next(node for node in made[0].node if node.output[0] == "double")
        double.attribute[0].f = 2.5
        return made

    rewriting_functions = rewriting.functions
    monkeypatch.setattr(rewriting, "functions", wrong)
    with pytest.raises(fourtap.onnx.VerificationError, match="by the functions that the file carries: expected an er"):
        fourtap.onnx.rewrite(file, sizes=SIZES)
    assert fourtap.onnx.rewrite(file, sizes=SIZES, with_functions=False).replaced == 1


def shapes_of(file: Path, **options: Any) -> list[dict[str, tuple[int, ...]]]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    found = feeds(session, options.get("inputs"), options.get("sizes"))
    return [{name: array.shape for name, array in feed.items()} for feed in found]


def test_sizes_differ_and_are_not_square(file: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, image: Tensor, mask: Tensor, words: Tensor) -> Tensor:
            return (image.mean(1) * mask).sum() + words.sum()

    given = (torch.rand(1, 3, 8, 8), torch.ones(1, 8, 8, dtype=torch.int64), torch.ones(1, 4, dtype=torch.bool))
    names = ["image", "mask", "words"]
    axes = {"image": {0: "n", 2: "h", 3: "w"}, "mask": {0: "n", 1: "h", 2: "w"}, "words": {0: "n", 1: "t"}}
    torch.onnx.export(Model(), given, file, dynamo=False, opset_version=17, input_names=names, dynamic_axes=axes)
    assert shapes_of(file) == [
        {"image": (2, 3, 128, 192), "mask": (2, 128, 192), "words": (2, 5)},
        {"image": (3, 3, 256, 192), "mask": (3, 256, 192), "words": (3, 7)},
    ]
    assert shapes_of(file, sizes={"h": 32, "t": (4, 6)}) == [
        {"image": (2, 3, 32, 192), "mask": (2, 32, 192), "words": (2, 4)},
        {"image": (3, 3, 32, 192), "mask": (3, 32, 192), "words": (3, 6)},
    ]
    # The axes of what is given are the sizes of what is not.
    assert shapes_of(file, inputs={"image": np.zeros((1, 3, 40, 48), np.float32)}, sizes={"t": 3}) == [
        {"image": (1, 3, 40, 48), "mask": (1, 40, 48), "words": (1, 3)}
    ]
    with pytest.raises(fourtap.InputError, match=r"sizes: expected one number or two for h, found 3"):
        shapes_of(file, sizes={"h": (1, 2, 3)})
    with pytest.raises(fourtap.InputError, match=r"inputs: expected names of \['image', 'mask', 'words'\]"):
        shapes_of(file, inputs={"picture": np.zeros(1)})
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    image, mask, words = feeds(session, None, None)[0].values()
    assert 0 <= image.min() and image.max() <= 1 and image.std() > 0.1 and (image[0] != image[1]).all()
    for one in (mask, words):
        assert 0 < one.mean() < 1 and one[:, 0].any()


def test_sizes_that_a_model_does_not_take_are_named(file: Path) -> None:
    export(Layer(), file, operands())
    model = onnx.load(file)
    offsets = next(given for given in model.graph.input if given.name == "offsets")
    offsets.type.tensor_type.shape.dim[1].dim_param = "others"
    assert fourtap.onnx.rewrite(model, sizes={**SIZES, "q": 5, "others": 5}).replaced == 1
    words = r"as it was: expected one that runs on inputs of fine \[2, 8, 4, 6\].*--size.*found"
    with pytest.raises(fourtap.onnx.VerificationError, match=words):
        fourtap.onnx.rewrite(model, sizes={**SIZES, "q": 5, "others": 4})
