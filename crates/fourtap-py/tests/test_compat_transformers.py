from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from torch import Tensor, nn
from watching import shapes_of_calls

import fourtap.nn
from fourtap.compat import transformers as compat

transformers = pytest.importorskip("transformers")
if not transformers.utils.is_torch_available():
    pytest.skip("this transformers does not take this PyTorch", allow_module_level=True)

WITH_THE_LAYER = (
    "deformable_detr",
    "grounding_dino",
    "lw_detr",
    "mm_grounding_dino",
    "omdet_turbo",
    "pp_doclayout_v2",
    "pp_doclayout_v3",
    "pp_doclayout_v4",
    "rf_detr",
    "rt_detr",
)
WITH_THE_FUNCTION = ("mask2former", "oneformer")
# RT-DETRv2 calls it by its name; the layers of the others hold it.
WITH_THE_SECOND_FUNCTION = ("rt_detr_v2", "d_fine", "deimv2")


def modeling(family: str) -> ModuleType:
    return pytest.importorskip(f"transformers.models.{family}.modeling_{family}", exc_type=ImportError)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    compat.unpatch()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The spatial shapes of every call of the operator."""
    return shapes_of_calls(monkeypatch)


def operands(problem: reference.Problem) -> dict[str, Tensor]:
    return dict(zip(("value", "locations", "weights"), problem.differentiable, strict=True))


@pytest.mark.parametrize("family", WITH_THE_LAYER)
def test_layer_computes_what_that_of_transformers_does(family: str, device: str, calls: list[Any]) -> None:
    problem = reference.problem(1, device=device)
    arguments = (
        problem.value,
        problem.shapes_tensor,
        problem.shapes,
        problem.level_start_index,
        problem.locations,
        problem.weights,
        64,
    )
    expected = modeling(family).MultiScaleDeformableAttention()(*arguments)
    found = compat.MultiScaleDeformableAttention()(*arguments)
    reference.assert_close(found, expected, 1e-12)
    reference.assert_same_gradients(found, expected, operands(problem), problem.grad_out, 1e-11)
    assert calls == [problem.shapes]


def test_layer_does_without_the_list(device: str) -> None:
    problem = reference.problem(2, device=device, shapes=((3, 4), (3, 4)))
    found = compat.MultiScaleDeformableAttention()(
        problem.value,
        problem.shapes_tensor,
        None,
        problem.level_start_index.flip(0),
        problem.locations,
        problem.weights,
        64,
    )
    value = problem.value.roll(12, dims=1)
    expected = reference.ms_deform_attn(value, problem.shapes, problem.locations, problem.weights)
    reference.assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("family", WITH_THE_FUNCTION)
@pytest.mark.parametrize("listed", [False, True])
def test_function_computes_what_that_of_transformers_does(family: str, listed: bool, device: str) -> None:
    problem = reference.problem(3, device=device)
    shapes = problem.shapes if listed else problem.shapes_tensor
    arguments = (problem.value, shapes, problem.locations, problem.weights)
    expected = modeling(family).multi_scale_deformable_attention(*arguments)
    found = compat.multi_scale_deformable_attention(*arguments)
    reference.assert_close(found, expected, 1e-12)
    reference.assert_same_gradients(found, expected, operands(problem), problem.grad_out, 1e-11)


def flat_problem(
    seed: int, device: str, points: list[int], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, list[tuple[int, int]], Tensor, Tensor]:
    """Value, shapes, locations ``[N, Q, M, sum(P), 2]`` and weights ``[N, Q, M, sum(P)]``."""
    problem = reference.problem(seed, device=device, dtype=dtype, points=max(points))

    def flattened(tensor: Tensor) -> Tensor:
        levels = [tensor.detach()[:, :, :, level, :count] for level, count in enumerate(points)]
        return torch.cat(levels, dim=3).requires_grad_()

    return problem.value, problem.shapes, flattened(problem.locations), flattened(problem.weights)


@pytest.mark.parametrize("family", WITH_THE_SECOND_FUNCTION)
@pytest.mark.parametrize("method", ["default", "discrete"])
@pytest.mark.parametrize("points", [[4, 4, 4], [1, 1, 1], [3, 6, 2], [1, 2, 4], [5, 0, 1]])
def test_second_function_computes_what_that_of_transformers_does(
    family: str, method: str, points: list[int], device: str
) -> None:
    value, shapes, locations, weights = flat_problem(4, device, points)
    expected = modeling(family).multi_scale_deformable_attention_v2(value, shapes, locations, weights, points, method)
    found = compat.multi_scale_deformable_attention_v2(value, shapes, locations, weights, points, method)
    reference.assert_close(found, expected, 1e-12)
    inputs = {"value": value, "weights": weights}
    if method == "default":
        inputs["locations"] = locations
    reference.assert_same_gradients(found, expected, inputs, torch.randn_like(expected), 1e-11)


def test_discrete_sampling_has_no_gradient_by_locations(device: str) -> None:
    value, shapes, locations, weights = flat_problem(5, device, [2, 3, 1])
    found = compat.multi_scale_deformable_attention_v2(value, shapes, locations, weights, [2, 3, 1], "discrete")
    (gradient,) = torch.autograd.grad(found.sum(), [locations], allow_unused=True)
    assert gradient is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_discrete_sampling_rounds_as_transformers_does(dtype: torch.dtype, device: str) -> None:
    theirs = modeling("rt_detr_v2").multi_scale_deformable_attention_v2
    height, width = 37, 61
    # Pixels that are told apart by their values, and locations on, and next to, every border between two of them.
    value = torch.arange(height * width, device=device, dtype=torch.float64).reshape(1, -1, 1, 1)
    x, y = (torch.arange(-3, size + 4, device=device, dtype=torch.float64) / size for size in (width, height))
    exact = torch.cartesian_prod(x, y).to(dtype)
    step = torch.finfo(dtype).eps
    locations = torch.cat([exact, exact * (1 + step), exact * (1 - step)])
    # In the original, adding half a pixel makes a border of a pixel's centre.
    locations = torch.cat([locations, locations + 0.5 / width])
    count = len(locations)
    locations = locations.reshape(1, count, 1, 1, 2)
    weights = torch.ones(1, count, 1, 1, device=device, dtype=dtype)
    expected = theirs(value.float(), [(height, width)], locations, weights, [1], "discrete")
    found = compat.multi_scale_deformable_attention_v2(
        value.float(), [(height, width)], locations, weights, [1], "discrete"
    )
    assert torch.equal(found.round(), expected.float())
    # Not between two pixels, but at the centre of one.
    reference.assert_close(found, expected.float(), 1e-5)


def test_padding_does_not_reach_the_image(device: str) -> None:
    # A level that nothing can touch without being seen, not even with weight zero. It has one point, outside; the two
    # that are added to it must be outside too.
    value = torch.tensor([torch.nan, 3.0], device=device).reshape(1, 2, 1, 1)
    locations = torch.full((1, 1, 1, 4, 2), 0.5, device=device)
    locations[..., 0, :] = 7.0
    weights = torch.ones(1, 1, 1, 4, device=device)
    found = compat.multi_scale_deformable_attention_v2(value, [(1, 1), (1, 1)], locations, weights, [1, 3])
    assert found.item() == 9.0


def test_second_function_refuses_what_makes_no_sense(device: str) -> None:
    value, shapes, locations, weights = flat_problem(6, device, [1, 2, 1])
    with pytest.raises(fourtap.InputError, match=r"^num_points_list: expected 3 numbers, found 2$"):
        compat.multi_scale_deformable_attention_v2(value, shapes, locations, weights, [2, 2])
    with pytest.raises(fourtap.InputError, match=r"^method: expected 'default' or 'discrete', found 'nearest'$"):
        compat.multi_scale_deformable_attention_v2(value, shapes, locations, weights, [1, 2, 1], "nearest")


@pytest.mark.parametrize("method", ["default", "discrete"])
def test_second_function_compiles_in_one_graph(method: str, device: str) -> None:
    points = [3, 6, 2]
    value, shapes, locations, weights = flat_problem(7, device, points, torch.float32)
    function = compat.multi_scale_deformable_attention_v2
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    arguments = (value, shapes, locations, weights, points, method)
    reference.assert_close(compiled(*arguments), function(*arguments), 1e-6)


def test_patch_finds_every_family() -> None:
    installed = []
    for family in compat.FAMILIES:
        try:
            importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        except ImportError:
            continue
        installed.append(family)
    names = compat.patch()
    for family in installed:
        assert any(name.startswith(f"transformers.models.{family}.") for name in names), family
    assert compat.patch() == names
    everything = {*WITH_THE_LAYER, *WITH_THE_FUNCTION, *WITH_THE_SECOND_FUNCTION}
    assert set(compat.FAMILIES) == everything


def test_no_family_of_the_installed_transformers_is_forgotten() -> None:
    models = importlib.import_module("transformers.models")
    users = set()
    for folder in models.__path__:
        for file in Path(folder).glob("*/modeling_*.py"):
            source = file.read_text(encoding="utf-8")
            if "class MultiScaleDeformableAttention(" in source or "def multi_scale_deformable_attention" in source:
                users.add(file.parent.name)
    assert users and users <= set(compat.FAMILIES)


def test_unpatch_restores_everything() -> None:
    def state() -> dict[tuple[str, str], object]:
        found = {}
        for family in compat.FAMILIES:
            try:
                module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
            except ImportError:
                continue
            for name, thing in vars(module).items():
                if isinstance(thing, type) and "eformable" in name:
                    found[family, name] = dict(vars(thing))
                elif inspect.isfunction(thing) and "deformable" in name:
                    found[family, name] = (thing, thing.__code__)
        return found

    before = state()
    compat.patch()
    assert state() != before
    compat.unpatch()
    assert state() == before


def test_patched_layers_call_fourtap_also_if_they_existed_before(device: str, calls: list[Any]) -> None:
    problem = reference.problem(8, device=device)
    arguments = (problem.value, problem.shapes_tensor, problem.shapes, None, problem.locations, problem.weights, 64)
    layer = modeling("rt_detr").MultiScaleDeformableAttention()
    expected = layer(*arguments)
    compat.patch()
    reference.assert_close(layer(*arguments), expected, 1e-12)
    assert len(calls) == 1
    modeling("rt_detr").MultiScaleDeformableAttention()(*arguments)
    assert len(calls) == 2
    compat.unpatch()
    layer(*arguments)
    assert len(calls) == 2


def build_d_fine_layer(device: str) -> nn.Module:
    """A layer that holds the function; there is nothing else in it but two projections."""
    module = modeling("d_fine")
    config = module.DFineConfig(d_model=12, decoder_attention_heads=3, num_feature_levels=2, decoder_n_points=[3, 1])
    torch.manual_seed(0)
    layer: nn.Module = module.DFineMultiscaleDeformableAttention(config)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return layer.to(device).eval()


@pytest.fixture
def d_fine_layer(device: str) -> nn.Module:
    return build_d_fine_layer(device)


def attend(layer: Callable[..., Any], device: str) -> Tensor:
    torch.manual_seed(9)
    shapes = [(5, 7), (2, 3)]
    result: Tensor = layer(
        torch.randn(2, 6, 12, device=device),
        reference_points=torch.rand(2, 6, 1, 4, device=device),
        encoder_hidden_states=torch.randn(2, 41, 12, device=device),
        spatial_shapes=torch.tensor(shapes, device=device),
        spatial_shapes_list=shapes,
    )[0]
    return result


def test_patched_layers_that_hold_the_function_call_fourtap(
    d_fine_layer: nn.Module, device: str, calls: list[Any]
) -> None:
    expected = attend(d_fine_layer, device)
    compat.patch()
    twins = [
        d_fine_layer,
        build_d_fine_layer(device),
        copy.deepcopy(d_fine_layer),
        pickle.loads(pickle.dumps(d_fine_layer)),
    ]
    for count, twin in enumerate(twins, start=1):
        reference.assert_close(attend(twin, device), expected, 1e-5)
        assert len(calls) == count
    compat.unpatch()
    for twin in twins:
        assert torch.equal(attend(twin, device), expected)
    assert len(calls) == len(twins)


def test_a_function_of_ones_own_stays_in_the_layer(d_fine_layer: nn.Module, device: str, calls: list[Any]) -> None:
    def zeros(value: Tensor, shapes: object, locations: Tensor, *_: object) -> Tensor:
        return value.new_zeros(value.shape[0], locations.shape[1], 12)

    compat.patch()
    d_fine_layer.ms_deformable_attn_core = zeros  # type: ignore[assignment]
    assert not attend(d_fine_layer, device).any()
    assert not calls


def test_a_patched_layer_that_holds_the_function_compiles(d_fine_layer: nn.Module, device: str) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph.code)
        return graph

    expected = attend(d_fine_layer, device)
    try:
        attend(torch.compile(d_fine_layer, fullgraph=True, backend="eager"), device)
    except Exception as error:
        pytest.skip(f"these versions cannot compile the layer as transformers has it: {error}")
    torch._dynamo.reset()
    compat.patch()
    found = attend(torch.compile(d_fine_layer, fullgraph=True, backend=backend), device)
    reference.assert_close(found, expected, 1e-5)
    assert len(graphs) == 1 and "fourtap" in graphs[0] and "grid_sample" not in graphs[0]


def in_a_fresh_process(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_patch_imports_no_model() -> None:
    in_a_fresh_process("""
import sys
import torch
from fourtap.compat import transformers as compat
before = set(sys.modules)
assert compat.patch() == []
assert not [name for name in set(sys.modules) - before if name.startswith("transformers")]
""")


def test_families_imported_after_patch_call_fourtap() -> None:
    in_a_fresh_process("""
import inspect, sys
from fourtap.compat import transformers as compat
compat.patch()
import transformers.models.rt_detr.modeling_rt_detr as modeling
from transformers.models.d_fine.modeling_d_fine import multi_scale_deformable_attention_v2 as held
layer = modeling.MultiScaleDeformableAttention
assert layer.forward is compat.MultiScaleDeformableAttention.forward
assert held.__code__ is compat._forward_attention_v2.__code__
names = compat.patch()
assert f"{modeling.__name__}.MultiScaleDeformableAttention" in names, names
# Whoever asks the module where it came from gets the answer it always had.
assert type(modeling.__loader__).__name__ == type(modeling.__spec__.loader).__name__ == "SourceFileLoader"
assert "class MultiScaleDeformableAttention" in inspect.getsource(modeling)
compat.unpatch()
assert layer.forward is not compat.MultiScaleDeformableAttention.forward
import transformers.models.rf_detr.modeling_rf_detr as another
assert another.MultiScaleDeformableAttention.forward is not compat.MultiScaleDeformableAttention.forward
""")


def test_patch_passes_over_what_takes_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    future = ModuleType("transformers.models.future.modeling_future")

    def multi_scale_deformable_attention(value: Tensor, something_new: int) -> Tensor:
        return value + something_new

    class MultiScaleDeformableAttention(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value

    future.multi_scale_deformable_attention = multi_scale_deformable_attention  # type: ignore[attr-defined]
    future.MultiScaleDeformableAttention = MultiScaleDeformableAttention  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, future.__name__, future)
    names = compat.patch()
    assert not any("future" in name or __name__ in name for name in names)
    assert future.multi_scale_deformable_attention(torch.tensor(1), 2).item() == 3
    assert MultiScaleDeformableAttention()(torch.tensor(1)).item() == 1


def test_patch_finds_families_that_come_later(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    future = ModuleType("transformers.models.future.modeling_future")

    def multi_scale_deformable_attention(
        value: Tensor, value_spatial_shapes: Any, sampling_locations: Tensor, attention_weights: Tensor
    ) -> Tensor:
        return reference.ms_deform_attn(value, value_spatial_shapes, sampling_locations, attention_weights)

    future.multi_scale_deformable_attention = multi_scale_deformable_attention  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, future.__name__, future)
    problem = reference.problem(11, device=device)
    arguments = (problem.value, problem.shapes, problem.locations, problem.weights)
    expected = future.multi_scale_deformable_attention(*arguments)
    compat.patch()
    with monkeypatch.context() as patch:
        patch.setattr(reference, "ms_deform_attn", None)
        found = future.multi_scale_deformable_attention(*arguments)
    reference.assert_close(found, expected, 1e-12)
    compat.unpatch()
    assert torch.equal(future.multi_scale_deformable_attention(*arguments), expected)


def test_patch_says_that_transformers_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(fourtap.Error, match=r"^transformers: expected it to be installed, found"):
        compat.patch()


def test_layer_is_one_that_kernels_takes() -> None:
    """What the package checks of a layer: no constructor, no members but two, the same kinds of arguments."""
    layer = compat.MultiScaleDeformableAttention
    assert layer.__init__ is nn.Module.__init__
    assert set(dir(layer)) - set(dir(nn.Module)) == {"can_torch_compile", "has_backward"}
    assert layer.can_torch_compile and layer.has_backward
    theirs = modeling("deformable_detr").MultiScaleDeformableAttention
    assert list(inspect.signature(layer.forward).parameters) == list(inspect.signature(theirs.forward).parameters)
    for device in ("cpu", "cuda"):
        repository = compat.kernel_mapping()["MultiScaleDeformableAttention"][device]
        assert repository.load() is layer
        assert repository == copy.deepcopy(repository) and hash(repository) == hash(copy.deepcopy(repository))


def test_kernels_puts_the_layer_into_a_model(device: str, calls: list[Any]) -> None:
    kernels = pytest.importorskip("kernels")
    problem = reference.problem(10, device=device)
    arguments = (problem.value, problem.shapes_tensor, problem.shapes, None, problem.locations, problem.weights, 64)
    layer = modeling("deformable_detr").MultiScaleDeformableAttention()
    expected = layer(*arguments)
    with kernels.use_kernel_mapping(compat.kernel_mapping()):
        kernels.kernelize(layer, mode=kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE, device=device)
    reference.assert_close(layer(*arguments), expected, 1e-12)
    assert len(calls) == 1


def test_patch_comes_before_the_layer_of_the_hub() -> None:
    pytest.importorskip("kernels")
    hub_kernels = importlib.import_module("transformers.integrations.hub_kernels")
    if not hasattr(hub_kernels, "get_kernel_mapping_transformers"):
        pytest.skip("this transformers does not use the kernels that is installed")
    name = "MultiScaleDeformableAttention"
    before = hub_kernels.get_kernel_mapping_transformers()[name]
    compat.patch()
    assert hub_kernels.get_kernel_mapping_transformers()[name] == compat.kernel_mapping()[name]
    compat.unpatch()
    assert hub_kernels.get_kernel_mapping_transformers()[name] is before
