"""Tensor parallelism of deformable attention: every device has some of the heads."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from fourtap.errors import InputError
from fourtap.nn import ProjectedAttention

__all__ = ["HeadwiseParallel"]


class HeadwiseParallel(ParallelStyle):
    """Shards :class:`fourtap.nn.MSDeformAttn` by heads, for ``parallelize_module``.

    ``sampling_offsets``, ``attention_weights`` and ``value_proj`` are sharded column-wise, ``output_proj`` row-wise.
    The operator runs on plain tensors, those of this device's heads. Inputs and result are whole on every device.
    Exchanged are the result (one all-reduce) and in backward the gradients of query, features and reference points (one
    all-reduce for each layer, and one for reference points that want a gradient).

    ``fourtap.compat.mmcv.MultiScaleDeformableAttention`` is sharded in the same way.

    Raises:
        fourtap.InputError: The module is another one, or is sharded already; or its heads are no multiple of the
            devices.

    Example:
        >>> from torch import nn
        >>> from torch.distributed.tensor.parallel import parallelize_module
        >>> from fourtap.distributed import HeadwiseParallel
        >>> def shard(model: nn.Module, mesh) -> nn.Module:
        ...     return parallelize_module(model, mesh["tp"], {"layers.*.attention": HeadwiseParallel()})

    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, ProjectedAttention):
            raise InputError(f"module: expected fourtap.nn.MSDeformAttn, found {type(module).__qualname__}")
        if device_mesh.ndim != 1:
            raise InputError(f'device_mesh: expected one axis, as mesh["tp"] has, found {device_mesh.ndim}')
        heads, devices = module._heads, device_mesh.size()
        if module._heads_here != heads:
            raise InputError(f"module: expected all {heads} heads, found {module._heads_here}: it is sharded already")
        if heads % devices != 0:
            raise InputError(
                f"module: expected a number of heads that is a multiple of {devices} devices, found {heads}"
            )
        plan: dict[str, ParallelStyle] = {
            "sampling_offsets": ColwiseParallel(),
            "attention_weights": ColwiseParallel(),
            "value_proj": ColwiseParallel(),
            "output_proj": RowwiseParallel(),
        }
        parallelize_module(module, device_mesh, plan, src_data_rank=self.src_data_rank)
        module._heads_here = heads // devices
        at = list(inspect.signature(module.forward).parameters).index("reference_points")
        hook = functools.partial(_share_reference_points, at, device_mesh)
        module.register_forward_pre_hook(hook, with_kwargs=True)
        return module


def _share_reference_points(
    at: int, mesh: DeviceMesh, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Lets the gradient of reference points be summed over all devices: each has only the part of its own heads."""
    if "reference_points" in named:
        return inputs, {**named, "reference_points": _shared(named["reference_points"], mesh)}
    if len(inputs) > at:
        return (*inputs[:at], _shared(inputs[at], mesh), *inputs[at + 1 :]), named
    return inputs, named


def _shared(points: Any, mesh: DeviceMesh) -> Any:
    if not isinstance(points, DTensor):
        if not points.requires_grad:
            return points
        points = DTensor.from_local(points, mesh, [Replicate()], run_check=False)
    return points.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
