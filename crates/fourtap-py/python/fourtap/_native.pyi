"""The compiled part. Not for users: what it promises may change with any version."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from fourtap._route import Route

__version__: str

Array = NDArray[Any]
Levels = Tensor | Array | Sequence[Sequence[int]]
Starts = Tensor | Array | Sequence[int] | None
# Of dense attention: scale, keys seen left and right of the diagonal, whether that is aligned to the bottom right, and
# the arguments enable_gqa and return_lse.
DenseSettings = tuple[float | None, int | None, int | None, bool, bool, bool]

def command_line(words: list[str], /) -> int:
    """Run the command line with these words, the first being the program's name; its exit code."""

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
    """The same where that is all there is to do. Otherwise nothing is done, and the route says what is to be."""

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
    """Gradients of value, locations and weights, those that are wanted."""

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
    """The same, unless the registered operator is to be called: then None."""

def numpy_forward(
    value: Array,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Array,
    attention_weights: Array,
    out: Array | None,
    /,
) -> Array:
    """Attention on all processors."""

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

def torch_dense(query: Tensor, key: Tensor, value: Tensor, wanted: DenseSettings, /) -> Tensor | tuple[Tensor, Tensor]:
    """Dense attention on the device of the tensors and its current stream; a pair with lse, if that is wanted."""

def torch_dense_if_plain(query: Tensor, key: Tensor, value: Tensor, wanted: DenseSettings, /) -> Any | Route:
    """The same where that is all there is to do. Otherwise as `torch_forward_if_plain`."""

def numpy_dense(query: Array, key: Array, value: Array, wanted: DenseSettings, /) -> Array | tuple[Array, Array]:
    """Dense attention on all processors; a pair with lse, if that is wanted."""
