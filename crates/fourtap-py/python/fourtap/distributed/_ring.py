"""Dense attention over a sequence that no process has whole: keys and values go around a ring of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

from fourtap._dense import autocast, refuse_derivatives
from fourtap._registered import no_second_derivatives
from fourtap.distributed._sequence import ring_of
from fourtap.errors import DTypeError, InputError

__all__ = ["ring_attention"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Where positions are in [B, H, S, D].
_POSITIONS = 2


# Dynamo traces no exchange between two processes.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: distributed.ProcessGroup | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Dense attention over a sequence of which each process of a group has a part (context parallelism).

    As :func:`fourtap.scaled_dot_product_attention` of the whole sequence gives it, up to rounding, for the queries of
    this process. Keys and values go once around the processes, each block while the one before it is at work; results
    are merged by their log-sum-exp, in a fixed order, in float32 (float64 for float64). In backward they go around
    again, and after them the sums of their gradients. All processes of the group must call it, in the same order.

    Args:
        query: ``[B, Hq, Sq, D]``, this process's part, as :func:`shard_sequence` makes it. Without ``is_causal`` any
            parts will do, also of another length than those of ``key``.
        key: ``[B, Hk, Sk, D]`` in the dtype of ``query``; the same shape in every process.
        value: ``[B, Hk, Sk, Dv]``, likewise.
        group: The processes that share the sequence; by default all. Of a mesh: ``mesh.get_group("cp")``.
        is_causal: Whether each query sees only the keys up to its own position in the whole sequence. Parts must then
            be those of :func:`shard_sequence`.
        scale: As for :func:`fourtap.scaled_dot_product_attention`.
        enable_gqa: As for :func:`fourtap.scaled_dot_product_attention`.

    Returns:
        ``[B, Hq, Sq, Dv]`` in the dtype of ``query``, differentiable (once) with respect to query, key and value, in
        the same dtypes as :func:`fourtap.scaled_dot_product_attention`. Bitwise the same from run to run with the same
        number of processes. ``torch.compile`` leaves it out of its graphs.

    Raises:
        fourtap.InputError: Tensors that do not fit each other, or those of other processes, or a group without this
            process. fourtap.DTypeError: Elements of a wrong type. fourtap.UnsupportedError: A gradient that there is
            none of. Each message names the tensor, what was expected and what was found.

    """
    rank, size = ring_of(group)
    _check_each(query=query, key=key, value=value)
    query, key, value, _ = autocast(query, key, value, None)
    _check_together(query, key, value, is_causal, enable_gqa)
    refuse_derivatives(query, key, value, None)
    ring = _Ring(distributed.group.WORLD if group is None else group, rank, size)
    _check_others(ring, query, key, value, is_causal)
    settings = _Settings(is_causal, scale, enable_gqa)
    return _RingAttention.apply(query, key, value, ring, settings)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Settings:
    is_causal: bool
    scale: float | None
    enable_gqa: bool

    def of_block(self, is_causal: bool) -> tuple[Any, ...]:
        """The settings of the operator: without a window, keys after a query hidden or not, positions from the top."""
        return self.scale, None, 0 if is_causal else None, False, self.enable_gqa


@dataclass(frozen=True)
class _Ring:
    """The processes of a group in the order of their ranks."""

    group: Any
    rank: int
    size: int

    def send(self, tensors: Sequence[Tensor], tag: int = 0) -> _Exchange:
        """Begin to give tensors to the next process, and to take others of the same shapes from the one before."""
        packed = torch.cat([tensor.reshape(-1) for tensor in tensors])
        shapes = [tensor.shape for tensor in tensors]
        if self.size == 1:
            return _Exchange(packed, packed, shapes, [])
        received = torch.empty_like(packed)
        to, source = (
            distributed.get_global_rank(self.group, (self.rank + step) % self.size) for step in (1, self.size - 1)
        )
        works = distributed.batch_isend_irecv(
            [
                distributed.P2POp(distributed.isend, packed, to, self.group, tag),
                distributed.P2POp(distributed.irecv, received, source, self.group, tag),
            ]
        )
        return _Exchange(packed, received, shapes, works)

    def blocks(self, key: Tensor, value: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Keys and values of every process with its rank, its own first, then backwards."""
        for step in range(self.size):
            # The next block comes while this one is at work.
            coming = self.send([key, value]) if step + 1 < self.size else None
            yield (self.rank - step) % self.size, key, value
            if coming is not None:
                key, value = coming.wait()


@dataclass(frozen=True)
class _Exchange:
    """Tensors that are on their way. What is sent must be kept until then."""

    sent: Tensor
    received: Tensor
    shapes: list[torch.Size]
    works: list[Any]

    def wait(self) -> list[Tensor]:
        for work in self.works:
            work.wait()
        parts = torch.split(self.received, [shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass(frozen=True)
class _Visible:
    """Which of this process's queries see which keys of another: all, or one of their two pieces."""

    queries: slice
    keys: slice
    is_causal: bool


_ALL = slice(None)


def _visible(ring: _Ring, source: int, is_causal: bool, length: int) -> _Visible:
    if not is_causal or source == ring.rank:
        # Pieces are in the order of their positions, so the mask of one process is that of its places.
        return _Visible(_ALL, _ALL, is_causal)
    half = length // 2
    if source < ring.rank:
        # Its early piece is before both of ours, its late one after both.
        return _Visible(_ALL, slice(0, half), False)
    # Both its pieces are between our early and our late one.
    return _Visible(slice(half, length), _ALL, False)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: _Ring, settings: _Settings) -> Tensor:
        sums = torch.float64 if query.dtype is torch.float64 else torch.float32
        out = lse = torch.empty(0)
        for source, keys, values in ring.blocks(key, value):
            seen = _visible(ring, source, settings.is_causal, query.shape[_POSITIONS])
            part, part_lse = torch.ops.fourtap.dense(
                query[:, :, seen.queries],
                keys[:, :, seen.keys],
                values[:, :, seen.keys],
                *settings.of_block(seen.is_causal),
                True,
            )
            if source == ring.rank:
                out, lse = part.to(sums), part_lse
            else:
                _merge(out[:, :, seen.queries], lse[:, :, seen.queries], part, part_lse)
        result = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, result, lse)
        ctx.ring, ctx.settings = ring, settings
        return result

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        # With create_graph=True the gradients will be differentiated again, which must raise an error, not be ignored.
        compute: Any = _RingGradients.apply if torch.is_grad_enabled() else _gradients
        return *compute(grad_out, *ctx.saved_tensors, ctx.ring, ctx.settings), None, None


class _RingGradients(torch.autograd.Function):
    """Gradients that refuse to be differentiated."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _gradients(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        raise no_second_derivatives("ring_attention")


def _gradients(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    ring: _Ring,
    settings: _Settings,
) -> tuple[Tensor, Tensor, Tensor]:
    by_query = torch.zeros_like(query, dtype=lse.dtype)
    coming: _Exchange | None = None
    for source, keys, values in ring.blocks(key, value):
        seen = _visible(ring, source, settings.is_causal, query.shape[_POSITIONS])
        # With the result and the LSE of all keys, gradients by those of one block are their part of the sum.
        part_by_query, part_by_key, part_by_value, _ = torch.ops.fourtap.dense_backward(
            grad_out[:, :, seen.queries],
            query[:, :, seen.queries],
            keys[:, :, seen.keys],
            values[:, :, seen.keys],
            *settings.of_block(seen.is_causal),
            None,
            out[:, :, seen.queries],
            lse[:, :, seen.queries],
            (True, True, True, False),
        )
        by_query[:, :, seen.queries] += part_by_query
        # The sums follow their keys; they are awaited only here, so they come while the operator is at work.
        of_keys = (
            [torch.zeros_like(one, dtype=lse.dtype) for one in (keys, values)] if coming is None else coming.wait()
        )
        of_keys[0][:, :, seen.keys] += part_by_key
        of_keys[1][:, :, seen.keys] += part_by_value
        coming = ring.send(of_keys, tag=1)
    assert coming is not None
    by_key, by_value = coming.wait()
    return by_query.to(query.dtype), by_key.to(key.dtype), by_value.to(value.dtype)


def _merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Add the result for other keys, in place: each counts by its share of the sum of exponentials."""
    total = torch.logaddexp(lse, part_lse)
    out *= torch.exp(lse - total).unsqueeze(-1)
    out += part * torch.exp(part_lse - total).unsqueeze(-1)
    lse.copy_(total)


def _check_each(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor) or not isinstance(tensor, Tensor):
            kind = type(tensor).__qualname__
            raise InputError(f"{name}: expected a plain PyTorch tensor, the part of this process, found {kind}")
        if tensor.dim() != 4:
            raise InputError(f"{name}: expected rank 4 [B, H, S, D], found rank {tensor.dim()}")
        if tensor.dtype not in _DTYPES:
            raise DTypeError(f"{name}: expected float16, bfloat16, float32 or float64, found {tensor.dtype}")
        if tensor.shape[_POSITIONS] == 0:
            raise InputError(f"{name}: expected one position or more, found shape {list(tensor.shape)}")


def _check_together(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, enable_gqa: bool) -> None:
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype is not query.dtype:
            raise DTypeError(f"{name}: expected {query.dtype}, as query has, found {tensor.dtype}")
        if tensor.device != query.device:
            raise InputError(f"{name}: expected {query.device}, where query is, found {tensor.device}")
    batch, heads, positions, channels = query.shape
    if key.shape[0] != batch or key.shape[3] != channels:
        raise InputError(f"key: expected shape [{batch}, H, S, {channels}], found {list(key.shape)}")
    key_heads = key.shape[1]
    if key_heads != heads and (not enable_gqa or key_heads == 0 or heads % key_heads != 0):
        expected = f"a divisor of the {heads} heads of query" if enable_gqa else f"{heads} heads, as query has"
        raise InputError(f"key: expected {expected}, found {key_heads}")
    if value.shape[:3] != key.shape[:3]:
        raise InputError(f"value: expected shape {[*key.shape[:3]]} and channels, found {list(value.shape)}")
    if not is_causal:
        return
    if key.shape[2] != positions:
        raise InputError(f"key: expected the {positions} positions of query with is_causal, found {key.shape[2]}")
    if positions % 2 != 0:
        raise InputError(f"query: expected two pieces (shard_sequence), an even length, found {positions} positions")


def _check_others(ring: _Ring, query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> None:
    """Refuse tensors that do not fit those of other processes: in all of them, before anyone waits for the others."""
    if ring.size == 1:
        return
    wants_gradient = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    mine = [*key.shape, *value.shape, _DTYPES.index(key.dtype), int(is_causal), int(wants_gradient)]
    every = torch.empty((ring.size, len(mine)), dtype=torch.int64, device=key.device)
    distributed.all_gather(list(every.unbind()), torch.tensor(mine, device=key.device), group=ring.group)
    first, *others = every.tolist()
    for rank, found in enumerate(others, 1):
        if found == first:
            continue
        for name, at, show in (
            ("key", slice(0, 4), list),
            ("value", slice(4, 8), list),
            ("key", slice(8, 9), lambda numbers: _DTYPES[numbers[0]]),
            ("is_causal", slice(9, 10), lambda numbers: bool(numbers[0])),
            ("requires_grad", slice(10, 11), lambda numbers: bool(numbers[0])),
        ):
            if found[at] != first[at]:
                raise InputError(
                    f"{name}: expected {show(first[at])} as in process 0 of the group, "
                    f"found {show(found[at])} in process {rank}"
                )
