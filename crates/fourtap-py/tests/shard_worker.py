"""One process of test_distributed_tensors.py: every operator on DTensors, sharded in all ways, and on whole tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

import fourtap.distributed
from fourtap import ms_deform_attn, ms_deform_attn_from_projections, scaled_dot_product_attention

LEVELS = [(6, 5), (3, 2)]
IMAGES, QUERIES, HEADS, CHANNELS, POINTS = 4, 8, 4, 8, 3
PIXELS = sum(height * width for height, width in LEVELS)
WHOLE = Replicate()


def random(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float64)


def deformable() -> tuple[Callable[..., Tensor], list[Tensor], dict[str, list[Placement]]]:
    samples = (IMAGES, QUERIES, HEADS, len(LEVELS), POINTS)
    tensors = [random(IMAGES, PIXELS, HEADS, CHANNELS), torch.rand(*samples, 2).double(), random(*samples)]
    ways = {"images": [Shard(0)] * 3, "heads": [Shard(2)] * 3, "queries": [WHOLE, Shard(1), Shard(1)]}
    return lambda value, *others: ms_deform_attn(value, LEVELS, *others), tensors, ways


def projected() -> tuple[Callable[..., Tensor], list[Tensor], dict[str, list[Placement]]]:
    points = len(LEVELS) * POINTS
    tensors = [
        random(IMAGES, PIXELS, HEADS, CHANNELS),
        torch.rand(IMAGES, QUERIES, len(LEVELS), 2).double(),
        random(IMAGES, QUERIES, HEADS, points, 2),
        random(IMAGES, QUERIES, HEADS, points),
    ]
    ways = {
        "images": [Shard(0)] * 4,
        "heads": [Shard(2), WHOLE, Shard(2), Shard(2)],
        "queries": [WHOLE, Shard(1), Shard(1), Shard(1)],
    }
    return lambda value, *others: ms_deform_attn_from_projections(value, LEVELS, *others), tensors, ways


def dense(causal: bool, bias: bool) -> tuple[Callable[..., Tensor], list[Tensor], dict[str, list[Placement]]]:
    tensors = [random(IMAGES, HEADS, positions, CHANNELS) for positions in (QUERIES, 2 * QUERIES, 2 * QUERIES)]
    ways: dict[str, list[Placement]] = {"images": [Shard(0)] * 3, "heads": [Shard(1)] * 3}
    if not causal:
        ways["queries"] = [Shard(2), WHOLE, WHOLE]
    if bias:  # one for all sequences
        tensors.append(random(1, HEADS, QUERIES, 2 * QUERIES))
        of_bias = {"images": WHOLE, "heads": Shard(1), "queries": Shard(2)}
        ways = {name: [*placements, of_bias[name]] for name, placements in ways.items()}

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return scaled_dot_product_attention(query, key, value, mask, is_causal=causal)

    return attend, tensors, ways


def gradients(call: Callable[..., Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """The result, and the gradients of a sum that no two elements of it have the same part in."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    out = call(*leaves)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    if isinstance(out, DTensor):
        weights = distribute_tensor(weights, out.device_mesh, out.placements)
    return [out, *torch.autograd.grad(out, leaves, weights)]


def main() -> None:
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = distributed.get_world_size()
    mesh = init_device_mesh("cpu", (size,) if size < 4 else (2, size // 2))
    problems = {
        "deformable": deformable(),
        "projected": projected(),
        "dense": dense(causal=False, bias=False),
        "dense, causal": dense(causal=True, bias=False),
        "dense, bias": dense(causal=False, bias=True),
    }
    for problem, (call, tensors, ways) in problems.items():
        expected = gradients(call, tensors)
        # On every axis of the mesh another way.
        for chosen in itertools.permutations(ways, mesh.ndim):
            placements = list(zip(*(ways[name] for name in chosen), strict=True))
            sharded = [distribute_tensor(tensor, mesh, on) for tensor, on in zip(tensors, placements, strict=True)]
            torch._dynamo.reset()
            # The code that inductor makes is not ours: one way of each problem is enough.
            backend = "inductor" if mesh.ndim == 1 and chosen == ("heads",) else "aot_eager"
            compiled = torch.compile(call, fullgraph=True, backend=backend)
            for mode, attend in (("eager", call), ("compiled", compiled)):
                found = gradients(attend, sharded)
                name = f"{problem} by {chosen}, {mode}"
                # Nothing was gathered: the result is sharded as the queries are.
                assert all(isinstance(on, Shard) for on in found[0].placements), f"{name}: {found[0].placements}"
                for number, (one, other) in enumerate(zip(found, expected, strict=True)):
                    torch.testing.assert_close(one.full_tensor(), other, msg=f"{name}: tensor {number} differs")
    # Where nothing fits, PyTorch exchanges first.
    call, tensors, _ = problems["deformable"]
    by_pixels = distribute_tensor(tensors[0], mesh, [Shard(1)] * mesh.ndim)
    others = [distribute_tensor(tensor, mesh, [WHOLE] * mesh.ndim) for tensor in tensors[1:]]
    torch.testing.assert_close(call(by_pixels, *others).full_tensor(), call(*tensors))
    assert len(fourtap.distributed.OPERATORS) == 6
    distributed.destroy_process_group()


main()
