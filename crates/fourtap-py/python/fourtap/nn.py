"""The attention module of Deformable DETR: its linear layers and the operator.

Its parameters have the names of Deformable DETR's, so checkpoints of trained models load unchanged.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import torch
from torch import Tensor, nn

from fourtap import _native
from fourtap._joined import is_exported, is_untouched, owns_result, product_of_both
from fourtap._projected import from_projections
from fourtap._registered import whole_numbers
from fourtap._tracing import is_tracing, length, numbers
from fourtap._when_sharded import register_sharding
from fourtap.errors import DTypeError, InputError

__all__ = ["MSDeformAttn"]

_is_traced = torch.compiler.is_dynamo_compiling

SpatialShapes: TypeAlias = "Tensor | Sequence[tuple[int, int]]"


def require_shape(
    name: str, tensor: Tensor, expected: Sequence[int | str | tuple[int, ...]], *, broadcast: bool = False
) -> None:
    """Refuses a tensor of another shape. A word stands for any size; with ``broadcast``, 1 stands for every size."""

    def fits(size: int | str | tuple[int, ...], found: int) -> bool:
        if isinstance(size, str):
            return True
        if isinstance(size, tuple):
            return found in size
        return found == size or (broadcast and found == 1)

    sizes: Sequence[int] = tensor.shape
    if is_tracing():
        sizes, expected = numbers(sizes), numbers(expected)
    if len(sizes) == len(expected):
        # Equal first: that is the usual case, and cheap.
        if all([size == found or fits(size, found) for size, found in zip(expected, sizes, strict=True)]):
            return
    words = [" or ".join(map(str, size)) if isinstance(size, tuple) else str(size) for size in expected]
    raise InputError(f"{name}: expected shape [{', '.join(words)}], found {list(sizes)}")


def require_counts(**arguments: object) -> None:
    """Refuses arguments of a module that are no integers of at least 1, by name."""
    for name, found in arguments.items():
        # A boolean is an integer to Python, but no size.
        if isinstance(found, bool) or not isinstance(found, SupportsIndex):
            raise DTypeError(f"{name}: expected an integer, found {found!r}")
        if operator.index(found) < 1:
            raise InputError(f"{name}: expected at least 1, found {found}")


def arithmetic_type(storage: torch.dtype) -> torch.dtype:
    """The dtype that coordinates and weights are computed in, for tensors of this dtype."""
    return torch.float64 if storage == torch.float64 else torch.float32


def level_sizes(spatial_shapes: SpatialShapes, like: Tensor) -> Tensor:
    """Width and height of every level, ``[L, 2]``: x first as in locations, with the device and type of ``like``."""
    if isinstance(spatial_shapes, Tensor):
        return spatial_shapes.flip(-1).to(like, non_blocking=True)
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        # Sizes that are traced must not become constants, nor the graph depend on numbers filled in one by one.
        return (
            whole_numbers([size for height, width in spatial_shapes for size in (width, height)]).to(like).view(-1, 2)
        )
    # Filled number by number: copying a list to a GPU waits for everything queued there and cannot be captured
    # into a CUDA graph, while a fill carries its number along.
    sizes = like.new_empty((len(spatial_shapes), 2))
    for level, (height, width) in enumerate(spatial_shapes):
        sizes[level, 0].fill_(width)
        sizes[level, 1].fill_(height)
    return sizes


def accepted_type(tensor: Tensor, value: Tensor) -> Tensor:
    """The tensor in a dtype that the operator accepts with ``value``: callers mix dtypes freely."""
    if tensor.dtype in (value.dtype, torch.float32):
        return tensor
    return tensor.to(arithmetic_type(value.dtype))


def project(
    module: Any, query: Tensor, *, heads: int, nearest: bool = False, offset_scale: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Offsets and logits as :func:`attend_from_layers` takes them: what the two layers over the query put out.

    With ``offset_scale``, a number for each point of a head, the offsets are multiplied by it.
    """
    first, second = module.sampling_offsets, module.attention_weights
    if offset_scale is not None:
        offsets = torch.unflatten(first(query), -1, (heads, -1, 2)) * offset_scale[:, None]
        return offsets.flatten(-3), second(query)
    # Where they only choose pixels, offsets have no gradient: what both layers put out cannot be one tensor.
    fit = not nearest and is_untouched(first) and is_untouched(second)
    if fit and first.out_features == 2 * second.out_features and second.out_features % heads == 0:
        both = product_of_both(first, second, query)
        if both is not None:
            return both, None
    return first(query), second(query)


def attend_from_layers(
    value: Tensor,
    spatial_shapes: SpatialShapes,
    reference_points: Tensor,
    offsets: Tensor,
    logits: Tensor | None,
    *,
    heads: int,
    points: int | Sequence[int],
    mask: Tensor | None = None,
    value_layer: nn.Module | None = None,
    level_start_index: Tensor | None = None,
    nearest: bool = False,
    box_scale: Sequence[float] | None = None,
) -> Tensor:
    """The operator on what linear layers put out: ``[N, S, M * D]``, ``[N, Q, M * K * 2]`` and ``[N, Q, M * K]``.

    Where ``logits`` is None, they follow the offsets in the same tensor. ``value_layer`` is the one that ``value``
    comes from, if nobody else has got its result.
    """
    value = torch.unflatten(value, -1, (heads, -1))
    mask_is_applied = False
    if mask is not None:
        may_change = value_layer is not None and owns_result(value_layer)
        if not _is_traced():
            mask_is_applied = may_change and _native.torch_zero_pixels(value, mask)
        elif may_change and not is_exported():
            torch.ops.fourtap.zero_pixels_(value, mask)
            mask_is_applied = True
        else:
            # The compiler joins this with what comes before; the operator would make a copy.
            value, mask = value.masked_fill(mask[..., None, None], 0.0), None
    offsets = accepted_type(offsets, value)
    if logits is not None:
        offsets = torch.unflatten(offsets, -1, (heads, -1, 2))
        logits = torch.unflatten(accepted_type(logits, value), -1, (heads, -1))
    operands = (
        value,
        spatial_shapes,
        level_start_index,
        accepted_type(reference_points, value),
        offsets,
        logits,
        mask,
        (points, nearest, box_scale, mask_is_applied),
    )
    return from_projections(operands, None, None)


def renamed(error: InputError, names: Mapping[str, str]) -> InputError:
    """The operator's refusal with the names that tensors have for the module's caller."""
    words = re.sub(r"\b[a-z_]+\b", lambda word: names.get(word[0], word[0]), str(error))
    return type(error)(words)


def attend_with_layers(
    layers: Any,
    query: Tensor,
    reference_points: Tensor,
    features: Tensor,
    spatial_shapes: SpatialShapes,
    level_start_index: Tensor | None = None,
    padding_mask: Tensor | None = None,
    *,
    channels: int,
    heads: int,
    levels: int,
    points: int | Sequence[int],
    names: Mapping[str, str],
    nearest: bool = False,
    box_scale: Sequence[float] | None = None,
    offset_scale: Tensor | None = None,
) -> Tensor:
    """A whole module: ``layers`` has ``sampling_offsets``, ``attention_weights``, ``value_proj`` and ``output_proj``.

    ``names`` are what the module's caller calls the operator's tensors, where that is something else.
    """

    def named(name: str) -> str:
        return names.get(name, name)

    require_shape("query", query, ["N", "Q", channels])
    batch, queries, _ = query.shape
    require_shape(named("value"), features, [batch, "S", channels])
    references: Sequence[int | str | tuple[int, ...]] = [batch, queries, levels, (2, 4)]
    require_shape(named("reference_points"), reference_points, references, broadcast=True)
    if length(spatial_shapes) != levels:
        raise InputError(f"{named('spatial_shapes')}: expected {levels} levels, found {length(spatial_shapes)}")

    value = layers.value_proj(features)
    if padding_mask is not None:
        require_shape(named("value_mask"), padding_mask, [batch, features.shape[1]])
        padding_mask = padding_mask.bool()
    offsets, logits = project(layers, query, heads=heads, nearest=nearest, offset_scale=offset_scale)
    try:
        attended = attend_from_layers(
            value,
            spatial_shapes,
            reference_points,
            offsets,
            logits,
            heads=heads,
            points=points,
            mask=padding_mask,
            value_layer=layers.value_proj,
            level_start_index=level_start_index,
            nearest=nearest,
            box_scale=box_scale,
        )
    except InputError as error:
        raise renamed(error, names) from error
    output: Tensor = layers.output_proj(attended)
    return output


class ProjectedAttention(nn.Module):
    """The four layers around the operator, with the same names in all variants of the module."""

    def __init__(
        self,
        channels: int,
        value_channels: int,
        heads: int,
        levels: int,
        points: int,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._channels = channels
        self._heads = heads
        # Fewer, where the layers are sharded: see fourtap.distributed.HeadwiseParallel.
        self._heads_here = heads
        self._levels = levels
        self._points = points
        samples = heads * levels * points
        self.sampling_offsets = nn.Linear(channels, samples * 2, device=device, dtype=dtype)
        self.attention_weights = nn.Linear(channels, samples, device=device, dtype=dtype)
        self.value_proj = nn.Linear(channels, value_channels, device=device, dtype=dtype)
        self.output_proj = nn.Linear(value_channels, channels, device=device, dtype=dtype)
        self._reset_parameters()

    # Deformable DETR and its descendants call this by name, after initialising all other parameters of a model.
    def _reset_parameters(self) -> None:
        """Lets point p of a head look p + 1 pixels into the direction of that head, all with equal weight."""
        angles = torch.arange(self._heads, dtype=torch.float32) * (2.0 * math.pi / self._heads)
        directions = torch.stack([angles.cos(), angles.sin()], dim=-1)
        directions = directions / directions.abs().amax(dim=-1, keepdim=True)
        distances = torch.arange(1, self._points + 1, dtype=torch.float32)
        offsets = directions[:, None, None, :] * distances[:, None]
        offsets = offsets.expand(self._heads, self._levels, self._points, 2)
        with torch.no_grad():
            self.sampling_offsets.weight.zero_()
            self.sampling_offsets.bias.copy_(offsets.reshape(-1))
            self.attention_weights.weight.zero_()
            self.attention_weights.bias.zero_()
            nn.init.xavier_uniform_(self.value_proj.weight)
            self.value_proj.bias.zero_()
            nn.init.xavier_uniform_(self.output_proj.weight)
            self.output_proj.bias.zero_()

    def _attend(
        self,
        query: Tensor,
        reference_points: Tensor,
        features: Tensor,
        spatial_shapes: SpatialShapes,
        level_start_index: Tensor | None,
        padding_mask: Tensor | None,
        names: Mapping[str, str],
    ) -> Tensor:
        return attend_with_layers(
            self,
            query,
            reference_points,
            features,
            spatial_shapes,
            level_start_index,
            padding_mask,
            channels=self._channels,
            heads=self._heads_here,
            levels=self._levels,
            points=self._points,
            names=names,
        )


#: What :class:`MSDeformAttn` calls the operator's tensors, as Deformable DETR and its descendants do.
INPUT_NAMES = {
    "value": "input_flatten",
    "spatial_shapes": "input_spatial_shapes",
    "level_start_index": "input_level_start_index",
    "value_mask": "input_padding_mask",
}


class MSDeformAttn(ProjectedAttention):
    """Multi-scale deformable attention with its projections, as in Deformable DETR.

    Every query looks at ``n_points`` places on each of ``n_levels`` feature levels, in ``n_heads`` heads. The places
    are its reference point plus offsets that a layer computes from the query.

    Args:
        d_model: Channels of queries, features and result; a multiple of ``n_heads``.
        n_levels: Feature levels.
        n_heads: Heads.
        n_points: Places a query looks at on each level, in each head.
        device: The device of the parameters.
        dtype: The dtype of the parameters. Locations and softmax are computed in float32 even if this is 16-bit.

    Example:
        >>> import torch
        >>> from fourtap.nn import MSDeformAttn
        >>> attention = MSDeformAttn(d_model=64, n_levels=2, n_heads=4, n_points=4)
        >>> shapes = [(8, 12), (4, 6)]
        >>> features = torch.rand(1, 8 * 12 + 4 * 6, 64)
        >>> query, reference_points = torch.rand(1, 10, 64), torch.rand(1, 10, 2, 2)
        >>> attention(query, reference_points, features, shapes).shape
        torch.Size([1, 10, 64])

    """

    def __init__(
        self,
        d_model: int = 256,
        n_levels: int = 4,
        n_heads: int = 8,
        n_points: int = 4,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """See the class for the arguments."""
        require_counts(d_model=d_model, n_levels=n_levels, n_heads=n_heads, n_points=n_points)
        if d_model % n_heads != 0:
            raise InputError(f"d_model: expected a multiple of n_heads = {n_heads}, found {d_model}")
        super().__init__(d_model, d_model, n_heads, n_levels, n_points, device=device, dtype=dtype)
        self.d_model = d_model
        self.n_levels = n_levels
        self.n_heads = n_heads
        self.n_points = n_points

    def forward(
        self,
        query: Tensor,
        reference_points: Tensor,
        input_flatten: Tensor,
        input_spatial_shapes: SpatialShapes,
        input_level_start_index: Tensor | None = None,
        input_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend to the features with every query.

        Args:
            query: ``[N, Q, d_model]``.
            reference_points: ``[N, Q, n_levels, 2]``, (x, y) from 0 to 1 over the image; or ``[N, Q, n_levels, 4]``,
                boxes (x, y, width, height). Keep them in float32 even if the rest is 16-bit.
            input_flatten: ``[N, S, d_model]``, the pixels of all levels.
            input_spatial_shapes: ``[n_levels, 2]``, height and width of each level: a list of pairs, or a tensor.
            input_level_start_index: ``[n_levels]``, the first pixel of each level. Without it each level begins where
                the one before it ends.
            input_padding_mask: ``[N, S]``, true for pixels that are padding: they count as zero.

        Returns:
            ``[N, Q, d_model]``.

        """
        return self._attend(
            query,
            reference_points,
            input_flatten,
            input_spatial_shapes,
            input_level_start_index,
            input_padding_mask,
            INPUT_NAMES,
        )

    def extra_repr(self) -> str:
        """The arguments it was built with."""
        return f"d_model={self.d_model}, n_levels={self.n_levels}, n_heads={self.n_heads}, n_points={self.n_points}"


# Last: it imports what imports this.
register_sharding()
