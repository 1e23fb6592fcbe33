"""Attention that is split over the processes of torchrun, compared with the whole of it in one process.

    torchrun --nproc-per-node 2 examples/split_attention.py heads
    torchrun --nproc-per-node 2 examples/split_attention.py sequence --length 4096

`heads` is tensor parallelism: each process has some heads of a deformable attention. `sequence` is context parallelism:
each process has a part of a sequence, and no process holds all of its keys or results.

Ends with the greatest difference from the whole, of results and gradients, and with exit code 1 if it is not small.
"""

from __future__ import annotations

import argparse
import copy
import sys
from typing import Any

import torch
from distributed import World, joined
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from train_encoder import device_named

from fourtap import scaled_dot_product_attention
from fourtap.distributed import HeadwiseParallel, ring_attention, shard_sequence, unshard_sequence
from fourtap.nn import MSDeformAttn

# Of the greatest number in the whole: bf16 has 8 bits, and parts are rounded once more.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def by_heads(world: World) -> dict[str, tuple[Tensor, Tensor]]:
    """Results and gradients of a split module, and of a whole one."""
    levels = [(32, 40), (16, 20)]
    torch.manual_seed(0)
    whole = MSDeformAttn(d_model=128, n_levels=len(levels), n_heads=8).to(world.device)
    torch.nn.init.normal_(whole.sampling_offsets.weight, std=0.1)
    query, points = torch.randn(1, 300, 128, device=world.device), torch.rand(1, 300, 2, 2, device=world.device)
    features = torch.randn(1, sum(height * width for height, width in levels), 128, device=world.device)
    split = copy.deepcopy(whole)
    parallelize_module(split, init_device_mesh(world.device.type, (world.size,)), HeadwiseParallel())
    found, expected = (results_of(module, query, points, features, levels) for module in (split, whole))
    return {name: (found[name], expected[name]) for name in expected}


def results_of(module: MSDeformAttn, query: Tensor, *others: Any) -> dict[str, Tensor]:
    """The result, and the gradients of queries and parameters."""
    query = query.clone().requires_grad_()
    out = module(query, *others)
    out.square().sum().backward()
    results = {"result": out.detach(), "query.grad": query.grad}
    for name, parameter in module.named_parameters():
        # Of a parameter that is split, each process has a part of the gradient.
        gradient = parameter.grad
        results[f"{name}.grad"] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return results


def by_positions(world: World, length: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Results and gradients of a causal attention over a split sequence, and over the whole."""
    torch.manual_seed(0)
    # Gradients of dense attention are computed in 16 bits on a GPU.
    dtype = torch.bfloat16 if world.device.type == "cuda" else torch.float32
    # 8 heads of queries share 2 of keys and values.
    whole = [torch.randn(1, heads, length, 64, device=world.device, dtype=dtype) for heads in (8, 2, 2)]
    # A model would make these of its part of the sequence; here everyone has drawn the same numbers.
    parts = [shard_sequence(tensor).requires_grad_() for tensor in whole]
    out = ring_attention(*parts, is_causal=True, enable_gqa=True)
    out.square().sum().backward()
    for tensor in whole:
        tensor.requires_grad_()
    expected = scaled_dot_product_attention(*whole, is_causal=True, enable_gqa=True)
    expected.square().sum().backward()
    compared = {"result": (unshard_sequence(out.detach()), expected.detach())}
    for name, part, tensor in zip(("query.grad", "key.grad", "value.grad"), parts, whole, strict=True):
        assert part.grad is not None and tensor.grad is not None
        compared[name] = (unshard_sequence(part.grad), tensor.grad)
    return compared


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split", choices=["heads", "sequence"])
    parser.add_argument("--length", type=int, default=1024, help="positions of the sequence (default: 1024)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    options = parser.parse_args()
    with joined(device_named(options.device)) as world:
        if not torch.distributed.is_initialized():
            parser.error("expected processes of torchrun, found one alone: torchrun --nproc-per-node 2 ...")
        if options.split == "heads":
            compared = by_heads(world)
        else:
            compared = by_positions(world, options.length)
        if not world.leads:
            return 0
    is_close = True
    for name, (found, expected) in compared.items():
        difference = ((found - expected).abs().max() / expected.abs().max()).item()
        is_close &= difference <= TOLERANCES[expected.dtype]
        print(f"{name}: differs by {difference:.1e} of the greatest number")
    if not is_close:
        print("error: expected no more than rounding", file=sys.stderr)
    return 0 if is_close else 1


if __name__ == "__main__":
    sys.exit(main())
