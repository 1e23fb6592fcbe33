"""mmcv's operator and module, and the same in detrex.

To make an installed mmcv, mmcv-lite or detrex use fourtap, in models built before or after::

    import fourtap.compat.mmcv
    fourtap.compat.mmcv.patch()

"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fourtap._tracing import length
from fourtap.compat import _mmcv_extensions
from fourtap.compat._drop_in import Replacements, replace_forward
from fourtap.compat._mmcv_trials import module_cases, require_same_autograd_function, require_same_function
from fourtap.compat.deformable_detr import MSDeformAttnFunction, ms_deform_attn_core_pytorch
from fourtap.errors import InputError, UnsupportedError
from fourtap.nn import ProjectedAttention, SpatialShapes, attend_from_layers, project, require_counts

__all__ = [
    "MultiScaleDeformableAttention",
    "MultiScaleDeformableAttnFunction",
    "multi_scale_deformable_attn_pytorch",
    "patch",
    "unpatch",
]

MultiScaleDeformableAttnFunction = MSDeformAttnFunction
multi_scale_deformable_attn_pytorch = ms_deform_attn_core_pytorch

_PATCHABLE = {
    "mmcv.ops.multi_scale_deform_attn": _mmcv_extensions.mmcv_with_extension,
    "detrex.layers.multi_scale_deform_attn": _mmcv_extensions.detrex_with_extension,
}
_replaced = Replacements()


class MultiScaleDeformableAttention(ProjectedAttention):
    """mmcv's module without mmcv: the same arguments, parameters and result.

    Args:
        embed_dims: Channels of queries, values and result; a multiple of ``num_heads``.
        num_heads: Heads.
        num_levels: Feature levels.
        num_points: Places a query looks at on each level, in each head.
        im2col_step: Ignored.
        dropout: Share of the result that is dropped in training, before ``identity`` is added.
        batch_first: Whether queries and values are ``[N, Q, C]``; otherwise ``[Q, N, C]``.
        norm_cfg: Kept, not used, as in mmcv.
        init_cfg: Kept, not used: only mmengine reads it.
        value_proj_ratio: Channels of the projected values, as a multiple of ``embed_dims``.

    Example:
        >>> import torch
        >>> from fourtap.compat.mmcv import MultiScaleDeformableAttention
        >>> attention = MultiScaleDeformableAttention(embed_dims=64, num_levels=1, batch_first=True)
        >>> query, pixels = torch.rand(2, 10, 64), torch.rand(2, 8 * 12, 64)
        >>> centres = torch.rand(2, 10, 1, 2)
        >>> attention(query, value=pixels, reference_points=centres, spatial_shapes=[(8, 12)]).shape
        torch.Size([2, 10, 64])

    """

    def __init__(
        self,
        embed_dims: int = 256,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int = 4,
        im2col_step: int = 64,
        dropout: float = 0.1,
        batch_first: bool = False,
        norm_cfg: dict[str, Any] | None = None,
        init_cfg: Any = None,
        value_proj_ratio: float = 1.0,
    ) -> None:
        """See the class for the arguments."""
        require_counts(embed_dims=embed_dims, num_heads=num_heads, num_levels=num_levels, num_points=num_points)
        if embed_dims % num_heads != 0:
            raise InputError(f"embed_dims: expected a multiple of num_heads = {num_heads}, found {embed_dims}")
        value_channels = int(embed_dims * value_proj_ratio)
        if value_channels < 1 or value_channels % num_heads != 0:
            raise InputError(
                f"value_proj_ratio: expected one that makes channels a multiple of num_heads = {num_heads}, "
                f"found {value_proj_ratio}, which makes {value_channels}"
            )
        super().__init__(embed_dims, value_channels, num_heads, num_levels, num_points)
        self.dropout = nn.Dropout(dropout)
        self.batch_first = batch_first
        self.norm_cfg = norm_cfg
        self.init_cfg = init_cfg
        self.im2col_step = im2col_step
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.num_levels = num_levels
        self.num_points = num_points

    def init_weights(self) -> None:
        """Initialises all parameters."""
        self._reset_parameters()

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        identity: Tensor | None = None,
        query_pos: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        reference_points: Tensor | None = None,
        spatial_shapes: SpatialShapes | None = None,
        level_start_index: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Attend to the values with every query, and add the result to ``identity``.

        Args:
            query: ``[Q, N, C]``, or ``[N, Q, C]`` with ``batch_first``; like ``value``, ``identity``, ``query_pos`` and
                the result.
            key: Not used.
            value: The pixels of all levels; by default ``query``.
            identity: What the result is added to; by default ``query``.
            query_pos: Added to ``query``, not to ``identity``.
            key_padding_mask: ``[N, S]``, true for pixels that are padding: they count as zero.
            reference_points: ``[N, Q, num_levels, 2]``, (x, y) from 0 to 1 over the image; or
                ``[N, Q, num_levels, 4]``, boxes (x, y, width, height).
            spatial_shapes: ``[num_levels, 2]``, height and width of each level: a list of pairs, or a tensor.
            level_start_index: ``[num_levels]``, the first pixel of each level.
            kwargs: ``residual`` is an old name of ``identity``; everything else is ignored, as in mmcv.

        """
        if reference_points is None or spatial_shapes is None:
            missing = "reference_points" if reference_points is None else "spatial_shapes"
            raise InputError(f"{missing}: expected a tensor, found None")
        if identity is None:
            identity = kwargs.get("residual", query)
        if value is None:
            value = query
        if query_pos is not None:
            query = query + query_pos
        if not self.batch_first:
            query, value = query.transpose(0, 1), value.transpose(0, 1)
        output = self._attend(
            query,
            reference_points,
            value,
            spatial_shapes,
            level_start_index,
            key_padding_mask,
            {"value_mask": "key_padding_mask"},
        )
        if not self.batch_first:
            output = output.transpose(0, 1)
        dropped: Tensor = self.dropout(output)
        return dropped + identity


def patch(*, strict: bool = False) -> list[str]:
    """Makes mmcv and detrex, whichever is installed, call fourtap; also in models that exist already.

    It replaces their function and autograd function in every module that has imported them, and the ``forward`` of
    their module; class names, registries and checkpoints stay as they are. What computes something else than fourtap
    does is left alone: both are tried on small cases first. mmcv's extension gets our functions, too, so that BEVFormer
    and others with autograd functions of their own use them.

    Neither extension need be built: where one cannot be imported, ours is in its place, and all else that it should
    have raises :class:`fourtap.UnsupportedError` when it is called.

    Args:
        strict: Whether it is an error that something is left alone, instead of a line in the log of ``fourtap.compat``.

    Returns:
        The names of what is replaced now.

    Raises:
        fourtap.UnsupportedError: There is neither of them; or with ``strict``, and then nothing is replaced.

    """
    _replaced.is_strict = strict
    failures = []
    for name, import_it in _PATCHABLE.items():
        try:
            module = import_it()
        except ImportError as error:
            failures.append(f"{name} ({error})")
            continue
        try:
            _change(module)
        except UnsupportedError:
            unpatch()
            raise
    if len(failures) == len(_PATCHABLE):
        raise UnsupportedError(f"mmcv or detrex: expected one that can be imported, found none: {', '.join(failures)}")
    return sorted([*_replaced.names, *_mmcv_extensions.installed_names()])


def unpatch() -> None:
    """Undoes :func:`patch`."""
    _replaced.undo()
    _mmcv_extensions.uninstall()


# mmcv 1.3.8 to 1.3.14, which hand two arguments too many to the function for CPUs.
_ONLY_ON_GPUS = frozenset({"1a93dc0dc016b067"})


def _change(home: ModuleType) -> None:
    function, autograd_function = multi_scale_deformable_attn_pytorch, MultiScaleDeformableAttnFunction
    names = ("multi_scale_deformable_attn_pytorch", "MultiScaleDeformableAttnFunction")
    _replaced.try_everywhere(home, names[0], function, require_same_function)
    _replaced.try_everywhere(home, names[1], autograd_function, require_same_autograd_function)
    if [vars(home).get(name) for name in names] == [function, autograd_function]:
        # From its projections on: whatever comes between them and the operator is then left out.
        cases = functools.partial(module_cases, added=True)
        ours = functools.partial(_from_projections, home)
        known = inspect.signature(MultiScaleDeformableAttention.forward).parameters
        replace_forward(_replaced, home, "MultiScaleDeformableAttention", ours, cases, known, _ONLY_ON_GPUS)


def _from_projections(home: ModuleType, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def forward(self: Any, query: Tensor, *others: Any, **named: Any) -> Tensor:
        ours = vars(home).get("MultiScaleDeformableAttnFunction") is MultiScaleDeformableAttnFunction
        if others or not ours or not _is_usual(self, query, **named):
            return original(self, query, *others, **named)
        value, identity = named.get("value"), named.get("identity")
        value = query if value is None else value
        identity = query if identity is None else identity
        if named.get("query_pos") is not None:
            query = query + named["query_pos"]
        if not self.batch_first:
            query, value = query.transpose(0, 1), value.transpose(0, 1)
        offsets, logits = project(self, query, heads=self.num_heads)
        attended = attend_from_layers(
            self.value_proj(value),
            named["spatial_shapes"],
            named["reference_points"],
            offsets,
            logits,
            heads=self.num_heads,
            points=self.num_points,
            mask=named.get("key_padding_mask"),
            level_start_index=named.get("level_start_index"),
        )
        output = self.output_proj(attended)
        if not self.batch_first:
            output = output.transpose(0, 1)
        dropped: Tensor = self.dropout(output)
        return dropped + identity

    return forward


def _is_usual(
    self: Any,
    query: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    reference_points: Tensor | None = None,
    spatial_shapes: SpatialShapes | None = None,
    residual: object = None,
    **others: Any,
) -> bool:
    """Whether the arguments are those of a model; the original has its own words for others."""
    if reference_points is None or spatial_shapes is None or residual is not None:
        return False
    if query.device.type not in ("cpu", "cuda") or reference_points.dim() != 4:
        return False
    masks = key_padding_mask is None or (key_padding_mask.dtype is torch.bool and key_padding_mask.dim() == 2)
    fits = reference_points.shape[2] in (1, self.num_levels) and reference_points.shape[-1] in (2, 4)
    return masks and fits and length(spatial_shapes) == self.num_levels
