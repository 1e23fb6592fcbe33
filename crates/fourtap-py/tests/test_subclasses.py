"""Tensors whose memory is not what they show are served rightly or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.masked import masked_tensor
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as pytorch
from torch.testing._internal.two_tensor import TwoTensor

import fourtap

LEVELS = [(2, 3)]


class Overriding(Tensor):
    """Plain memory, which nobody can know."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


class Named(Tensor):
    """Overrides nothing."""


def given() -> dict[str, Tensor]:
    return {
        "value": torch.randn(2, 6, 2, 4),
        "sampling_locations": torch.rand(2, 3, 2, 1, 2, 2),
        "attention_weights": torch.rand(2, 3, 2, 1, 2),
    }


def projected() -> dict[str, Tensor]:
    return {
        "value": torch.randn(2, 6, 2, 4),
        "reference_points": torch.rand(2, 3, 1, 2),
        "sampling_offsets": torch.randn(2, 3, 2, 2, 2),
        "attention_logits": torch.randn(2, 3, 2, 2),
        "value_mask": torch.rand(2, 6) < 0.3,
    }


def dense() -> dict[str, Tensor]:
    return {
        "query": torch.randn(2, 3, 5, 4),
        "key": torch.randn(2, 3, 7, 4),
        "value": torch.randn(2, 3, 7, 4),
        "attn_mask": torch.randn(5, 7),
    }


def call_given(**tensors: Tensor) -> Tensor:
    return fourtap.ms_deform_attn(spatial_shapes=LEVELS, **tensors)


def call_projected(**tensors: Tensor) -> Tensor:
    return fourtap.ms_deform_attn_from_projections(spatial_shapes=LEVELS, **tensors)


OPERATORS: dict[str, tuple[Callable[[], dict[str, Tensor]], Callable[..., Tensor]]] = {
    "given": (given, call_given),
    "projected": (projected, call_projected),
    "dense": (dense, fourtap.scaled_dot_product_attention),
}
EVERY_TENSOR = [(name, tensor) for name, (tensors, _) in OPERATORS.items() for tensor in tensors()]

STRANGE: dict[str, Callable[[Tensor], Tensor]] = {
    "overriding": lambda tensor: tensor.as_subclass(Overriding),
    "wrapper": lambda tensor: TwoTensor(tensor, tensor),
    "masked": lambda tensor: masked_tensor(tensor, torch.ones_like(tensor, dtype=torch.bool)),
    "nested": lambda tensor: torch.nested.nested_tensor(list(tensor)),
    "jagged": lambda tensor: torch.nested.nested_tensor(list(tensor), layout=torch.jagged),
    "sparse": lambda tensor: tensor.to_sparse(),
    "meta": lambda tensor: tensor.to("meta"),
    "without a shape": lambda tensor: torch.nn.UninitializedParameter(),
    "without storage": lambda tensor: (copied := tensor.clone(), copied.untyped_storage().resize_(0))[0],
}
SAME: dict[str, Callable[[Tensor], Tensor]] = {
    "parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    "subclass": lambda tensor: tensor.as_subclass(Named),
    "negative": lambda tensor: (
        torch.conj(torch.complex(tensor, -tensor)).imag if tensor.is_floating_point() else tensor
    ),
    "shared until written": lambda tensor: torch._lazy_clone(tensor),
    "numpy's": lambda tensor: torch.from_numpy(tensor.numpy().copy()),
    "expanded": lambda tensor: tensor[:1].expand(tensor.shape) if (tensor == tensor[:1]).all() else tensor,
    "every other": lambda tensor: tensor.repeat_interleave(2, dim=-1)[..., ::2],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize(("operator", "name"), EVERY_TENSOR)
def test_a_tensor_without_its_own_memory_is_refused_by_name(
    operator: str, name: str, kind: str, requires_grad: bool
) -> None:
    make, call = OPERATORS[operator]
    tensors = make()
    strange = STRANGE[kind](tensors[name])
    if requires_grad:
        other = next(key for key in tensors if key != name)
        tensors[other].requires_grad_()
    # Of tensors in two places, any may be called the wrong one.
    named = "[a-z_]+" if kind == "meta" else name
    with pytest.raises((fourtap.InputError, fourtap.DTypeError), match=f"^{named}: expected"):
        call(**tensors | {name: strange})


@pytest.mark.parametrize("kind", SAME)
@pytest.mark.parametrize(("operator", "name"), EVERY_TENSOR)
def test_memory_that_is_what_it_shows_is_read(operator: str, name: str, kind: str) -> None:
    make, call = OPERATORS[operator]
    tensors = make()
    same = SAME[kind](tensors[name])
    assert torch.equal(torch.as_tensor(same), tensors[name])
    assert torch.equal(call(**tensors | {name: same}), call(**tensors))


@pytest.mark.parametrize("name", ["spatial_shapes", "level_start_index"])
@pytest.mark.filterwarnings("ignore")
def test_levels_without_their_own_memory_are_refused(name: str) -> None:
    levels = {"spatial_shapes": torch.tensor(LEVELS), "level_start_index": torch.tensor([0])}
    for kind in ("overriding", "wrapper", "masked"):
        with pytest.raises(fourtap.InputError, match=f"^{name}: expected"):
            fourtap.ms_deform_attn(**given(), **levels | {name: STRANGE[kind](levels[name])})


def test_the_registered_operator_refuses_them_too() -> None:
    """What a compiled program calls."""
    query, key, value, _ = dense().values()
    with pytest.raises(fourtap.InputError, match=r"^attn_mask: .*CausalBias"):
        torch.ops.fourtap.dense(query, key, value, None, None, None, False, False, False, causal_upper_left(5, 7))
    with pytest.raises(fourtap.InputError, match=r"^value: .*Overriding"):
        tensors = given()
        value = tensors["value"].as_subclass(Overriding)
        arguments = (None, None, [2, 3], tensors["sampling_locations"], tensors["attention_weights"], False)
        torch.ops.fourtap.msda(value, *arguments)


def test_a_gradient_of_a_strange_type_is_refused() -> None:
    tensors = given()
    with pytest.raises(fourtap.InputError, match=r"^grad_out: .*Overriding"):
        grad_out = torch.ones(2, 3, 8).as_subclass(Overriding)
        fourtap.ms_deform_attn_backward(grad_out, spatial_shapes=LEVELS, **tensors)


def compiled(function: Any) -> Any:
    # Not the full graph: Dynamo does not trace how a bias is made.
    return torch.compile(function, backend="aot_eager")


@pytest.mark.parametrize("way", [lambda function: function, compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize("bias", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize("lengths", [(5, 5), (5, 7), (1, 7), (7, 7)])
def test_causal_biases_mask_what_they_stand_for(way: Any, bias: Any, lengths: tuple[int, int]) -> None:
    query, key, value = (torch.randn(2, 3, length, 8, dtype=torch.float64) for length in (*lengths, lengths[1]))
    query.requires_grad_()
    mask = bias(*lengths)._materialize()
    expected = pytorch(query, key, value, mask)
    found = way(lambda *tensors: fourtap.scaled_dot_product_attention(*tensors, bias(*lengths)))(query, key, value)
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(out.square().sum(), query)[0] for out in (found, expected)]
    torch.testing.assert_close(*grads)


def test_a_causal_bias_narrows_a_window_of_its_alignment_and_no_other() -> None:
    query, key, value, _ = dense().values()
    seen = torch.ones(5, 7, dtype=torch.bool).tril(2).triu(1)
    found = fourtap.scaled_dot_product_attention(
        query, key, value, causal_lower_right(5, 7), window=1, causal_alignment="bottom_right"
    )
    torch.testing.assert_close(found, pytorch(query, key, value, seen))
    with pytest.raises(fourtap.InputError, match="attn_mask: expected a causal bias aligned as causal_alignment says"):
        fourtap.scaled_dot_product_attention(query, key, value, causal_lower_right(5, 7), is_causal=True)


@pytest.mark.parametrize("lengths", [(5, 6), (4, 7)])
def test_a_causal_bias_of_other_lengths_is_refused(lengths: tuple[int, int]) -> None:
    query, key, value, _ = dense().values()
    with pytest.raises(fourtap.InputError, match="attn_mask: expected a causal bias for the"):
        fourtap.scaled_dot_product_attention(query, key, value, causal_upper_left(*lengths))


def test_a_mask_of_numpy_is_not_one_of_tensors() -> None:
    query, key, value, _ = dense().values()
    masked = np.ma.masked_array(np.ones((5, 7), np.float32), np.zeros((5, 7), bool))
    with pytest.raises(fourtap.InputError, match="attn_mask"):
        fourtap.scaled_dot_product_attention(query, key, value, masked)
    arrays = [copy.copy(tensor.numpy()) for tensor in (query, key, value)]
    with pytest.raises(fourtap.InputError, match="attn_mask"):
        fourtap.scaled_dot_product_attention(*arrays, masked)
