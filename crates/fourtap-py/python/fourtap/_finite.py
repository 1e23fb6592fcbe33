"""``FOURTAP_CHECK=1``: calls with NaN or infinite numbers raise an error. Without it nothing here is ever called.

Samples at such places count as zero and have no gradient, so a training that diverges may look well for a while.

The functions of the compiled part are replaced, once: whatever calls them is checked, eager, compiled, or backward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fourtap import _native
from fourtap._route import Route
from fourtap.errors import InputError

__all__ = ["check_from_now_on"]

# The name of a tensor, the tensor, and whether minus infinity is allowed, as it stands for what is not seen.
_Tensors = Iterator[tuple[str, Any, bool]]

_GIVEN = "ms_deform_attn"
_PROJECTED = "ms_deform_attn_from_projections"
_DENSE = "scaled_dot_product_attention"


def check_from_now_on() -> None:
    """Check every call. Before the operators are imported, which take these functions by name."""
    for function, call, tensors in (
        ("torch_forward", _GIVEN, _of_given),
        ("torch_forward_if_plain", _GIVEN, _of_given),
        ("numpy_forward", _GIVEN, _of_given),
        ("torch_backward", f"backward of {_GIVEN}", _of_backward(_of_given)),
        ("torch_backward_if_plain", f"backward of {_GIVEN}", _of_backward(_of_given)),
        ("numpy_backward", f"backward of {_GIVEN}", _of_backward(_of_given)),
        ("torch_projected_forward", _PROJECTED, _of_projected),
        ("torch_projected_forward_if_plain", _PROJECTED, _of_projected),
        ("numpy_projected_forward", _PROJECTED, _of_projected),
        ("torch_projected_backward", f"backward of {_PROJECTED}", _of_backward(_of_projected)),
        ("torch_projected_backward_if_plain", f"backward of {_PROJECTED}", _of_backward(_of_projected)),
        ("torch_dense", _DENSE, _of_dense),
        ("torch_dense_if_plain", _DENSE, _of_dense),
        ("numpy_dense", _DENSE, _of_dense),
        ("torch_dense_backward", f"backward of {_DENSE}", _of_backward(_of_dense)),
    ):
        original = getattr(_native, function)
        # The last argument of these is a tensor to write to.
        takes_out = "forward" in function
        setattr(_native, function, _checked(original, call, tensors, takes_out))


def _checked(
    original: Callable[..., Any], call: str, tensors: Callable[..., _Tensors], takes_out: bool
) -> Callable[..., Any]:
    def checked(*arguments: Any) -> Any:
        # The call first: its own errors, about shapes and dtypes, say more, and it knows whether it is a plain one.
        # But a refused call has written nothing.
        out = arguments[-1] if takes_out else None
        found = original(*arguments) if out is None else original(*arguments[:-1], None)
        if found is None or isinstance(found, Route):
            return found
        for name, tensor, allows_hidden in tensors(*arguments):
            _refuse(call, name, tensor, allows_hidden)
        return found if out is None else original(*arguments)

    return checked


def _refuse(call: str, name: str, tensor: Any, allows_hidden: bool) -> None:
    total = int(np.prod(tensor.shape))
    count = _count_in_array(tensor, allows_hidden) if isinstance(tensor, np.ndarray) else _count(tensor, allows_hidden)
    if count > 0:
        kinds = "NaN or plus infinity" if allows_hidden else "NaN or infinite"
        raise InputError(
            f"{name}: expected finite numbers, as FOURTAP_CHECK is set, found {count} of {total} that are {kinds} "
            f"(in {call})"
        )


def _count_in_array(array: Any, allows_hidden: bool) -> int:
    if array.dtype.kind in "biu":
        return 0
    strange = ~np.isfinite(array)
    return int(np.count_nonzero(strange & (array != -np.inf) if allows_hidden else strange))


def _count(tensor: Any, allows_hidden: bool) -> int:
    torch = sys.modules["torch"]
    if not tensor.is_floating_point() or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
        return 0
    with torch.no_grad():
        strange = ~torch.isfinite(tensor)
        if allows_hidden:
            strange &= tensor != -torch.inf
        return int(torch.count_nonzero(strange))


def _of_given(value: Any, shapes: Any, starts: Any, locations: Any, weights: Any, *others: Any) -> _Tensors:
    yield "value", value, False
    yield "sampling_locations", locations, False
    yield "attention_weights", weights, False


def _of_projected(operands: Any, *others: Any) -> _Tensors:
    value, _, _, references, offsets, logits, mask, _ = operands
    if mask is not None:
        # What is masked counts as zero, whatever it is.
        if isinstance(value, np.ndarray):
            value = np.where(mask.astype(bool)[..., None, None], np.zeros((), value.dtype), value)
        else:
            value = value.detach().masked_fill(mask.bool()[..., None, None], 0.0)
    yield "value", value, False
    yield "reference_points", references, False
    if logits is None:
        # Both in one tensor: of every three numbers two are an offset's.
        end = offsets.shape[-1] // 3 * 2
        offsets, logits = offsets[..., :end], offsets[..., end:]
    yield "sampling_offsets", offsets, False
    yield "attention_logits", logits, True


def _of_dense(query: Any, key: Any, value: Any, attn_mask: Any, *others: Any) -> _Tensors:
    yield "query", query, False
    yield "key", key, False
    yield "value", value, False
    if attn_mask is not None:
        yield "attn_mask", attn_mask, True


def _of_backward(tensors: Callable[..., _Tensors]) -> Callable[..., _Tensors]:
    def of_backward(grad_out: Any, *arguments: Any) -> _Tensors:
        yield "grad_out", grad_out, False
        yield from tensors(*arguments)

    return of_backward
