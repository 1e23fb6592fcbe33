"""What is read, written and kept of the caller's memory."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import fourtap

LEVELS = [(2, 3), (1, 4)]
Array = NDArray[Any]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def given() -> dict[str, Tensor]:
    return {
        "value": random(2, 10, 2, 4),
        "sampling_locations": random(2, 3, 2, 2, 2, 2).mul(0.3).add(0.5),
        "attention_weights": random(2, 3, 2, 2, 2),
    }


def projected() -> dict[str, Tensor]:
    return {
        "value": random(2, 10, 2, 4),
        "reference_points": random(2, 3, 2, 2).mul(0.3).add(0.5),
        "sampling_offsets": random(2, 3, 2, 4, 2),
        "attention_logits": random(2, 3, 2, 4),
        "value_mask": torch.rand(2, 10) < 0.3,
    }


def in_one() -> dict[str, Tensor]:
    tensors = projected()
    parts = (tensors["sampling_offsets"].flatten(2), tensors["attention_logits"].flatten(2))
    return tensors | {"sampling_offsets": torch.cat(parts, -1), "attention_logits": None}  # type: ignore[dict-item]


def dense() -> dict[str, Tensor]:
    return {
        "query": random(2, 3, 5, 4),
        "key": random(2, 3, 7, 4),
        "value": random(2, 3, 7, 6),
        "attn_mask": random(2, 1, 5, 7),
    }


def call_given(**operands: Any) -> Any:
    return fourtap.ms_deform_attn(spatial_shapes=LEVELS, **operands)


def call_backward(**operands: Any) -> Any:
    return fourtap.ms_deform_attn_backward(spatial_shapes=LEVELS, **operands)


def call_projected(**operands: Any) -> Any:
    return fourtap.ms_deform_attn_from_projections(spatial_shapes=LEVELS, **operands)


CALLS: dict[str, tuple[Any, Any]] = {
    "given": (given, call_given),
    "backward": (lambda: given() | {"grad_out": random(2, 3, 8)}, call_backward),
    "projected": (projected, call_projected),
    "in one": (in_one, call_projected),
    "dense": (dense, fourtap.scaled_dot_product_attention),
}


class Guarded:
    """Memory between two pages that nobody may touch: a read outside ends the process."""

    def __init__(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        self.bytes = -(-nbytes // page) * page
        self.memory = mmap.mmap(-1, self.bytes + 2 * page)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + page
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for address in (self.start - page, self.start + self.bytes):
            assert protect(address, page, 0) == 0

    def copy(self, array: Array, at_the_end: bool) -> Array:
        """The array, its last byte before the second page or its first after the first one."""
        offset = self.bytes - array.nbytes if at_the_end else 0
        room = (ctypes.c_char * array.nbytes).from_address(self.start + offset)
        copied = np.frombuffer(room, array.dtype).reshape(array.shape)
        copied[...] = array
        return copied


def reversed_axes(rank: int) -> list[tuple[slice, ...]]:
    choices = itertools.product((slice(None), slice(None, None, -1)), repeat=rank)
    return [choice for choice in choices if any(part.step for part in choice)]


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as Linux does it")
@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_reversed_axes_are_read_where_they_lie(call: str, at_the_end: bool) -> None:
    """Every choice of axes of every operand, between pages that must not be read."""
    make, attend = CALLS[call]
    operands = {name: tensor if tensor is None else tensor.numpy() for name, tensor in make().items()}
    expected = attend(**operands)
    for name, array in operands.items():
        if array is None:
            continue
        guarded = Guarded(array.nbytes)
        for axes in reversed_axes(array.ndim):
            backwards = guarded.copy(np.ascontiguousarray(array[axes]), at_the_end)[axes]
            assert min(backwards.strides) < 0
            found = attend(**operands | {name: backwards})
            several = isinstance(found, tuple)
            for one, other in zip(found if several else [found], expected if several else [expected], strict=True):
                np.testing.assert_array_equal(one, other, err_msg=f"{name} {axes}")


def with_out() -> list[Any]:
    return [pytest.param(*CALLS[name], id=name) for name in ("given", "projected", "in one")]


@pytest.mark.parametrize(("make", "attend"), with_out())
@pytest.mark.parametrize("autocast", [False, True])
def test_writing_to_out_is_noticed_by_who_has_saved_it(make: Any, attend: Any, autocast: bool) -> None:
    operands = make()
    out = torch.zeros(2, 3, 8, dtype=torch.float64)
    leaf = torch.ones(2, 3, 8, dtype=torch.float64, requires_grad=True)
    product = leaf * out
    version = out._version
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert attend(**operands, out=out) is out
    assert out._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize(("make", "attend"), with_out())
def test_out_is_refused_where_pytorch_refuses_it(make: Any, attend: Any) -> None:
    operands = make()
    leaf = torch.zeros(2, 3, 8, dtype=torch.float64, requires_grad=True)
    for out in (leaf, leaf * 1):
        with pytest.raises(fourtap.InputError, match="out: expected a tensor that requires no gradient"):
            attend(**operands, out=out)
    assert not leaf.any()
    with torch.inference_mode():
        inference = torch.zeros(2, 3, 8, dtype=torch.float64)
    with pytest.raises(fourtap.InputError, match=r"out: expected .*inference"):
        attend(**operands, out=inference)
    with torch.no_grad():
        assert torch.equal(attend(**operands, out=leaf), attend(**operands))
    with torch.inference_mode():
        assert torch.equal(attend(**operands, out=inference), attend(**operands))


@pytest.mark.parametrize(("make", "attend"), with_out())
def test_out_takes_no_memory_from_its_lazy_copies(make: Any, attend: Any) -> None:
    operands = make()
    kept = torch.zeros(2, 3, 8, dtype=torch.float64)
    out = torch._lazy_clone(kept)
    attend(**operands, out=out)
    assert not kept.any() and torch.equal(out, attend(**operands))


@pytest.mark.parametrize("kind", [list, np.array])
@pytest.mark.parametrize("operator", ["given", "projected"])
def test_arguments_may_change_before_backward(operator: str, kind: Any) -> None:
    """Lists and arrays count as they are at the call."""
    operands = given() if operator == "given" else projected() | {"reference_points": random(2, 3, 2, 4).abs()}
    leaves = [tensor.requires_grad_() for tensor in operands.values() if tensor.is_floating_point()]
    found = []
    for change in (False, True):
        levels, starts, points, scale = kind([[2, 3], [1, 4]]), kind([0, 6]), [2, 2], [0.3, 0.7]
        arguments = {"spatial_shapes": levels, "level_start_index": starts, **operands}
        if operator == "given":
            out = fourtap.ms_deform_attn(**arguments)
        else:
            out = fourtap.ms_deform_attn_from_projections(**arguments, points_per_level=points, box_scale=scale)
        if change:
            levels[0], levels[1] = [3, 2], [4, 1]
            starts[0], starts[1] = 4, 0
            points[:], scale[:] = [1, 3], [9.0, 9.0]
        found.append(torch.autograd.grad(out.square().sum(), leaves))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_nearest_sampling_keeps_the_gradient_of_logits_beside_offsets(way: str) -> None:
    def attend(**operands: Any) -> Tensor:
        return fourtap.ms_deform_attn_from_projections(
            spatial_shapes=LEVELS, points_per_level=2, sampling="nearest", **operands
        )

    call = attend if way == "eager" else torch.compile(attend, backend="aot_eager")
    tensors = projected()
    both = torch.cat([tensors["sampling_offsets"].flatten(2), tensors["attention_logits"].flatten(2)], -1)
    logits = tensors["attention_logits"].clone().requires_grad_()
    attend(**tensors | {"attention_logits": logits}).square().sum().backward()
    both.requires_grad_()
    out = call(**tensors | {"sampling_offsets": both, "attention_logits": None})
    out.square().sum().backward()
    assert both.grad is not None and logits.grad is not None and logits.grad.any()
    assert not both.grad[..., :16].any()
    torch.testing.assert_close(both.grad[..., 16:], logits.grad.flatten(2))


@pytest.mark.parametrize("way", ["eager", "compiled"])
@pytest.mark.parametrize(("make", "attend"), with_out())
def test_the_gradient_of_one_image_has_the_order_of_grid_sample(make: Any, attend: Any, way: str) -> None:
    """PyTorch 2.15's batch norm answers others wrongly: docs/drop-ins.md."""
    operands = {name: tensor if tensor is None else tensor[:1] for name, tensor in make().items()}
    norm = torch.nn.BatchNorm2d(8).double()

    def forward(value: Tensor) -> Tensor:
        return attend(**operands | {"value": value})  # type: ignore[no-any-return]

    call = forward if way == "eager" else torch.compile(forward, backend="aot_eager")
    image = torch.randn(1, 8, 2, 5, dtype=torch.float64, requires_grad=True)
    normed = norm(image)
    value = normed.flatten(2).transpose(1, 2).unflatten(2, (2, 4))
    found = torch.autograd.grad(call(value).square().sum(), [image, *norm.parameters()], retain_graph=True)

    leaf = value.detach().requires_grad_()
    (by_value,) = torch.autograd.grad(forward(leaf).square().sum(), leaf)
    by_normed = by_value.flatten(2).transpose(1, 2).unflatten(2, (2, 5)).contiguous()
    expected = torch.autograd.grad(normed, [image, *norm.parameters()], by_normed)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
