"""The folder that is laid out as a kernel of Hugging Face's hub."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any

import pytest
import reference
import small_models
import torch
import watching

from fourtap.compat import deformable_detr
from fourtap.compat import transformers as compat

REPOSITORY = "kernels-community/deformable-detr"
LAYER = "MultiScaleDeformableAttention"
kernels: Any = pytest.importorskip("kernels")


@pytest.fixture
def replaces_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", f"{REPOSITORY}={compat.local_kernel_path()}")


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_package_contains_a_variant_for_each_backend(backend: str) -> None:
    folder = compat.local_kernel_path() / "build" / f"torch-{backend}"
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["backend"] == {"type": backend}
    assert metadata["name"] == REPOSITORY.rpartition("/")[2]
    assert (folder / "__init__.py").is_file()


@pytest.mark.parametrize("backend", [None, "cpu"])
def test_programs_that_ask_the_hub_get_ours(replaces_the_hub: None, backend: str | None) -> None:
    kernel = kernels.get_kernel(REPOSITORY, version=1, backend=backend)
    assert kernel.ms_deform_attn_forward is deformable_detr.ms_deform_attn_forward
    assert kernel.ms_deform_attn_backward is deformable_detr.ms_deform_attn_backward
    assert getattr(kernel.layers, LAYER) is compat.MultiScaleDeformableAttention


def test_transformers_gets_ours_where_it_asks_the_hub(replaces_the_hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Which commit a version is, `kernels` asks the hub all the same; tests are offline.
    versions = {1: SimpleNamespace(target_commit="0" * 40)}
    monkeypatch.setattr("kernels._versions._get_available_versions", lambda *_, **__: versions)
    hub_kernels = importlib.import_module("transformers.integrations.hub_kernels")
    repository = hub_kernels.get_kernel_mapping_transformers()[LAYER]["cuda"]
    assert repository.load() is compat.MultiScaleDeformableAttention


def test_without_the_variable_the_hub_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_KERNELS", raising=False)
    # Tests are offline, so there is nothing to be had from it.
    with pytest.raises(Exception, match="deformable-detr"):
        kernels.get_kernel(REPOSITORY, version=1)


@pytest.mark.parametrize("from_variable", [False, True])
@pytest.mark.parametrize("mode", ["INFERENCE", "TRAINING"])
def test_kernelize_puts_it_into_a_layer(
    replaces_the_hub: None, from_variable: bool, mode: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if from_variable:
        repository = kernels.LayerRepository(REPOSITORY, layer_name=LAYER, revision="main")
    else:
        repository = kernels.LocalLayerRepository(compat.local_kernel_path(), layer_name=LAYER)
    modeling: Any = importlib.import_module("transformers.models.deformable_detr.modeling_deformable_detr")
    problem = reference.problem(5, device=device)
    operands = (problem.value, problem.shapes_tensor, problem.shapes, None, problem.locations, problem.weights, 64)
    layer = getattr(modeling, LAYER)()
    expected = layer(*operands)
    modes = kernels.Mode[mode] | kernels.Mode.TORCH_COMPILE
    with kernels.use_kernel_mapping({LAYER: {device: repository}}, inherit_mapping=False):
        kernels.kernelize(layer, mode=modes, device=device, use_fallback=False)
    seen = watching.shapes_of_calls(monkeypatch)
    found = layer(*operands)
    assert len(seen) == 1
    reference.assert_close(found, expected, 1e-12)
    tensors = dict(zip(("value", "locations", "weights"), problem.differentiable, strict=True))
    reference.assert_same_gradients(found, expected, tensors, problem.grad_out, 1e-11)


def test_kernelize_puts_it_into_a_model(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = small_models.deformable_detr()
    model = model.to(device).eval()
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    repository = kernels.LocalLayerRepository(compat.local_kernel_path(), layer_name=LAYER)
    with torch.no_grad():
        expected = model(**inputs).logits
        with kernels.use_kernel_mapping({LAYER: {device: repository}}, inherit_mapping=False):
            kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device=device)
        seen = watching.shapes_of_calls(monkeypatch)
        found = model(**inputs).logits
    # Two layers of the encoder and two of the decoder.
    assert len(seen) == 4
    reference.assert_close(found, expected, 1e-4)
