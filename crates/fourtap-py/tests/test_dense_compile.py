"""Dense attention under torch.compile, export, fake tensors and everything else that must see an operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import reference
import torch
from dense_reference import TOLERANCE, problem
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import fourtap
from fourtap import scaled_dot_product_attention as attend


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield


def as_bshd(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"is_causal": True, "causal_alignment": "bottom_right"},
    {"window": (9, None), "scale": 0.5},
    {"window": 4, "enable_gqa": True},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("transposed", [False, True])
def test_compiled_calls_are_the_same(device: str, options: dict[str, Any], backend: str, transposed: bool) -> None:
    case = problem(1, device=device, heads=(4, 2) if "enable_gqa" in options else (4, 4))
    operands = tuple(map(as_bshd, case.operands)) if transposed else case.operands

    def layer(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        alone = attend(query * 2, key, value, **options)
        out, lse = attend(query, key, value, return_lse=True, **options)
        return alone.transpose(1, 2).flatten(2), out.sin(), lse + 1

    expected = layer(*operands)
    found = torch.compile(layer, fullgraph=True, backend=backend)(*operands)
    for ours, right in zip(found, expected, strict=True):
        assert ours.dtype is right.dtype and ours.stride() == right.stride()
        reference.assert_close(ours, right, TOLERANCE[ours.dtype])


def test_one_compilation_serves_all_sizes(device: str) -> None:
    compilations = 0

    def count(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        nonlocal compilations
        compilations += 1
        return module.forward

    def layer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # A window and a scale made of sizes, which are symbols while this is traced.
        return attend(query, key, value, window=(query.shape[-2] // 2, None), scale=query.shape[-1] ** -0.25)

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=count)
    for batch, sizes in ((2, (5, 7)), (3, (8, 64)), (5, (130, 4))):
        operands = problem(2, device=device, batch=(batch,), sizes=sizes).operands
        assert torch.equal(compiled(*operands), layer(*operands))
    assert compilations == 1


def test_autocast_is_compiled_in(device: str) -> None:
    operands = problem(3, device=device).operands
    compiled = torch.compile(lambda *operands: attend(*operands), fullgraph=True, backend="aot_eager")
    with torch.autocast(device, torch.bfloat16):
        found = compiled(*operands)
        assert found.dtype is torch.bfloat16 and torch.equal(found, attend(*operands))


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_compute_the_same(device: str, strict: bool) -> None:
    class Layer(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return attend(query, key, value, window=query.shape[-2], is_causal=True) + 1

    operands = problem(4, device=device).operands
    positions = {2: torch.export.Dim("positions", min=2, max=4096)}
    keys = {2: torch.export.Dim("keys", min=2, max=4096)}
    program = torch.export.export(Layer(), operands, strict=strict, dynamic_shapes=(positions, keys, keys))
    assert "fourtap.dense" in program.graph_module.code
    for sizes in ((37, 53), (100, 20)):
        operands = problem(5, device=device, sizes=sizes).operands
        assert torch.equal(program.module()(*operands), Layer()(*operands))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("batch", [(2,), (2, 3), ()])
def test_the_registered_operator_passes_opcheck(device: str, transposed: bool, batch: tuple[int, ...]) -> None:
    case = problem(6, device=device, batch=batch, heads=(4, 2), sizes=(5, 6), channels=(16, 8))
    query, key, value = case.operands
    if transposed:
        query = query.transpose(-3, -2).contiguous().transpose(-3, -2)
    for wanted in ((None, None, None, False, True, False), (0.3, 4, 0, True, True, True)):
        opcheck(torch.ops.fourtap.dense.default, (query, key, value, *wanted))
    one_head = (query[..., 0, :, :], key[..., 0, :, :], value[..., 0, :, :])
    opcheck(torch.ops.fourtap.dense.default, (*one_head, None, None, None, False, True, True))


def test_fake_and_meta_tensors_have_the_shape_type_and_strides_of_the_result(device: str) -> None:
    case = problem(7, device=device, channels=(64, 32))
    with FakeTensorMode():
        query = torch.empty(2, 37, 4, 64, dtype=torch.bfloat16, device=device).transpose(1, 2)
        key = torch.empty(2, 4, 53, 64, dtype=torch.bfloat16, device=device)
        out, lse = attend(query, key, key[..., :32], return_lse=True)
    assert out.shape == (2, 4, 37, 32) and out.dtype is torch.bfloat16 and out.device.type == device
    assert out.transpose(1, 2).is_contiguous()
    assert lse.shape == (2, 4, 37) and lse.dtype is torch.float32
    meta = [tensor.to("meta") for tensor in case.operands]
    found = attend(*meta)
    assert found.is_meta and found.shape == (2, 4, 37, 32) and found.dtype is case.query.dtype
    assert attend(*(tensor.double() for tensor in meta), return_lse=True)[1].dtype is torch.float64


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("query", lambda t: t[0, 0, 0], fourtap.InputError, "query: expected rank 2 or more"),
        ("key", lambda t: t[0, 0, 0], fourtap.InputError, "key: expected rank 2 or more"),
        ("key", lambda t: t[..., :3], fourtap.InputError, "key: expected shape [2, Hk, Sk, 64]"),
        ("key", lambda t: t[:, :3], fourtap.InputError, "key: expected axes before the positions that broadcast"),
        ("value", lambda t: t[:, :, 1:], fourtap.InputError, "value: expected shape"),
        ("query", lambda t: t[:, :3], fourtap.InputError, "key: expected axes before the positions that broadcast"),
        ("value", lambda t: t.double(), fourtap.DTypeError, "value: expected element type"),
    ],
)
def test_wrong_shapes_are_seen_without_numbers(name: str, change: Any, error: type[Exception], message: str) -> None:
    operands = dict(zip(("query", "key", "value"), problem(8, device="cpu").operands, strict=True))
    meta = {key: tensor.to("meta") for key, tensor in operands.items()}
    with pytest.raises(error) as caught:
        attend(**meta | {name: change(meta[name])})
    assert message in str(caught.value)


def test_modes_see_the_operator(device: str) -> None:
    operands = problem(9, device=device).operands
    seen: list[str] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    expected = attend(*operands)
    with Record():
        found = attend(*operands)
    assert torch.equal(found, expected) and seen == ["fourtap.dense.default"]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_is_right(device: str) -> None:
    query, key, value = problem(10, device=device, batch=(3, 2)).operands
    expected = attend(query, key, value, is_causal=True)
    found = torch.vmap(lambda query, key, value: attend(query, key, value, is_causal=True))(query, key, value)
    assert torch.equal(found, expected)
