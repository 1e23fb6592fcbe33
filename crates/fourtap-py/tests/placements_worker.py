"""One process of test_distributed_tensors.py: every tensor placed in every way, at random, and PyTorch's own answers.

Usage: placements_worker.py PROBLEMS. Without ``import fourtap.distributed``: calls register the operators themselves.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.nn.functional import scaled_dot_product_attention as pytorch_attention

from fourtap import ms_deform_attn, ms_deform_attn_from_projections, scaled_dot_product_attention

LEVELS = [(3, 2), (2, 1)]
PIXELS = sum(height * width for height, width in LEVELS)


@dataclass
class Problem:
    """A call, its tensors, and what its result and gradients must be; the mask of booleans has no gradient."""

    words: str
    call: Callable[..., Tensor]
    tensors: list[Tensor]
    reference: Callable[..., Tensor] | None = None


def numbers(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float64)


def deformable(chance: random.Random) -> Problem:
    images, queries, heads, points = (
        chance.choice([1, 2, 3, 5]),
        chance.choice([1, 3, 6]),
        chance.choice([1, 2, 3, 6]),
        2,
    )
    samples = (images, queries, heads, len(LEVELS), points)
    tensors = [numbers(images, PIXELS, heads, 2), torch.rand(*samples, 2).double(), numbers(*samples)]
    words = f"msda, {images} images, {queries} queries, {heads} heads"
    return Problem(words, lambda value, *others: ms_deform_attn(value, LEVELS, *others), tensors)


def projected(chance: random.Random) -> Problem:
    images, queries, heads, points = (
        chance.choice([1, 2, 3, 5]),
        chance.choice([1, 3, 6]),
        chance.choice([1, 2, 3, 6]),
        4,
    )
    shared = chance.random() < 0.3
    tensors = [
        numbers(images, PIXELS, heads, 2),
        torch.rand(1 if shared else images, queries, len(LEVELS), chance.choice([2, 4])).double(),
        numbers(images, queries, heads, points, 2),
        numbers(images, queries, heads, points),
    ]
    if chance.random() < 0.5:
        tensors.append(torch.rand(images, PIXELS) < 0.3)

    def call(value: Tensor, *others: Tensor) -> Tensor:
        *operands, mask = others if len(others) == 4 else (*others, None)
        return ms_deform_attn_from_projections(value, LEVELS, *operands, value_mask=mask)

    words = f"projections, {images} images, {queries} queries, {heads} heads, {len(tensors)} tensors, shared {shared}"
    return Problem(words, call, tensors)


def dense(chance: random.Random) -> Problem:
    rank = chance.choice([2, 3, 4, 5])
    axes = [chance.choice([1, 2, 3, 5]) for _ in range(rank - 2)]
    grouped = rank > 2 and chance.random() < 0.25
    of_keys = [*axes[:-1], 1] if grouped else axes
    queries, keys = chance.choice([1, 3, 4, 7]), chance.choice([2, 5])
    tensors = [numbers(*axes, queries, 4), numbers(*of_keys, keys, 4), numbers(*of_keys, keys, 2)]
    causal = chance.random() < 0.3
    kind = chance.choice(["none", "booleans", "bias"])
    if kind != "none" and not causal:  # PyTorch refuses both
        of_mask = [size if chance.random() < 0.6 else 1 for size in (*axes, queries)]
        of_mask = [*of_mask, keys][chance.randrange(rank - 1) :]
        # Every query sees a key: PyTorch has NaN, or 0, for others.
        tensors.append(
            numbers(*of_mask) if kind == "bias" else (torch.rand(of_mask) < 0.6).index_fill(-1, torch.tensor(0), True)
        )
    options = {"is_causal": causal, "enable_gqa": grouped}

    def call(*tensors: Tensor) -> Tensor:
        return scaled_dot_product_attention(*tensors, **options)

    words = f"dense, {[list(tensor.shape) for tensor in tensors]}, {options}"
    return Problem(words, call, tensors, lambda *tensors: pytorch_attention(*tensors, **options))


def placed(chance: random.Random, tensor: Tensor, mesh: DeviceMesh, axis: int | None) -> DTensor:
    """The tensor, of which every process has its part on this axis, or what chance says, alike in all processes."""
    choices: list[Placement] = [Replicate(), *(Shard(axis) for axis in range(tensor.dim()))]
    if tensor.is_floating_point():
        choices.append(Partial())
    if axis is not None:
        choices = [Shard(axis) if axis < tensor.dim() else Replicate()]
    placements = [chance.choice(choices) for _ in range(mesh.ndim)]
    whole = [Replicate() if isinstance(on, Partial) else on for on in placements]
    sharded = distribute_tensor(tensor, mesh, whole)
    local = sharded.to_local().clone()
    for axis, on in enumerate(placements):
        # Parts of a sum that are not alike.
        if isinstance(on, Partial):
            devices, rank = mesh.size(axis), mesh.get_local_rank(axis)
            local = local * (2 * (rank + 1) / (devices * (devices + 1)))
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=sharded.shape, stride=tensor.contiguous().stride()
    )


def gradients(call: Callable[..., Tensor], tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor]:
    """The result, and the wanted gradients of a sum that no two elements of it have the same part in."""
    leaves = [tensor.detach().requires_grad_(want) for tensor, want in zip(tensors, wanted, strict=True)]
    out = call(*leaves)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    if isinstance(out, DTensor):
        weights = distribute_tensor(weights, out.device_mesh, [Replicate()] * out.device_mesh.ndim)
    asked = [leaf for leaf, want in zip(leaves, wanted, strict=True) if want]
    return [out, *torch.autograd.grad((out * weights).sum(), asked)] if asked else [out]


def main() -> None:
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    size = distributed.get_world_size()
    meshes = [init_device_mesh("cpu", (size,))]
    if size == 4:
        meshes.append(init_device_mesh("cpu", (2, 2)))
    for seed in range(int(sys.argv[1])):
        chance = random.Random(seed)
        torch.manual_seed(seed)
        problem = chance.choice([deformable, projected, dense, dense])(chance)
        mesh = chance.choice(meshes)
        # Twice with the same shapes: PyTorch remembers what it decided for the first.
        for _ in range(3):
            wanted = [tensor.is_floating_point() and chance.random() < 0.7 for tensor in problem.tensors]
            axis = chance.choice([None, None, 0, 1, 2])
            sharded = [placed(chance, tensor, mesh, axis) for tensor in problem.tensors]
            words = f"seed {seed}: {problem.words}, on {mesh}, {[tensor.placements for tensor in sharded]}, {wanted}"
            try:
                expected = gradients(problem.reference or problem.call, problem.tensors, wanted)
                found = [tensor.full_tensor() for tensor in gradients(problem.call, sharded, wanted)]
                for number, (one, other) in enumerate(zip(found, expected, strict=True)):
                    torch.testing.assert_close(one, other, msg=f"tensor {number} differs")
            except Exception as error:
                raise AssertionError(words) from error
    distributed.destroy_process_group()


main()
