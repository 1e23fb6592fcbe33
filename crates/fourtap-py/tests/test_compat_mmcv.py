from __future__ import annotations

import doctest
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import reference
import stand_ins
import torch
from torch import Tensor

import fourtap
from fourtap import attention
from fourtap.compat import groundingdino, mmcv
from fourtap.compat.mmcv import MultiScaleDeformableAttention

SHAPES = [(6, 9), (3, 4)]
PIXELS = 66
CHANNELS, HEADS, POINTS, BATCH, QUERIES = 12, 3, 2, 2, 7


def build(device: str, seed: int = 0, **options: object) -> MultiScaleDeformableAttention:
    """A module whose layers all matter: as initialised, the query has no influence on anything."""
    torch.manual_seed(seed)
    module = MultiScaleDeformableAttention(CHANNELS, HEADS, len(SHAPES), POINTS, **options)  # type: ignore[arg-type]
    module = module.to(device, torch.float64).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


def random(device: str, *shape: int) -> Tensor:
    return torch.randn(*shape, device=device, dtype=torch.float64).requires_grad_()


def expected_of(
    module: MultiScaleDeformableAttention,
    query: Tensor,
    value: Tensor,
    reference_points: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Without identity, batch first."""
    state = dict(module.named_parameters())
    return reference.module(state, HEADS, POINTS, query, reference_points, value, SHAPES, mask)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("corners", [2, 4])
@pytest.mark.parametrize("listed", [False, True])
def test_result_and_gradients_are_those_of_mmcv(device: str, batch_first: bool, corners: int, listed: bool) -> None:
    module = build(device, batch_first=batch_first)
    query, value = random(device, BATCH, QUERIES, CHANNELS), random(device, BATCH, PIXELS, CHANNELS)
    identity, query_pos = random(device, BATCH, QUERIES, CHANNELS), random(device, BATCH, QUERIES, CHANNELS)
    points = torch.rand(BATCH, QUERIES, len(SHAPES), corners, device=device, dtype=torch.float64).requires_grad_()
    mask = torch.rand(BATCH, PIXELS, device=device) < 0.2

    def ordered(tensor: Tensor) -> Tensor:
        return tensor if batch_first else tensor.transpose(0, 1)

    found = module(
        ordered(query),
        key=torch.full((1,), torch.nan),
        value=ordered(value),
        identity=ordered(identity),
        query_pos=ordered(query_pos),
        key_padding_mask=mask,
        reference_points=points,
        spatial_shapes=SHAPES if listed else torch.tensor(SHAPES, device=device),
        level_start_index=None if listed else torch.tensor([0, 54], device=device),
        whatever_else=True,
    )
    expected = ordered(expected_of(module, query + query_pos, value, points, mask) + identity)
    reference.assert_close(found, expected, 1e-12)
    tensors = {"query": query, "value": value, "identity": identity, "query_pos": query_pos, "points": points}
    everything = {**tensors, **dict(module.named_parameters())}
    reference.assert_same_gradients(found, expected, everything, torch.randn_like(expected), 1e-11)


def test_identity_and_value_are_the_query_unless_given(device: str) -> None:
    module = build(device, batch_first=True)
    query, query_pos = random(device, BATCH, PIXELS, CHANNELS), random(device, BATCH, PIXELS, CHANNELS)
    points = torch.rand(BATCH, PIXELS, len(SHAPES), 2, device=device, dtype=torch.float64)
    found = module(query, query_pos=query_pos, reference_points=points, spatial_shapes=SHAPES)
    # The position is added to neither of them.
    expected = expected_of(module, query + query_pos, query, points) + query
    reference.assert_close(found, expected, 1e-12)


def test_residual_is_an_old_name_of_identity(device: str) -> None:
    module = build(device, batch_first=True)
    query = random(device, BATCH, PIXELS, CHANNELS)
    identity = random(device, BATCH, PIXELS, CHANNELS)
    points = torch.rand(BATCH, PIXELS, len(SHAPES), 2, device=device, dtype=torch.float64)
    new = module(query, identity=identity, reference_points=points, spatial_shapes=SHAPES)
    old = module(query, residual=identity, reference_points=points, spatial_shapes=SHAPES)
    assert torch.equal(new, old)


def test_dropout_spares_the_identity(device: str) -> None:
    module = build(device, dropout=0.5, batch_first=True)
    query = random(device, BATCH, PIXELS, CHANNELS)
    identity = torch.full_like(query, 1000.0)
    points = torch.rand(BATCH, PIXELS, len(SHAPES), 2, device=device, dtype=torch.float64)
    arguments = {"identity": identity, "reference_points": points, "spatial_shapes": SHAPES}
    kept = module(query, **arguments) - identity
    trained = module.train()(query, **arguments) - identity
    dropped = trained.abs() < 1e-9
    assert 0.4 < dropped.double().mean() < 0.6
    reference.assert_close(trained[~dropped], 2 * kept[~dropped], 1e-9)


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_values_may_have_other_channels(device: str, ratio: float) -> None:
    module = build(device, value_proj_ratio=ratio, batch_first=True)
    assert module.value_proj.out_features == module.output_proj.in_features == CHANNELS * ratio
    query = random(device, BATCH, PIXELS, CHANNELS)
    points = torch.rand(BATCH, PIXELS, len(SHAPES), 2, device=device, dtype=torch.float64)
    found = module(query, reference_points=points, spatial_shapes=SHAPES)
    reference.assert_close(found, expected_of(module, query, query, points) + query, 1e-12)


def test_state_dict_is_that_of_mmcv() -> None:
    module = MultiScaleDeformableAttention()
    assert {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()} == {
        "sampling_offsets.weight": (256, 256),
        "sampling_offsets.bias": (256,),
        "attention_weights.weight": (128, 256),
        "attention_weights.bias": (128,),
        "value_proj.weight": (256, 256),
        "value_proj.bias": (256,),
        "output_proj.weight": (256, 256),
        "output_proj.bias": (256,),
    }
    assert (module.dropout.p, module.batch_first, module.im2col_step) == (0.1, False, 64)
    assert (module.embed_dims, module.num_heads, module.num_levels, module.num_points) == (256, 8, 4, 4)


def test_init_weights_starts_again(device: str) -> None:
    module = build(device)
    module.init_weights()
    assert not module.sampling_offsets.weight.any()
    assert not module.attention_weights.weight.any() and not module.attention_weights.bias.any()
    # Three heads look into three directions; the larger coordinate of point p is p + 1 pixels.
    offsets = module.sampling_offsets.bias.detach().reshape(HEADS, len(SHAPES), POINTS, 2)
    reference.assert_close(offsets[0, 0], torch.tensor([[1.0, 0.0], [2.0, 0.0]]), 1e-6)
    steps = torch.tensor([1.0, 2.0]).expand(HEADS, len(SHAPES), POINTS)
    reference.assert_close(offsets.abs().amax(-1), steps, 1e-6)
    assert module.value_proj.weight.abs().max() <= (6 / (2 * CHANNELS)) ** 0.5


def test_arguments_that_make_no_sense_are_refused(device: str) -> None:
    with pytest.raises(fourtap.InputError, match=r"^embed_dims: expected a multiple of num_heads = 7, found 256$"):
        MultiScaleDeformableAttention(num_heads=7)
    for name in ("embed_dims", "num_heads", "num_levels", "num_points"):
        with pytest.raises(fourtap.InputError, match=rf"^{name}: expected at least 1, found 0$"):
            MultiScaleDeformableAttention(**{name: 0})
        with pytest.raises(fourtap.DTypeError, match=rf"^{name}: expected an integer, found True$"):
            MultiScaleDeformableAttention(**{name: True})
    with pytest.raises(fourtap.InputError, match=r"^value_proj_ratio: .* found 0.0, which makes 0$"):
        MultiScaleDeformableAttention(value_proj_ratio=0.0)
    with pytest.raises(fourtap.InputError, match=r"^value_proj_ratio: .* num_heads = 8, found 0.3, which makes 76$"):
        MultiScaleDeformableAttention(value_proj_ratio=0.3)
    module = build(device, batch_first=True)
    query = random(device, BATCH, PIXELS, CHANNELS)
    points = torch.rand(BATCH, PIXELS, len(SHAPES), 3, device=device)
    with pytest.raises(fourtap.InputError, match=r"^reference_points: expected shape \[2, 66, 2, 2 or 4\]"):
        module(query, reference_points=points, spatial_shapes=SHAPES)
    with pytest.raises(fourtap.InputError, match=r"^spatial_shapes: expected a tensor, found None$"):
        module(query, reference_points=points[..., :2])
    with pytest.raises(fourtap.InputError, match=r"^reference_points: expected a tensor, found None$"):
        module(query, spatial_shapes=SHAPES)


def test_functions_are_the_operator(device: str) -> None:
    problem = reference.problem(1, device=device)
    expected = reference.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights)
    levels = (problem.shapes_tensor, problem.level_start_index)
    found = mmcv.MultiScaleDeformableAttnFunction.apply(
        problem.value, *levels, problem.locations, problem.weights, torch.tensor(64)
    )
    reference.assert_close(found, expected, 1e-12)
    operands = dict(zip(("value", "locations", "weights"), problem.differentiable, strict=True))
    reference.assert_same_gradients(found, expected, operands, problem.grad_out, 1e-11)
    found = mmcv.multi_scale_deformable_attn_pytorch(
        problem.value, problem.shapes_tensor, problem.locations, problem.weights
    )
    reference.assert_close(found, expected, 1e-12)


def fails(*_: object) -> Tensor:
    raise AssertionError("the original was called")


@pytest.fixture(params=["mmcv.ops", "detrex.layers"])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The module of mmcv or detrex; its extension fails."""
    files = stand_ins.MMCV if request.param == "mmcv.ops" else stand_ins.DETREX_BUILT
    with stand_ins.installed(files, tmp_path):
        yield importlib.import_module(f"{request.param}.multi_scale_deform_attn")
        mmcv.unpatch()


def test_patch_reaches_everybody_who_imported_the_functions(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    user: Any = ModuleType("model_of_a_user")
    original = installed.multi_scale_deformable_attn_pytorch
    autograd_function = installed.MultiScaleDeformableAttnFunction
    user.multi_scale_deformable_attn_pytorch = original
    monkeypatch.setitem(sys.modules, "model_of_a_user", user)
    names = mmcv.patch()
    assert f"{installed.__name__}.MultiScaleDeformableAttnFunction" in names
    assert f"{installed.__name__}.multi_scale_deformable_attn_pytorch" in names
    assert "model_of_a_user.multi_scale_deformable_attn_pytorch" in names
    assert installed.MultiScaleDeformableAttnFunction is mmcv.MultiScaleDeformableAttnFunction
    assert installed.multi_scale_deformable_attn_pytorch is mmcv.multi_scale_deformable_attn_pytorch
    assert user.multi_scale_deformable_attn_pytorch is mmcv.multi_scale_deformable_attn_pytorch
    assert mmcv.patch() == names

    mmcv.unpatch()
    assert installed.MultiScaleDeformableAttnFunction is autograd_function
    assert installed.multi_scale_deformable_attn_pytorch is original
    assert user.multi_scale_deformable_attn_pytorch is original


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("corners", [2, 4])
def test_patched_modules_compute_from_their_projections(
    installed: Any, device: str, batch_first: bool, corners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = build(device, batch_first=batch_first)
    theirs = installed.MultiScaleDeformableAttention(CHANNELS, HEADS, len(SHAPES), POINTS, batch_first)
    for name, layer in ours.named_children():
        setattr(theirs, name, layer)
    query, value = random(device, QUERIES, BATCH, CHANNELS), random(device, PIXELS, BATCH, CHANNELS)
    if batch_first:
        query, value = (tensor.detach().transpose(0, 1).requires_grad_() for tensor in (query, value))
    points = torch.rand(BATCH, QUERIES, len(SHAPES), corners, device=device, dtype=torch.float64).requires_grad_()
    named = {
        "value": value,
        "query_pos": random(device, *query.shape),
        "key_padding_mask": torch.rand(BATCH, PIXELS, device=device) < 0.2,
        "reference_points": points,
        "spatial_shapes": torch.tensor(SHAPES, device=device),
        "level_start_index": torch.tensor([0, 54], device=device),
    }
    names = mmcv.patch()
    assert f"{installed.__name__}.MultiScaleDeformableAttention.forward" in names
    assert mmcv.patch() == names
    # What samples at given locations is not called.
    with monkeypatch.context() as patch:
        patch.setattr(attention, "ms_deform_attn", fails)
        found = theirs(query, **named)
    expected = ours(query, **named)
    reference.assert_close(found, expected, 1e-12)
    tensors = {"query": query, "value": value, "points": points, **dict(theirs.named_parameters())}
    reference.assert_same_gradients(found, expected, tensors, torch.randn_like(expected), 1e-11)
    # By position only the original knows which argument is which; it calls the functions.
    by_position = theirs(query, None, value, None, *list(named.values())[1:])
    reference.assert_close(by_position, expected, 1e-12)
    mmcv.unpatch()
    monkeypatch.setattr(reference, "ms_deform_attn", fails)
    with pytest.raises(AssertionError, match="the original was called"):
        theirs(query, **named)


def test_unpatch_does_not_undo_what_others_did_since(installed: Any) -> None:
    mmcv.patch()
    installed.multi_scale_deformable_attn_pytorch = other = object()
    mmcv.unpatch()
    assert installed.multi_scale_deformable_attn_pytorch is other


def test_unpatch_reaches_who_imported_the_functions_since(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    later: Any = ModuleType("imported_while_patched")
    ours: Any = ModuleType("user_of_fourtap")
    name, original = "multi_scale_deformable_attn_pytorch", installed.multi_scale_deformable_attn_pytorch
    setattr(ours, name, mmcv.multi_scale_deformable_attn_pytorch)
    monkeypatch.setitem(sys.modules, ours.__name__, ours)
    mmcv.patch()
    setattr(later, name, getattr(installed, name))
    monkeypatch.setitem(sys.modules, later.__name__, later)
    assert getattr(later, name) is mmcv.multi_scale_deformable_attn_pytorch
    mmcv.unpatch()
    assert getattr(later, name) is original
    # Who had ours before wants it.
    assert getattr(ours, name) is mmcv.multi_scale_deformable_attn_pytorch


def test_unpatch_leaves_alone_what_others_have_patched(tmp_path: Path) -> None:
    name = "multi_scale_deformable_attn_pytorch"
    with stand_ins.installed({**stand_ins.MMCV, **stand_ins.GROUNDING_DINO}, tmp_path):
        groundingdino.install()
        mmcv.patch()
        # Its function is replaced by the same as mmcv's.
        groundingdino.patch()
        home = importlib.import_module("groundingdino.models.GroundingDINO.ms_deform_attn")
        mmcv.unpatch()
        assert getattr(home, name) is groundingdino.multi_scale_deformable_attn_pytorch
        groundingdino.unpatch()
        assert getattr(home, name).__module__ == home.__name__


def test_patch_says_that_there_is_nothing_to_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mmcv", "detrex"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(fourtap.Error, match=r"^mmcv or detrex: expected one that can be imported, found none: mmcv"):
        mmcv.patch()


def test_the_example_runs() -> None:
    assert doctest.testmod(mmcv).attempted > 0
    assert doctest.testmod(mmcv).failed == 0
