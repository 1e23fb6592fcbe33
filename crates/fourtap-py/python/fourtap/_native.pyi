"""The compiled part. Private: its interface may change with any version."""

from collections.abc import Sequence
from typing import Any, TypeVar

from numpy.typing import NDArray
from torch import Tensor

from fourtap._route import Route

__version__: str

Array = NDArray[Any]
Levels = Tensor | Array | Sequence[Sequence[int]]
Starts = Tensor | Array | Sequence[int] | None
# Of attention from projections: points_per_level, whether sampling is "nearest", box_scale, and whether value is zero
# already where value_mask is true, so that only gradients still need the mask.
ProjectionSettings = tuple[int | Sequence[int] | None, bool, float | Sequence[float] | None, bool]
T = TypeVar("T")
# value, spatial_shapes, level_start_index, reference_points, sampling_offsets, attention_logits, value_mask, settings.
# Where attention_logits is None, sampling_offsets has both: [N, Q, M * K * 2 + M * K].
Projections = tuple[T, Levels, Starts, T, T, T | None, T | None, ProjectionSettings]
# Of dense attention: scale, keys visible left and right of the diagonal, whether the diagonal is aligned to the bottom
# right, and the arguments enable_gqa and return_lse.
DenseSettings = tuple[float | None, int | None, int | None, bool, bool, bool]

def check(
    value: Any,
    spatial_shapes: Any,
    level_start_index: Any,
    sampling_locations: Any,
    attention_weights: Any,
    grad_out: Any,
    /,
) -> None:
    """Check a call with shadows of tensors: a forward one or, with grad_out, a backward one."""

def check_projected(operands: Projections[Any], grad_out: Any, /) -> None:
    """The same of a call from projections."""

def check_dense(
    query: Any, key: Any, value: Any, attn_mask: Any, settings: Any, of_backward: tuple[Any, Any, Any] | None, /
) -> None:
    """The same of dense attention; a backward call has grad_out, out and lse."""

def command_line(words: list[str], /) -> int:
    """Run the command line with these arguments, the first being the program's name; return its exit code."""

def set_pack_folder(path: str | None, /) -> None:
    """Look for compiled kernels in this folder, which is opened when a kernel is first needed."""

def torch_forward(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    out: Tensor | None,
    /,
) -> Tensor:
    """Attention on the device of the tensors and its current stream, without autograd."""

def torch_forward_if_plain(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    out: Tensor | None,
    /,
) -> Tensor | Route:
    """The same for a plain call. Otherwise nothing is computed, and the route says how to proceed."""

def torch_backward(
    grad_out: Tensor,
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    deterministic: bool,
    wanted: Sequence[bool],
    /,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The requested gradients of value, locations and weights."""

def torch_backward_if_plain(
    grad_out: Tensor,
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    deterministic: bool,
    wanted: Sequence[bool],
    /,
) -> tuple[Tensor | None, Tensor | None, Tensor | None] | None:
    """The same, or None if the registered operator must be called."""

def numpy_forward(
    value: Array,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Array,
    attention_weights: Array,
    out: Array | None,
    /,
) -> Array:
    """Attention on all cores."""

def numpy_backward(
    grad_out: Array,
    value: Array,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Array,
    attention_weights: Array,
    /,
) -> tuple[Array, Array, Array]:
    """Gradients of value, locations and weights."""

def torch_projected_forward(operands: Projections[Tensor], out: Tensor | None, /) -> Tensor:
    """Attention from projections on the device of the tensors and its current stream, without autograd."""

def torch_projected_forward_if_plain(operands: Projections[Tensor], out: Tensor | None, /) -> Tensor | Route:
    """The same for a plain call. Otherwise as `torch_forward_if_plain`."""

def torch_projected_backward(
    grad_out: Tensor, operands: Projections[Tensor], deterministic: bool, wanted: Sequence[bool], /
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The requested gradients of value, reference points, offsets and logits, both in one like the operands."""

def torch_projected_backward_if_plain(
    grad_out: Tensor, operands: Projections[Tensor], deterministic: bool, wanted: Sequence[bool], /
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None] | None:
    """The same, or None if the registered operator must be called."""

def torch_zero_pixels(value: Tensor, mask: Tensor, /) -> bool:
    """Write zeros to the pixels of value, [N, S, M, D], where the mask, [N, S], is true.

    False, and nothing done, where something intercepts operator calls or memory cannot be written directly.
    """

def numpy_projected_forward(operands: Projections[Array], out: Array | None, /) -> Array:
    """Attention from projections on all cores."""

def torch_dense(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, wanted: DenseSettings, /
) -> Tensor | tuple[Tensor, Tensor]:
    """Dense attention on the device of the tensors and its current stream; with return_lse a pair."""

def torch_dense_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    settings: DenseSettings,
    wanted: tuple[bool, bool, bool, bool],
    /,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The wanted gradients of query, key, value and of a bias."""

def torch_dense_if_plain(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, wanted: DenseSettings, /
) -> Any | Route:
    """The same for a plain call. Otherwise as `torch_forward_if_plain`."""

def numpy_dense(
    query: Array, key: Array, value: Array, attn_mask: Array | None, wanted: DenseSettings, /
) -> Array | tuple[Array, Array]:
    """Dense attention on all cores; with return_lse a pair."""
