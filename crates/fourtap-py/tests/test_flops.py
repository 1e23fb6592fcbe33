"""What ``torch.utils.flop_counter`` counts of our operators."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import reference
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import fourtap
from fourtap.nn import MSDeformAttn


def counted(call: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as mode:
        call()
    return int(mode.get_total_flops())


def test_deformable_attention_is_counted_as_the_cost_model_does(device: str) -> None:
    problem = reference.problem(1, device=device, dtype=torch.float32)
    value, locations, weights = problem.value, problem.locations, problem.weights
    images, queries, heads, levels, points, _ = locations.shape
    forward = 10 * images * queries * heads * levels * points * value.shape[-1]

    def attend() -> Tensor:
        return fourtap.ms_deform_attn(value, problem.shapes, locations, weights)

    with torch.no_grad():
        assert counted(attend) == forward
    assert counted(lambda: attend().backward(problem.grad_out)) == 3 * forward


@pytest.mark.parametrize("frozen", [False, True])
def test_a_module_is_counted_with_its_layers(device: str, frozen: bool) -> None:
    module = MSDeformAttn(d_model=12, n_levels=2, n_heads=3, n_points=2).to(device).requires_grad_(not frozen)
    shapes = [(6, 9), (3, 4)]
    query, features = torch.rand(2, 7, 12, device=device), torch.rand(2, 66, 12, device=device)
    points = torch.rand(2, 7, 2, 2, device=device)
    samples = 2 * 7 * 3 * 2 * 2
    layers = 2 * 12 * (2 * 66 * 12 + 2 * 7 * 12 + 3 * samples)
    found = counted(lambda: module(query, points, features, shapes))
    assert found == layers + 10 * samples * 4


def test_projections_in_one_tensor_are_counted_alike(device: str) -> None:
    value = torch.rand(2, 66, 3, 4, device=device)
    points = torch.rand(2, 7, 2, 2, device=device)
    both = torch.rand(2, 7, 3 * 4 * 3, device=device)
    arguments = (value, None, None, [6, 9, 3, 4], points)
    settings = (None, [], False, [], False, False)
    joined = counted(lambda: torch.ops.fourtap.msda_projected(*arguments, both, None, *settings))
    offsets, logits = both[..., :24].unflatten(-1, (3, 4, 2)), both[..., 24:].unflatten(-1, (3, 4))
    apart = counted(lambda: torch.ops.fourtap.msda_projected(*arguments, offsets, logits, *settings))
    assert joined == apart == 10 * 2 * 7 * 3 * 4 * 4


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "grouped"])
def test_dense_attention_is_counted_as_pytorch_counts_its_own(kind: str) -> None:
    heads = 2 if kind == "grouped" else 4
    query = torch.rand(2, 4, 16, 8, requires_grad=True)
    key, value = (torch.rand(2, heads, 16, 8, requires_grad=True) for _ in range(2))
    options: dict[str, Any] = {
        "plain": {},
        "causal": {"is_causal": True},
        "mask": {"attn_mask": torch.ones(16, 16, dtype=torch.bool)},
        "grouped": {"enable_gqa": True},
    }[kind]

    def both(attend: Callable[..., Any]) -> tuple[int, int]:
        with torch.no_grad():
            forward = counted(lambda: attend(query, key, value, **options))
        return forward, counted(lambda: attend(query, key, value, **options).sum().backward())

    ours = both(fourtap.scaled_dot_product_attention)
    assert ours[0] == 4 * 2 * 4 * 16 * 16 * 8
    assert ours[1] == ours[0] * 7 // 2
    # What PyTorch's CPU kernel does of a mask or grouped heads is made of other operators in some versions.
    if kind in ("plain", "causal"):
        assert ours == both(torch.nn.functional.scaled_dot_product_attention)


def test_the_counter_is_not_imported_for_it() -> None:
    program = """
import sys
import torch
before = "torch.utils.flop_counter" in sys.modules
import fourtap.nn
assert ("torch.utils.flop_counter" in sys.modules) == before
from torch.utils.flop_counter import flop_registry
names = {"msda", "msda_backward", "msda_projected", "msda_projected_backward", "dense", "dense_backward"}
assert all(getattr(torch.ops.fourtap, name) in flop_registry for name in names)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_fourtap_imports_neither_pytorch_nor_the_counter() -> None:
    program = "import sys, fourtap; assert not {'torch', 'torch.utils.flop_counter'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
