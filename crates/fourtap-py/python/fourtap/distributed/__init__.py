"""Attention on several devices, by ``torch.distributed``.

- PyTorch knows how every operator computes with sharded tensors (``torch.distributed.tensor.DTensor``), forward and
  backward, without exchanging anything if they are sharded alike: by images, or sequences (all tensors); by heads (all
  tensors that have them; of deformable attention each device must get equally many); or by queries (all but ``value``,
  or keys and values, which every device has whole; their gradients are then ``Partial``). DTensors that are sharded
  otherwise are exchanged by PyTorch until one of these fits. This needs no import of this module: any operator will do.
- :class:`HeadwiseParallel` is a style for ``torch.distributed.tensor.parallel.parallelize_module``: tensor parallelism
  of :class:`fourtap.nn.MSDeformAttn`.
- :func:`ring_attention` is dense attention over a sequence that no device has whole: context parallelism.

Example:
    >>> import fourtap.distributed
    >>> fourtap.distributed.OPERATORS
    ('msda', 'msda_backward', 'msda_projected', 'msda_projected_backward', 'dense', 'dense_backward')

"""

from __future__ import annotations

import torch

from fourtap.errors import UnsupportedError

try:
    from torch.distributed.tensor.experimental import register_sharding as _register_sharding  # noqa: F401
except ImportError as reason:
    raise UnsupportedError(
        f"fourtap.distributed: expected a PyTorch with register_sharding (2.5 and later), found {torch.__version__}"
    ) from reason

from fourtap.distributed._ring import ring_attention
from fourtap.distributed._sequence import shard_sequence, unshard_sequence
from fourtap.distributed._sharding import OPERATORS
from fourtap.distributed._tensor_parallel import HeadwiseParallel

__all__ = ["OPERATORS", "HeadwiseParallel", "ring_attention", "shard_sequence", "unshard_sequence"]
