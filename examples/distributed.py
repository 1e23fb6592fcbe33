"""Several processes that train one model, started by torchrun: what the examples need of torch.distributed.

One process has a GPU of its own and exchanges by NCCL, or shares the CPU and exchanges by gloo.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.nn.parallel import DistributedDataParallel

STRATEGIES = ("ddp", "fsdp")
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass(frozen=True)
class World:
    """This process among the others; alone it is the first of one."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether it is the one that shows progress and writes files."""
        return self.rank == 0

    def mean(self, number: Tensor) -> Tensor:
        """The mean of a number of every process."""
        if self.size == 1:
            return number
        total = number.detach().clone()
        distributed.all_reduce(total)
        return total / self.size


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The processes that torchrun has started, or this one alone."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield World(device)
        return
    if device.type == "cuda":
        number, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= there:
            sys.exit(f"error: expected a GPU for each process, found {there}\nhint: --nproc-per-node {there}")
        device = torch.device("cuda", number)
        torch.cuda.set_device(device)
    # What processes before a restart have left in torchrun's store shall not be met: PyTorch 2.15 does not see to that.
    store, rank, size = next(iter(distributed.rendezvous("env://")))
    store = distributed.PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield World(device, rank, size)
    finally:
        distributed.destroy_process_group()


def spread(model: nn.Module, layers: nn.ModuleList, strategy: str, world: World) -> nn.Module:
    """The model as all processes train it together: each with a copy (ddp), or with a part of every layer (fsdp)."""
    if world.size == 1:
        return model
    if strategy == "ddp":
        return DistributedDataParallel(model, device_ids=[world.device] if world.device.type == "cuda" else None)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def weights_of(model: nn.Module) -> dict[str, Any]:
    """All weights, whole, on the CPU. All processes call it."""
    return get_model_state_dict(model, options=_WHOLE)


def save(file: pathlib.Path, model: nn.Module, optimizer: torch.optim.Optimizer, world: World, **others: Any) -> None:
    """Writes all of the training's state, whole, so that any number of processes can go on. All processes call it."""
    of_model, of_optimizer = get_state_dict(model, optimizer, options=_WHOLE)
    if world.leads:
        # Whoever is killed here leaves the file before it as it was.
        part = file.with_name(f"{file.name}.part")
        torch.save({"model": of_model, "optimizer": of_optimizer, **others}, part)
        part.replace(file)


def restore(file: pathlib.Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Goes on from such a file; returns what else was saved. All processes call it."""
    state: dict[str, Any] = torch.load(file, map_location="cpu")
    of_model, of_optimizer = state.pop("model"), state.pop("optimizer")
    set_state_dict(
        model,
        optimizer,
        model_state_dict=of_model,
        optim_state_dict=of_optimizer,
        options=StateDictOptions(full_state_dict=True),
    )
    return state
