"""Ring attention in one process: what needs no others. Several are in test_distributed_tensors.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

pytest.importorskip("torch.distributed.tensor.experimental", reason="PyTorch before 2.5 has no register_sharding")

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import fourtap
from fourtap.distributed import ring_attention, shard_sequence, unshard_sequence


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A group of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def tensors(*, heads: int = 4, key_heads: int = 4, length: int = 6, keys: int = 6) -> list[Tensor]:
    return [torch.randn(2, heads, length, 8), torch.randn(2, key_heads, keys, 8), torch.randn(2, key_heads, keys, 5)]


def test_it_asks_for_a_process_group() -> None:
    assert not distributed.is_initialized()
    with pytest.raises(fourtap.InputError, match=r"group: expected processes that have called .*init_process_group"):
        ring_attention(*tensors())


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.usefixtures("alone")
def test_a_ring_of_one_gives_the_bits_of_the_operator(is_causal: bool) -> None:
    operands = [tensor.requires_grad_() for tensor in tensors(key_heads=2)]
    options: dict[str, Any] = {"is_causal": is_causal, "scale": 0.5, "enable_gqa": True}
    found, expected = ring_attention(*operands, **options), fourtap.scaled_dot_product_attention(*operands, **options)
    assert torch.equal(found, expected)
    grad_out = torch.randn_like(found)
    gradients = zip(
        torch.autograd.grad(found, operands, grad_out), torch.autograd.grad(expected, operands, grad_out), strict=True
    )
    assert all(torch.equal(one, other) for one, other in gradients)


@pytest.mark.usefixtures("alone")
def test_autocast_casts_to_16_bits() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert ring_attention(*tensors()).dtype is torch.bfloat16


@pytest.mark.usefixtures("alone")
def test_second_derivatives_are_refused() -> None:
    operands = [tensor.requires_grad_() for tensor in tensors()]
    gradient, *_ = torch.autograd.grad(ring_attention(*operands).sum(), operands, create_graph=True)
    with pytest.raises(fourtap.UnsupportedError, match="ring_attention"):
        gradient.sum().backward()


CASES: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "rank": ([torch.zeros(4, 8), *tensors()[1:]], {}, "query: expected rank 4 [B, H, S, D], found rank 2"),
    "array": ([tensors()[0], None, tensors()[2]], {}, "key: expected a plain PyTorch tensor, the part of this process"),
    "channels": ([torch.zeros(2, 4, 6, 7), *tensors()[1:]], {}, "key: expected shape [2, H, S, 7], found [2, 4, 6, 8]"),
    "heads": (tensors(key_heads=2), {}, "key: expected 4 heads, as query has, found 2"),
    "groups": (tensors(key_heads=3), {"enable_gqa": True}, "key: expected a divisor of the 4 heads of query, found 3"),
    "value": ([*tensors()[:2], torch.zeros(2, 4, 5, 5)], {}, "value: expected shape [2, 4, 6] and channels, found"),
    "nothing": (tensors(keys=0), {}, "key: expected one position or more, found shape [2, 4, 0, 8]"),
    "causal": (tensors(keys=8), {"is_causal": True}, "key: expected the 6 positions of query with is_causal, found 8"),
    "odd": (
        tensors(length=5, keys=5),
        {"is_causal": True},
        "query: expected two pieces (shard_sequence), an even length",
    ),
    "group": (
        tensors(),
        {"group": "all"},
        "group: expected a torch.distributed.ProcessGroup (mesh.get_group()) or None",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("alone")
def test_what_does_not_fit_is_refused_by_name(case: str) -> None:
    operands, options, message = CASES[case]
    with pytest.raises(fourtap.InputError, match=re.escape(message)):
        ring_attention(*operands, **options)


@pytest.mark.usefixtures("alone")
def test_other_dtypes_and_dtensors_are_refused() -> None:
    query, key, value = tensors()
    with pytest.raises(fourtap.DTypeError, match=r"value: expected float16, .* found torch.int32"):
        ring_attention(query, key, value.int())
    with pytest.raises(fourtap.DTypeError, match=r"key: expected torch.float32, as query has, found torch.float64"):
        ring_attention(query, key.double(), value)
    sharded = distribute_tensor(query, init_device_mesh("cpu", (1,)), [Replicate()])
    with pytest.raises(fourtap.InputError, match=r"query: expected a plain PyTorch tensor, .* found DTensor"):
        ring_attention(sharded, key, value)


@pytest.mark.usefixtures("alone")
def test_sequences_are_split_and_put_together() -> None:
    whole = torch.arange(24.0).reshape(2, 6, 2)
    assert torch.equal(unshard_sequence(shard_sequence(whole)), whole)
    with pytest.raises(fourtap.InputError, match=r"tensor: expected a multiple of 2 positions .* on axis 1, found 3"):
        shard_sequence(whole[:, :3])
    with pytest.raises(fourtap.InputError, match="tensor: expected two pieces, an even length, on axis 1, found 3"):
        unshard_sequence(whole[:, :3])
    with pytest.raises(fourtap.InputError, match="dim: expected an axis of the tensor, which has 3, found 3"):
        shard_sequence(whole, dim=3)
    # A gradient is not cut off silently.
    with pytest.raises(fourtap.UnsupportedError, match="tensor: expected one that wants no gradient"):
        unshard_sequence(whole.requires_grad_())
