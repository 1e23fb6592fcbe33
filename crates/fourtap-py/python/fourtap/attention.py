"""The operator, for whatever kind of tensor it is called with."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fourtap import _native
from fourtap.errors import DTypeError, InputError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Levels = torch.Tensor | NDArray[Any] | Sequence[Sequence[int]]
    Starts = torch.Tensor | NDArray[Any] | Sequence[int] | None
    T = TypeVar("T", torch.Tensor, NDArray[Any])

__all__ = ["ms_deform_attn", "ms_deform_attn_backward"]

_no_torch = "it is not installed"
_HAS_TORCH = False
if importlib.util.find_spec("torch") is not None:
    try:
        from fourtap._torch import Tensor, attend, gradients

        _HAS_TORCH = True
    except (ImportError, OSError) as error:
        # A broken PyTorch is no reason to refuse NumPy's arrays; whoever brings a tensor will read why.
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
        value: ``[N, S, M, D]``: N images, S pixels of all levels, M heads, D channels a head; float16, bfloat16,
            float32 or float64. Any strides.
        spatial_shapes: ``[L, 2]``, height and width of each level: a list of pairs, or a tensor, in host memory or
            beside ``value``. On CUDA it is read by the kernel alone: nobody waits for the device.
        sampling_locations: ``[N, Q, M, L, P, 2]``, (x, y) in units of the level: 0 is its left or top edge, 1 its right
            or bottom edge. float32 whatever the type of ``value``, or that type. float32 is better: in bfloat16 a point
            is off by up to a quarter of a pixel on a level 134 pixels wide.
        attention_weights: ``[N, Q, M, L, P]``, float32 or the type of ``value``; usually the result of a softmax.
        level_start_index: ``[L]``, the first pixel of each level on axis S. Without it each level begins where the one
            before it ends.
        deterministic: Whether gradients shall be equal to the bit from run to run. By default as
            ``torch.use_deterministic_algorithms`` says. Only small problems in float32 on CUDA differ at all.
        out: Where to write, ``[N, Q, M * D]`` in the type of ``value``; not with gradients.

    Returns:
        ``[N, Q, M * D]`` in the type of ``value``. For PyTorch tensors it is differentiable (once) by value, locations
        and weights, under autocast ``value`` is taken in its 16-bit type, and calls may be compiled, exported and
        captured into CUDA graphs.

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
        return attend(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights, deterministic, out
        )
    if isinstance(value, np.ndarray):
        return _native.numpy_forward(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights, out
        )
    raise _strange(value)


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
    """Gradients of :func:`ms_deform_attn` by value, locations and weights, for those who do not use autograd.

    Args:
        grad_out: ``[N, Q, M * D]``, the gradient by the result, in the type of ``value``.
        value: As there, like all other arguments.
        spatial_shapes: As there.
        sampling_locations: As there.
        attention_weights: As there.
        level_start_index: As there.
        deterministic: As there.

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
    raise _strange(value)


def _strange(value: object) -> Exception:
    kind = type(value)
    found = f"{kind.__module__}.{kind.__qualname__}"
    if found.startswith("torch.") and not _HAS_TORCH:
        return InputError(f"value: expected a PyTorch that works, found {found}, but {_no_torch}")
    return DTypeError(f"value: expected a PyTorch tensor or a NumPy array, found {found}")
