"""One process of test_distributed_tensors.py: modules sharded by heads on a mesh of 2 x 2, against whole ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

from fourtap.compat.mmcv import MultiScaleDeformableAttention
from fourtap.distributed import HeadwiseParallel
from fourtap.errors import InputError
from fourtap.nn import MSDeformAttn

LEVELS = [(6, 5), (3, 2)]
IMAGES, QUERIES, CHANNELS, HEADS = 4, 7, 16, 4
PIXELS = sum(height * width for height, width in LEVELS)
INPUTS = ("query", "reference_points", "features")


class Model(nn.Module):
    """An attention somewhere inside, called like Deformable DETR's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MSDeformAttn(CHANNELS, len(LEVELS), HEADS, 3) for _ in range(2)])

    def forward(self, query: Tensor, points: Tensor, features: Tensor, mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            query = query + layer(query, points, features, LEVELS, None, mask)
        return query


class FromMmcv(nn.Module):
    """mmcv's module, which takes everything by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MultiScaleDeformableAttention(CHANNELS, HEADS, len(LEVELS), 3, batch_first=True)])

    def forward(self, query: Tensor, points: Tensor, features: Tensor, mask: Tensor | None) -> Tensor:
        named = {"value": features, "reference_points": points, "key_padding_mask": mask, "spatial_shapes": LEVELS}
        return self.layers[0](query, **named)  # type: ignore[no-any-return]


def model_of(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = kind().double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def problem(boxes: bool, masked: bool) -> tuple[list[Tensor], Tensor | None]:
    torch.manual_seed(1)
    inputs = [
        torch.randn(IMAGES, QUERIES, CHANNELS),
        torch.rand(IMAGES, QUERIES, len(LEVELS), 4 if boxes else 2),
        torch.randn(IMAGES, PIXELS, CHANNELS),
    ]
    return [tensor.double() for tensor in inputs], torch.rand(IMAGES, PIXELS) < 0.2 if masked else None


def results(call: Callable[..., Tensor], model: nn.Module, inputs: list[Tensor], mask: Any) -> dict[str, Tensor]:
    """The result and all gradients of a sum over images."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    model.zero_grad()
    out = call(*leaves, mask)
    (out * torch.linspace(-1, 1, out[0].numel(), dtype=out.dtype).reshape(out[0].shape)).sum().backward()
    found = {"out": out.detach()}
    for name, tensor in [*zip(INPUTS, leaves, strict=True), *model.named_parameters()]:
        assert tensor.grad is not None, name
        found[name] = tensor.grad
    return found


def whole_parameter(gradient: Tensor, group: distributed.ProcessGroup) -> Tensor:
    """Of one that each process of the group has for its images: summed, and heads put together."""
    assert isinstance(gradient, DTensor)
    total = gradient.full_tensor()
    distributed.all_reduce(total, group=group)
    return total


def check(
    kind: type[nn.Module], dp: DeviceMesh, tp: DeviceMesh, boxes: bool, masked: bool, backend: str | None
) -> None:
    whole = model_of(kind)
    inputs, mask = problem(boxes, masked)
    expected = results(whole, whole, inputs, mask)

    model = parallelize_module(copy.deepcopy(whole), tp, {"layers.*": HeadwiseParallel()})
    share = slice(dp.get_local_rank() * 2, dp.get_local_rank() * 2 + 2)
    # Each device really has half of the heads.
    attention = model.layers[0]
    for name, axis in (("value_proj", 0), ("sampling_offsets", 0), ("attention_weights", 0), ("output_proj", 1)):
        weight, other = getattr(attention, name).weight, getattr(whole.layers[0], name).weight
        assert weight.placements == (Shard(axis),), name
        assert weight.to_local().numel() * 2 == other.numel(), name
    call = torch.compile(model, fullgraph=True, backend=backend) if backend else model
    found = results(call, model, [tensor[share] for tensor in inputs], mask if mask is None else mask[share])
    assert found.keys() == expected.keys()
    for name, value in found.items():
        of_images = name in ("out", *INPUTS)
        total = value if of_images else whole_parameter(value, dp.get_group())
        label = f"{kind.__name__}, boxes {boxes}, masked {masked}, {backend}: {name}"
        torch.testing.assert_close(
            total, expected[name][share] if of_images else expected[name], msg=f"{label} differs"
        )


def check_with_fsdp(dp: DeviceMesh, tp: DeviceMesh, backend: str | None) -> None:
    """Heads on one axis of the mesh, shards of the parameters on the other."""
    from torch.distributed.fsdp import fully_shard

    whole = model_of(Model)
    inputs, mask = problem(boxes=False, masked=False)
    expected = results(whole, whole, inputs, mask)
    model = parallelize_module(copy.deepcopy(whole), tp, {"layers.*": HeadwiseParallel()})
    for layer in model.layers:
        fully_shard(layer, mesh=dp)
    fully_shard(model, mesh=dp)
    share = slice(dp.get_local_rank() * 2, dp.get_local_rank() * 2 + 2)
    call = torch.compile(model, backend=backend) if backend else model  # what fully_shard gathers by is not compiled
    found = results(call, model, [tensor[share] for tensor in inputs], mask)
    torch.testing.assert_close(found["out"], expected["out"][share])
    for name, _ in model.named_parameters():
        gradient = found[name]
        assert isinstance(gradient, DTensor)
        # fully_shard takes the mean over processes.
        torch.testing.assert_close(gradient.full_tensor() * 2, expected[name], msg=f"fsdp, {backend}: {name} differs")


def check_checkpoint(tp: DeviceMesh) -> None:
    """Parameters keep their names, and weights of a whole module can be loaded into a sharded one."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    whole = model_of(Model)
    model = parallelize_module(Model().double(), tp, {"layers.*": HeadwiseParallel()})
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, whole.state_dict(), options=options)
    found = get_model_state_dict(model, options=options)
    assert found.keys() == whole.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.state_dict().items())


def check_inputs_of_the_mesh(tp: DeviceMesh) -> None:
    """DTensors go in as they come: here queries of which each device has some."""
    whole = model_of(Model)
    (query, points, features), _ = problem(boxes=False, masked=False)
    layer = copy.deepcopy(whole.layers[0])
    parallelize_module(layer, tp, HeadwiseParallel())
    sharded = DTensor.from_local(query, tp, [Replicate()]).redistribute(placements=[Shard(1)])
    points_everywhere = DTensor.from_local(points, tp, [Replicate()])
    found = layer(sharded, points_everywhere, features, LEVELS)
    torch.testing.assert_close(found, whole.layers[0](query, points, features, LEVELS))


def check_refusals(mesh: DeviceMesh, tp: DeviceMesh) -> None:
    def refused(module: nn.Module, on: DeviceMesh) -> str:
        try:
            HeadwiseParallel()._apply(module, on)
        except InputError as refusal:
            return str(refusal)
        raise AssertionError("not refused")

    found = refused(nn.Linear(2, 2), tp)
    assert found == "module: expected fourtap.nn.MSDeformAttn, found Linear", found
    found = refused(MSDeformAttn(15, 2, 3, 1), tp)
    assert found == "module: expected a number of heads that is a multiple of 2 devices, found 3", found
    found = refused(MSDeformAttn(16, 2, 4, 1), mesh)
    assert found == 'device_mesh: expected one axis, as mesh["tp"] has, found 2', found
    sharded = parallelize_module(MSDeformAttn(16, 2, 4, 1), tp, HeadwiseParallel())
    found = refused(sharded, tp)
    assert found == "module: expected all 4 heads, found 2: it is sharded already", found


def main() -> None:
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    # Once: each slice is another object, and inductor of PyTorch 2.15 may fail where two that are equal meet.
    dp, tp = mesh["dp"], mesh["tp"]
    check_refusals(mesh, tp)
    check_checkpoint(tp)
    check_inputs_of_the_mesh(tp)
    for backend in (None, "aot_eager", "inductor"):
        check(Model, dp, tp, boxes=False, masked=True, backend=backend)
        check(Model, dp, tp, boxes=True, masked=False, backend=backend)
        check(FromMmcv, dp, tp, boxes=False, masked=True, backend=backend)
        check_with_fsdp(dp, tp, backend)
    distributed.destroy_process_group()


main()
