"""The operators, for PyTorch tensors and NumPy arrays."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

# The first call needs it, and must import nothing: see fourtap._lazy.
import numpy.ma

from fourtap import _native
from fourtap._broadcast import are_aligned, attend_broadcast
from fourtap._route import Route
from fourtap.errors import DTypeError, InputError, UnsupportedError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from fourtap._native import DenseSettings

    Levels = torch.Tensor | NDArray[Any] | Sequence[Sequence[int]]
    Starts = torch.Tensor | NDArray[Any] | Sequence[int] | None
    T = TypeVar("T", torch.Tensor, NDArray[Any])
    Sampling = Literal["bilinear", "nearest"]
    Window = int | tuple[int | None, int | None] | None
    Alignment = Literal["top_left", "bottom_right"]

__all__ = [
    "ms_deform_attn",
    "ms_deform_attn_backward",
    "ms_deform_attn_from_projections",
    "scaled_dot_product_attention",
]

_no_torch = "it is not installed"
_HAS_TORCH = False
_FARTHEST = 2**63 - 1
_WHOLE: Any = (int,)
_REAL: Any = (int, float)
if importlib.util.find_spec("torch") is not None:
    try:
        import torch

        from fourtap._dense import attend_densely
        from fourtap._projected import from_projections
        from fourtap._torch import Tensor, attend, forward, gradients, is_traced
        from fourtap._when_sharded import register_sharding

        register_sharding()
        _HAS_TORCH = True
        # Sizes of tensors that are being traced, and numbers computed from them.
        _WHOLE += (torch.SymInt,)
        _REAL += (torch.SymInt, torch.SymFloat)
    except (ImportError, OSError) as error:
        # A broken PyTorch is no reason to refuse NumPy arrays; a call with a tensor reports why it is broken.
        _no_torch = f"importing it failed: {error}"


def ms_deform_attn(
    value: T,
    spatial_shapes: Levels,
    sampling_locations: T,
    attention_weights: T,
    *,
    level_start_index: Starts = None,
    deterministic: bool | None = None,
    out: T | None = None,
) -> T:
    """Multi-scale deformable attention.

    For each query and head, ``L * P`` points are read from a pyramid of feature maps by bilinear interpolation (zeros
    outside, ``align_corners=False``) and summed with weights.

    Args:
        value: ``[N, S, M, D]``: N images, S pixels of all levels, M heads, D channels per head; float16, bfloat16,
            float32 or float64. Any strides.
        spatial_shapes: ``[L, 2]``, height and width of each level: a list of pairs, or a tensor, in host memory or
            on the device of ``value``. On the device only the kernel reads it: the call does not wait for the device.
        sampling_locations: ``[N, Q, M, L, P, 2]``, (x, y) in units of the level: 0 is its left or top edge, 1 its right
            or bottom edge. float32, or the dtype of ``value``. float32 is better: in bfloat16 a point
            is off by up to a quarter of a pixel on a level 134 pixels wide.
        attention_weights: ``[N, Q, M, L, P]``, float32 or the type of ``value``; usually the result of a softmax.
        level_start_index: ``[L]``, the first pixel of each level on axis S. Without it each level begins where the one
            before it ends.
        deterministic: Whether gradients must be bitwise reproducible from run to run. By default as
            ``torch.use_deterministic_algorithms`` says. It only matters for small float32 problems on CUDA. Where
            that setting is on, results do not depend on tuning tables either.
        out: The tensor to write to, ``[N, Q, M * D]`` in the dtype of ``value``; not with gradients.

    Returns:
        ``[N, Q, M * D]`` in the dtype of ``value``. For PyTorch tensors it is differentiable (once) with respect to
        value, locations and weights. Under autocast ``value`` is cast to its 16-bit dtype. Calls may be compiled,
        exported and captured into CUDA graphs.

    Raises:
        fourtap.InputError: Tensors that do not fit each other. fourtap.DTypeError: Elements of a wrong type.
            Each message names the tensor, what was expected and what was found.

    Example:
        >>> import numpy as np, fourtap
        >>> value = np.array([10, 20], np.float32).reshape(1, 2, 1, 1)  # one image of one row of two pixels
        >>> between = np.full((1, 1, 1, 1, 1, 2), 0.5, np.float32)  # one query, one point, halfway between the two
        >>> weight = np.ones((1, 1, 1, 1, 1), np.float32)
        >>> fourtap.ms_deform_attn(value, [(1, 2)], between, weight)
        array([[[15.]]], dtype=float32)

    """
    if _HAS_TORCH and isinstance(value, Tensor):
        found = (
            Route.REGISTERED
            if is_traced()
            else forward(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, out)
        )
        if isinstance(found, Tensor):
            return found
        return attend(
            found, value, spatial_shapes, level_start_index, sampling_locations, attention_weights, deterministic, out
        )
    if isinstance(value, np.ndarray):
        return _native.numpy_forward(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights, out
        )
    raise _strange("value", value)


def ms_deform_attn_backward(
    grad_out: T,
    value: T,
    spatial_shapes: Levels,
    sampling_locations: T,
    attention_weights: T,
    *,
    level_start_index: Starts = None,
    deterministic: bool | None = None,
) -> tuple[T, T, T]:
    """Gradients of :func:`ms_deform_attn` with respect to value, locations and weights, without autograd.

    Args:
        grad_out: ``[N, Q, M * D]``, the gradient of the output, in the dtype of ``value``.
        value: As for :func:`ms_deform_attn`.
        spatial_shapes: As for :func:`ms_deform_attn`.
        sampling_locations: As for :func:`ms_deform_attn`.
        attention_weights: As for :func:`ms_deform_attn`.
        level_start_index: As for :func:`ms_deform_attn`.
        deterministic: As for :func:`ms_deform_attn`.

    Example:
        >>> import numpy as np, fourtap
        >>> value = np.array([10, 20], np.float32).reshape(1, 2, 1, 1)
        >>> between = np.full((1, 1, 1, 1, 1, 2), 0.5, np.float32)
        >>> weight = np.ones((1, 1, 1, 1, 1), np.float32)
        >>> grad_out = np.ones((1, 1, 1), np.float32)
        >>> gradients = fourtap.ms_deform_attn_backward(grad_out, value, [(1, 2)], between, weight)
        >>> [gradient.ravel().tolist() for gradient in gradients]
        [[0.5, 0.5], [20.0, -15.0], [15.0]]

    """
    if _HAS_TORCH and isinstance(value, Tensor):
        return gradients(
            grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights, deterministic
        )
    if isinstance(value, np.ndarray):
        return _native.numpy_backward(
            grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights
        )
    raise _strange("value", value)


def ms_deform_attn_from_projections(
    value: T,
    spatial_shapes: Levels,
    reference_points: T,
    sampling_offsets: T,
    attention_logits: T | None,
    *,
    points_per_level: int | Sequence[int] | None = None,
    value_mask: T | None = None,
    sampling: Sampling = "bilinear",
    box_scale: float | Sequence[float] | None = None,
    level_start_index: Starts = None,
    deterministic: bool | None = None,
    out: T | None = None,
) -> T:
    """Multi-scale deformable attention from what a model's linear layers put out: offsets and logits.

    The same as :func:`ms_deform_attn` with sampling locations computed from reference points and offsets, and weights
    by a softmax over the logits, but in one pass: neither is stored, not even for gradients.

    Args:
        value: ``[N, S, M, D]``: N images, S pixels of all levels, M heads, D channels per head; float16, bfloat16,
            float32 or float64. Any strides, as for all tensors here.
        spatial_shapes: ``[L, 2]``, height and width of each level, as for :func:`ms_deform_attn`.
        reference_points: ``[N, Q, L, P, 2]``, points (x, y), or ``[N, Q, L, P, 4]``, boxes (x, y, width, height), from
            0 to 1 over the image; float32, which is better, or the dtype of ``value``. Axes of size 1 stand for every
            index. Axis P may be left out, or have a size that divides P: then the points take turns. Where levels have
            different numbers of points, it has size 1 or is left out.
        sampling_offsets: ``[N, Q, M, K, 2]``, K points of all levels, level by level: (x, y) in pixels of the level
            around a point, or in parts of a box around its centre. float32 or the dtype of ``value``.
        attention_logits: ``[N, Q, M, K]``, before the softmax over all K; float32 or the dtype of ``value``. None if
            one linear layer computes both: ``sampling_offsets`` is then ``[N, Q, M * K * 2 + M * K]``, first the
            offsets of all heads, then their logits, and so is its gradient.
        points_per_level: How many of the K points each level has: a number, or one for each level. By default K / L.
        value_mask: ``[N, S]``, bool or uint8, true for padding: such a pixel counts as zero and gets a zero gradient.
        sampling: ``"bilinear"``, with zeros outside; or ``"nearest"``: the nearest pixel, that of the border for points
            outside (RT-DETRv2's "discrete"), with no gradient by offsets and reference points.
        box_scale: The part of a box's width and height that an offset of 1 stands for: a number, or one for each level.
            By default 0.5 / P with P points on the level. Only for boxes.
        level_start_index: As for :func:`ms_deform_attn`.
        deterministic: As for :func:`ms_deform_attn`.
        out: As for :func:`ms_deform_attn`.

    Returns:
        ``[N, Q, M * D]`` in the dtype of ``value``. Locations and weights are computed in float32 (float64 for float64)
        whatever the dtypes. For PyTorch tensors it is differentiable (once) with respect to value, reference points,
        offsets and logits. Under autocast ``value`` is cast to its 16-bit dtype. Calls may be compiled, exported and
        captured into CUDA graphs.

    Raises:
        fourtap.InputError: Tensors that do not fit each other. fourtap.DTypeError: Elements of a wrong type.
            Each message names the tensor, what was expected and what was found.

    Example:
        >>> import numpy as np, fourtap
        >>> value = np.array([10, 20], np.float32).reshape(1, 2, 1, 1)  # one image of one row of two pixels
        >>> centre = np.full((1, 1, 1, 2), 0.5, np.float32)  # one query at the centre of the image
        >>> offsets = np.array([[0, 0], [0.5, 0]], np.float32).reshape(1, 1, 1, 2, 2)  # there, and half a pixel right
        >>> logits = np.zeros((1, 1, 1, 2), np.float32)  # equal weights
        >>> fourtap.ms_deform_attn_from_projections(value, [(1, 2)], centre, offsets, logits)
        array([[[17.5]]], dtype=float32)

    """
    if sampling != "bilinear" and sampling != "nearest":
        raise InputError(f"sampling: expected 'bilinear' or 'nearest', found {sampling!r}")
    operands = (
        value,
        spatial_shapes,
        level_start_index,
        reference_points,
        sampling_offsets,
        attention_logits,
        value_mask,
        (points_per_level, sampling == "nearest", box_scale, False),
    )
    if _HAS_TORCH and isinstance(value, Tensor):
        return from_projections(operands, deterministic, out)
    if isinstance(value, np.ndarray):
        return _native.numpy_projected_forward(operands, out)
    raise _strange("value", value)


@overload
def scaled_dot_product_attention(
    query: T,
    key: T,
    value: T,
    attn_mask: T | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    causal_alignment: Alignment = ...,
    window: Window = ...,
    return_lse: Literal[False] = ...,
) -> T: ...


@overload
def scaled_dot_product_attention(
    query: T,
    key: T,
    value: T,
    attn_mask: T | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    causal_alignment: Alignment = ...,
    window: Window = ...,
    return_lse: Literal[True],
) -> tuple[T, T]: ...


@overload
def scaled_dot_product_attention(
    query: T,
    key: T,
    value: T,
    attn_mask: T | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    causal_alignment: Alignment = ...,
    window: Window = ...,
    return_lse: bool,
) -> T | tuple[T, T]: ...


def scaled_dot_product_attention(
    query: T,
    key: T,
    value: T,
    attn_mask: T | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    causal_alignment: Alignment = "top_left",
    window: Window = None,
    return_lse: bool = False,
) -> T | tuple[T, T]:
    """Dense attention: ``softmax(scale * query @ key.T + mask) @ value``.

    Called like PyTorch's function of this name, whose arguments come first and in its order. Query ``i`` is aligned to
    key ``c`` and sees the keys from ``c - left`` to ``c + right``, as ``window`` and ``is_causal`` allow, that
    ``attn_mask`` does not hide. A query that sees no key gets 0, and an LSE of minus infinity.

    Args:
        query: ``[..., Hq, Sq, D]``: any batch axes, heads, positions, channels per head; float16, bfloat16, float32 or
            float64. Any strides, so ``x.transpose(1, 2)`` of a ``[B, S, H, D]`` tensor is read without a copy; only
            several batch axes that cannot be seen as one are copied. ``[S, D]`` is one head.
        key: ``[..., Hk, Sk, D]`` in the dtype of ``query``. All axes before positions and channels (with
            ``enable_gqa`` those before the heads) are broadcast against those of the others, without a copy.
        value: ``[..., Hk, Sk, Dv]``, likewise.
        attn_mask: Anything that broadcasts to ``[..., Hq, Sq, Sk]``, read by its strides: booleans, true where a query
            sees a key; or numbers in the dtype of ``query`` or float32 that are added to the scaled logits, where minus
            infinity hides a key. It may come together with ``is_causal`` and ``window``. ``causal_upper_left`` and
            ``causal_lower_right`` of ``torch.nn.attention.bias`` are masks, too.
        dropout_p: Must be 0: nothing is dropped.
        is_causal: Whether keys after ``c`` are masked out.
        scale: Any finite number; by default ``1 / sqrt(D)``.
        enable_gqa: Whether ``Hq`` may be a multiple of ``Hk``. Consecutive query heads then share a key and value
            head.
        causal_alignment: Where ``c`` is, for ``is_causal`` and ``window``: ``i`` ("top_left", as PyTorch's
            ``is_causal``) or ``i + Sk - Sq`` ("bottom_right", as FlashAttention's: the last query is at the last key).
        window: ``(left, right)``, how many keys before and after ``c`` are seen; None for all on that side. A number
            alone is both.
        return_lse: Whether to return the log-sum-exp (LSE) of the logits, natural logarithm, too. It has no gradient.

    Returns:
        ``[..., Hq, Sq, Dv]`` in the dtype and memory order of ``query``: a transposed ``[B, S, H, D]`` tensor gives a
        transposed ``[B, S, H, Dv]`` result. With ``return_lse`` a pair of it and ``[..., Hq, Sq]`` in float32 (float64
        for float64). For PyTorch tensors it is differentiable (once) with respect to query, key, value and a mask of
        numbers: on CUDA in float16 and bfloat16, on the CPU in every dtype. Under autocast query, key and value are
        cast to its 16-bit dtype.

    Raises:
        fourtap.InputError: Tensors that do not fit each other. fourtap.DTypeError: Elements of a wrong type.
            fourtap.UnsupportedError: A gradient is asked for on CUDA in float32 or float64, or a second one anywhere.
            Each message names the tensor or argument, what was expected and what was found.

    Example:
        >>> import numpy as np, fourtap
        >>> query = np.zeros((1, 1, 2, 4), np.float32)  # zeros give equal weight to all keys they see
        >>> key = np.ones((1, 1, 3, 4), np.float32)
        >>> value = np.array([10, 20, 30], np.float32).reshape(1, 1, 3, 1)
        >>> fourtap.scaled_dot_product_attention(query, key, value).ravel()
        array([20., 20.], dtype=float32)
        >>> fourtap.scaled_dot_product_attention(query, key, value, is_causal=True).ravel()
        array([10., 15.], dtype=float32)
        >>> fourtap.scaled_dot_product_attention(query, key, value, np.array([True, False, True])).ravel()
        array([20., 20.], dtype=float32)
        >>> out, lse = fourtap.scaled_dot_product_attention(query, key, value, window=(1, 0), return_lse=True)
        >>> out.ravel(), np.exp(lse).round(3).ravel()
        (array([10., 15.], dtype=float32), array([1., 2.], dtype=float32))

    """
    left, right = _band(window)
    if causal_alignment != "top_left" and causal_alignment != "bottom_right":
        raise InputError(f"causal_alignment: expected 'top_left' or 'bottom_right', found {causal_alignment!r}")
    if dropout_p != 0:
        raise UnsupportedError(f"dropout_p: expected 0.0, as dense attention drops nothing, found {dropout_p!r}")
    wanted = (
        _real(scale),
        left,
        0 if is_causal else right,
        causal_alignment == "bottom_right",
        enable_gqa,
        return_lse,
    )
    if _HAS_TORCH and isinstance(query, Tensor):
        return attend_densely(query, key, value, attn_mask, wanted)  # type: ignore[no-any-return]
    if isinstance(query, np.ndarray):
        return _attend_arrays(query, key, value, attn_mask, wanted)  # type: ignore[no-any-return]
    raise _strange("query", query)


def _attend_arrays(query: Any, key: Any, value: Any, attn_mask: Any, wanted: DenseSettings) -> Any:
    def attend(*arrays: Any) -> Any:
        return _native.numpy_dense(*arrays, wanted)  # type: ignore[call-arg]

    grouped = wanted[4]
    are_arrays = all(isinstance(array, np.ndarray) for array in (query, key, value))
    if not are_arrays or are_aligned(query, key, value, grouped):
        return attend(query, key, value, attn_mask)
    return attend_broadcast(attend, query, key, value, attn_mask, grouped, np)


def _band(window: object) -> tuple[int | None, int | None]:
    if window is None:
        return None, None
    if isinstance(window, (tuple, list)) and len(window) == 2:
        return _side(window[0]), _side(window[1])
    side = _side(window)
    return side, side


def _side(side: Any) -> int | None:
    if side is None:
        return None
    if isinstance(side, np.integer):
        side = side.item()
    if isinstance(side, bool) or not isinstance(side, _WHOLE):
        raise DTypeError(f"window: expected an integer, None, or a pair of them, found {side!r}")
    if not 0 <= side <= _FARTHEST:
        raise InputError(f"window: expected numbers from 0 to {_FARTHEST}, or None for all keys, found {side}")
    return side  # type: ignore[no-any-return]


def _real(scale: Any) -> float | None:
    if scale is None or isinstance(scale, _REAL):
        return scale
    if isinstance(scale, (np.floating, np.integer)):
        return scale.item()
    raise DTypeError(f"scale: expected a number or None, found {scale!r}")


def _strange(name: str, found_object: object) -> Exception:
    kind = type(found_object)
    found = f"{kind.__module__}.{kind.__qualname__}"
    if found.startswith("torch.") and not _HAS_TORCH:
        return InputError(f"{name}: expected a PyTorch that works, found {found}, but {_no_torch}")
    return DTypeError(f"{name}: expected a PyTorch tensor or a NumPy array, found {found}")
