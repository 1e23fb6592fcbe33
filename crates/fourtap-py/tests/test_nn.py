from __future__ import annotations

import copy
import doctest
import io
import pickle
from typing import Any

import pytest
import reference
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import fourtap.nn
from fourtap import nn
from fourtap.nn import MSDeformAttn

SHAPES = [(6, 9), (3, 4), (1, 1)]
PIXELS = sum(height * width for height, width in SHAPES)
CHANNELS, HEADS, POINTS, BATCH, QUERIES = 12, 3, 2, 2, 7


def build(device: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> MSDeformAttn:
    """A module whose layers all matter: as initialised, the query has no influence on anything."""
    torch.manual_seed(seed)
    module = MSDeformAttn(CHANNELS, len(SHAPES), HEADS, POINTS, device=device, dtype=dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


def inputs(device: str, corners: int = 2, dtype: torch.dtype = torch.float64, seed: int = 1) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    reference_points = torch.rand(BATCH, QUERIES, len(SHAPES), corners, device=device, dtype=dtype)
    return {
        "query": torch.randn(BATCH, QUERIES, CHANNELS, device=device, dtype=dtype).requires_grad_(),
        "reference_points": reference_points.requires_grad_(),
        "input_flatten": torch.randn(BATCH, PIXELS, CHANNELS, device=device, dtype=dtype).requires_grad_(),
    }


def padding(device: str) -> Tensor:
    mask = torch.zeros(BATCH, PIXELS, dtype=torch.bool, device=device)
    mask[0, 40:54] = True
    mask[1, 3] = True
    return mask


def expected_of(module: MSDeformAttn, tensors: dict[str, Tensor], mask: Tensor | None = None) -> Tensor:
    state = dict(module.named_parameters())
    return reference.module(state, HEADS, POINTS, *tensors.values(), SHAPES, mask)


@pytest.mark.parametrize("corners", [2, 4])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_result_and_gradients_are_those_of_deformable_detr(
    device: str, corners: int, padded: bool, listed: bool
) -> None:
    module, tensors = build(device), inputs(device, corners)
    mask = padding(device) if padded else None
    shapes = SHAPES if listed else torch.tensor(SHAPES, device=device)
    starts = None if listed else torch.tensor([0, 54, 66], device=device)
    found = module(**tensors, input_spatial_shapes=shapes, input_level_start_index=starts, input_padding_mask=mask)
    expected = expected_of(module, tensors, mask)
    reference.assert_close(found, expected, 1e-12)
    everything = {**tensors, **dict(module.named_parameters())}
    reference.assert_same_gradients(found, expected, everything, torch.randn_like(expected), 1e-11)


def test_result_is_that_of_deformable_detr_in_float32(device: str) -> None:
    module, tensors = build(device, torch.float32), inputs(device, dtype=torch.float32)
    found = module(*tensors.values(), SHAPES)
    exact = {name: tensor.double() for name, tensor in tensors.items()}
    reference.assert_close(found, expected_of(copy.deepcopy(module).double(), exact), 1e-5)


def test_state_dict_of_deformable_detr_loads(device: str) -> None:
    samples = HEADS * len(SHAPES) * POINTS
    sizes = {
        "sampling_offsets": (samples * 2, CHANNELS),
        "attention_weights": (samples, CHANNELS),
        "value_proj": (CHANNELS, CHANNELS),
        "output_proj": (CHANNELS, CHANNELS),
    }
    state = {}
    for name, (rows, columns) in sizes.items():
        state[f"{name}.weight"] = torch.randn(rows, columns, dtype=torch.float64, device=device)
        state[f"{name}.bias"] = torch.randn(rows, dtype=torch.float64, device=device)
    module = MSDeformAttn(CHANNELS, len(SHAPES), HEADS, POINTS, device=device, dtype=torch.float64)
    assert list(module.state_dict()) == list(state)
    module.load_state_dict(state, strict=True)
    tensors = inputs(device)
    expected = reference.module(state, HEADS, POINTS, *tensors.values(), SHAPES)
    reference.assert_close(module(*tensors.values(), SHAPES), expected, 1e-12)


def test_initial_parameters_are_those_of_deformable_detr_for_the_same_seed(device: str) -> None:
    torch.manual_seed(3)
    module = MSDeformAttn(d_model=8, n_levels=2, n_heads=4, n_points=3, device=device)
    # The layers draw numbers in this order, of which only the last two draws are kept.
    torch.manual_seed(3)
    for features in (48, 24):
        torch.nn.Linear(8, features, device=device)
    value_proj, output_proj = torch.nn.Linear(8, 8, device=device), torch.nn.Linear(8, 8, device=device)
    torch.nn.init.xavier_uniform_(value_proj.weight)
    torch.nn.init.xavier_uniform_(output_proj.weight)

    assert torch.equal(module.value_proj.weight, value_proj.weight)
    assert torch.equal(module.output_proj.weight, output_proj.weight)
    for zero in (
        module.value_proj.bias,
        module.output_proj.bias,
        module.attention_weights.weight,
        module.attention_weights.bias,
        module.sampling_offsets.weight,
    ):
        assert not zero.any()
    directions = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], device=device)
    offsets = module.sampling_offsets.bias.detach().reshape(4, 2, 3, 2)
    for point in range(3):
        for level in range(2):
            reference.assert_close(offsets[:, level, point], directions * (point + 1), 1e-6)


def test_reset_keeps_the_parameters_an_optimizer_holds(device: str) -> None:
    module = build(device)
    before = {name: id(parameter) for name, parameter in module.named_parameters()}
    module._reset_parameters()
    assert {name: id(parameter) for name, parameter in module.named_parameters()} == before
    assert not module.sampling_offsets.weight.any()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, ...]]:
    """The value, reference points, offsets and logits of every call of the operator."""
    calls: list[tuple[Tensor, ...]] = []
    real = fourtap.nn.from_projections

    def watch(operands: Any, *options: Any) -> Tensor:
        value, _, _, references, both, logits, _, _ = operands
        assert logits is None
        heads, end = value.shape[2], both.shape[-1] // 3 * 2
        offsets = both[..., :end].unflatten(-1, (heads, -1, 2))
        calls.append((value, references, offsets, both[..., end:].unflatten(-1, (heads, -1))))
        return real(operands, *options)

    monkeypatch.setattr(fourtap.nn, "from_projections", watch)
    return calls


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_only_layers_round_to_16_bits(device: str, dtype: torch.dtype, seen: list[tuple[Tensor, ...]]) -> None:
    module, tensors = build(device, dtype), inputs(device, dtype=torch.float32)
    points = tensors.pop("reference_points")
    halves = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    module.output_proj = torch.nn.Identity()
    found = module(**halves, reference_points=points, input_spatial_shapes=SHAPES)
    ((value, references, offsets, logits),) = seen
    assert [tensor.dtype for tensor in (value, references, offsets, logits)] == [dtype, torch.float32, dtype, dtype]
    exact = [tensor.double() for tensor in (value, references, offsets, logits)]
    expected = reference.from_projections(exact[0], SHAPES, *exact[1:])
    # Half a unit in the last place of the result.
    reference.assert_close(found, expected, 2**-11 if dtype is torch.float16 else 2**-8)


def test_reference_points_are_float32_under_autocast(device: str, seen: list[tuple[Tensor, ...]]) -> None:
    module, tensors = build(device, torch.float32), inputs(device, dtype=torch.float32)
    with torch.autocast(device, torch.bfloat16):
        found = module(*tensors.values(), SHAPES)
    ((_, references, _, _),) = seen
    assert references.dtype == torch.float32
    exact = {name: tensor.double() for name, tensor in tensors.items()}
    reference.assert_close(found, expected_of(copy.deepcopy(module).double(), exact), 0.03)
    found.float().sum().backward()
    for parameter in module.parameters():
        assert parameter.grad is not None and parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


def test_shapes_as_a_list_and_as_a_tensor_are_bitwise_equal(device: str) -> None:
    module, tensors = build(device, torch.float32), inputs(device, dtype=torch.float32)
    listed = module(*tensors.values(), SHAPES)
    assert torch.equal(listed, module(*tensors.values(), torch.tensor(SHAPES)))
    assert torch.equal(listed, module(*tensors.values(), torch.tensor(SHAPES, device=device)))


def test_reference_points_may_be_shared_by_levels(device: str) -> None:
    module, tensors = build(device), inputs(device, corners=4)
    tensors["reference_points"] = tensors["reference_points"].detach()[:, :, :1]
    repeated = {**tensors, "reference_points": tensors["reference_points"].expand(-1, -1, len(SHAPES), -1)}
    reference.assert_close(module(*tensors.values(), SHAPES), expected_of(module, repeated), 1e-12)


def test_padding_may_hold_anything(device: str) -> None:
    module, tensors = build(device), inputs(device)
    mask = padding(device)
    clean = module(*tensors.values(), SHAPES, None, mask)
    poisoned = {**tensors, "input_flatten": tensors["input_flatten"].detach().masked_fill(mask[..., None], torch.nan)}
    assert torch.equal(module(*poisoned.values(), SHAPES, None, mask), clean)
    assert torch.equal(module(*poisoned.values(), SHAPES, None, mask.byte()), clean)


def test_levels_may_lie_in_any_order(device: str) -> None:
    module, tensors = build(device), inputs(device)
    levels = tensors["input_flatten"].detach().split([height * width for height, width in SHAPES], dim=1)
    backwards = {**tensors, "input_flatten": torch.cat(levels[::-1], dim=1)}
    starts = torch.tensor([13, 1, 0], device=device)
    found = module(*backwards.values(), torch.tensor(SHAPES, device=device), starts)
    reference.assert_close(found, expected_of(module, tensors), 1e-12)


def test_nothing_is_read_from_the_device() -> None:
    # Fake tensors have no numbers at all: whoever asks for one gets an exception.
    with FakeTensorMode():
        module, tensors = build("cpu", torch.float32), inputs("cpu", dtype=torch.float32)
        for shapes in (SHAPES, torch.ones(3, 2, dtype=torch.int64)):
            found = module(*tensors.values(), shapes, None, padding("cpu"))
            assert found.shape == (BATCH, QUERIES, CHANNELS)


def test_nobody_waits_for_the_gpu(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs a GPU")
    module, tensors = build(device, torch.float32), inputs(device, dtype=torch.float32)
    shapes, starts = torch.tensor(SHAPES, device=device), torch.tensor([0, 54, 66], device=device)
    mask = padding(device)

    def train(listed: bool) -> None:
        levels = (SHAPES, None) if listed else (shapes, starts)
        module(*tensors.values(), *levels, mask).sum().backward()

    train(True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        train(True)
        train(False)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_forward_can_be_captured_into_a_cuda_graph(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs a GPU")
    module, tensors = build(device, torch.float32), inputs(device, dtype=torch.float32)
    fixed = {name: tensor.detach() for name, tensor in tensors.items()}
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        module(*fixed.values(), SHAPES)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = module(*fixed.values(), SHAPES)
        for seed in (11, 12):
            for name, tensor in inputs(device, dtype=torch.float32, seed=seed).items():
                fixed[name].copy_(tensor)
            captured.fill_(torch.nan)
            graph.replay()
            assert torch.equal(captured, module(*fixed.values(), SHAPES))


@pytest.mark.parametrize(("corners", "masked", "backend"), [(2, False, "aot_eager"), (4, True, "inductor")])
def test_compiles_in_one_graph(device: str, corners: int, masked: bool, backend: str) -> None:
    module, tensors = build(device, torch.float32), inputs(device, corners, dtype=torch.float32)
    operands = (*tensors.values(), SHAPES, None, padding(device) if masked else None)
    expected = module(*operands)
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    found = compiled(*operands)
    reference.assert_close(found, expected, 1e-6)
    with torch.no_grad():
        reference.assert_close(compiled(*operands), expected, 1e-6)
    everything = {**tensors, **dict(module.named_parameters())}
    reference.assert_same_gradients(found, expected, everything, torch.randn_like(expected), 1e-5)


def test_can_be_exported(device: str) -> None:
    module, tensors = build(device, torch.float32).eval(), inputs(device, dtype=torch.float32)
    arguments = (*(tensor.detach() for tensor in tensors.values()), torch.tensor(SHAPES, device=device))
    exported = torch.export.export(module, arguments)
    reference.assert_close(exported.module()(*arguments), module(*arguments), 1e-6)


def test_pickles_and_copies_compute_the_same(device: str) -> None:
    module, tensors = build(device), inputs(device)
    expected = module(*tensors.values(), SHAPES)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(file, weights_only=False),
    ):
        assert torch.equal(twin(*tensors.values(), SHAPES), expected)


def test_shows_its_numbers() -> None:
    assert "MSDeformAttn(\n  d_model=12, n_levels=3, n_heads=3, n_points=2\n" in repr(build("cpu"))


def test_refuses_channels_that_heads_do_not_divide() -> None:
    with pytest.raises(fourtap.InputError, match=r"^d_model: expected a multiple of n_heads = 8, found 100$"):
        MSDeformAttn(d_model=100, n_heads=8)


@pytest.mark.parametrize("name", ["d_model", "n_levels", "n_heads", "n_points"])
def test_refuses_numbers_that_are_none(name: str) -> None:
    for number in (0, -1):
        with pytest.raises(fourtap.InputError, match=rf"^{name}: expected at least 1, found {number}$"):
            MSDeformAttn(**{name: number})
    for wrong in (True, 4.0, "4", None):
        with pytest.raises(fourtap.DTypeError, match=rf"^{name}: expected an integer, found {wrong!r}$"):
            MSDeformAttn(**{name: wrong})


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("query", (7, 12), "query: expected shape [N, Q, 12], found [7, 12]"),
        ("query", (2, 7, 11), "query: expected shape [N, Q, 12], found [2, 7, 11]"),
        ("input_flatten", (1, 67, 12), "input_flatten: expected shape [2, S, 12], found [1, 67, 12]"),
        ("reference_points", (2, 7, 3, 3), "reference_points: expected shape [2, 7, 3, 2 or 4], found [2, 7, 3, 3]"),
        ("reference_points", (2, 7, 3, 1), "reference_points: expected shape [2, 7, 3, 2 or 4], found [2, 7, 3, 1]"),
        ("reference_points", (2, 7, 2, 2), "reference_points: expected shape [2, 7, 3, 2 or 4], found [2, 7, 2, 2]"),
        ("reference_points", (2, 7, 2), "reference_points: expected shape [2, 7, 3, 2 or 4], found [2, 7, 2]"),
        ("input_padding_mask", (2, 66), "input_padding_mask: expected shape [2, 67], found [2, 66]"),
    ],
)
def test_says_which_tensor_has_a_wrong_shape(device: str, name: str, shape: tuple[int, ...], message: str) -> None:
    module = build(device)
    arguments = {**inputs(device), "input_spatial_shapes": SHAPES, name: torch.zeros(shape, device=device).double()}
    with pytest.raises(fourtap.InputError) as caught:
        module(**arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize("kind", ["list", "tensor"])
def test_says_that_features_do_not_fit_the_levels_by_the_names_it_has(device: str, kind: str) -> None:
    module, tensors = build(device), inputs(device)
    shapes = torch.tensor(SHAPES) if kind == "tensor" else SHAPES
    tensors["input_flatten"] = tensors["input_flatten"][:, :-1]
    with pytest.raises(fourtap.InputError) as caught:
        module(**tensors, input_spatial_shapes=shapes)
    expected = "input_flatten: expected 67 pixels (axis S), the sum over input_spatial_shapes, found 66"
    assert str(caught.value) == expected
    tensors = inputs(device)
    with pytest.raises(fourtap.InputError, match=r"^input_level_start_index\[1\]: expected 54 or more"):
        starts = torch.tensor([0, 5, 66])
        module(**tensors, input_spatial_shapes=SHAPES, input_level_start_index=starts)


def test_says_that_the_number_of_levels_is_wrong(device: str) -> None:
    module, tensors = build(device), inputs(device)
    for shapes in (SHAPES[:2], torch.tensor(SHAPES[:2])):
        with pytest.raises(fourtap.InputError, match=r"^input_spatial_shapes: expected 3 levels, found 2$"):
            module(*tensors.values(), shapes)


def test_the_example_runs() -> None:
    assert doctest.testmod(nn).attempted > 0
    assert doctest.testmod(nn).failed == 0
