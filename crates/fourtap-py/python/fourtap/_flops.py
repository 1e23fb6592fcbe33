"""FLOP of the registered operators, for ``torch.utils.flop_counter.FlopCounterMode``.

Counts of deformable attention are those of the library's cost model (`fourtap::msda::Traffic`): 10 per channel and
sample, and twice that for all gradients. Counts of dense attention are PyTorch's for its own function, masks or not, so
that a model has the same number with either.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from math import prod
from types import ModuleType
from typing import Any

from fourtap.compat._imports import WhenImported

__all__ = ["FORMULAS", "register_when_imported"]

# As in crates/fourtap/src/msda/model.rs.
_PER_CHANNEL_AND_SAMPLE = 10
_COUNTER = "torch.utils.flop_counter"

Shape = Sequence[int]


def _msda(value: Shape, shapes: Any, starts: Any, levels: Any, locations: Shape, *others: Any, **_: Any) -> int:
    # Locations are [N, Q, M, L, P, 2].
    return _PER_CHANNEL_AND_SAMPLE * prod(locations[:-1]) * value[-1]


def _msda_backward(grad_out: Shape, *operands: Any, **_: Any) -> int:
    return 2 * _msda(*operands)


def _msda_projected(
    value: Shape,
    shapes: Any,
    starts: Any,
    levels: Any,
    references: Shape,
    offsets: Shape,
    logits: Shape | None,
    *others: Any,
    **_: Any,
) -> int:
    # Offsets are [N, Q, M, K, 2], or in one tensor with the logits [N, Q, M * K * 3].
    samples = prod(offsets) // (3 if logits is None else 2)
    return _PER_CHANNEL_AND_SAMPLE * samples * value[-1]


def _msda_projected_backward(grad_out: Shape, *operands: Any, **_: Any) -> int:
    return 2 * _msda_projected(*operands)


def _dense(query: Shape, key: Shape, value: Shape, *others: Any, **_: Any) -> int:
    # Q K^T, and the sum of values.
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _dense_backward(grad_out: Shape, query: Shape, key: Shape, value: Shape, *others: Any, **_: Any) -> int:
    # Q K^T again, the gradients of query and key; those of the weights and of value.
    return 2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


#: By the names of the operators in ``torch.ops.fourtap``.
FORMULAS: dict[str, Callable[..., int]] = {
    "msda": _msda,
    "msda_backward": _msda_backward,
    "msda_projected": _msda_projected,
    "msda_projected_backward": _msda_projected_backward,
    "dense": _dense,
    "dense_backward": _dense_backward,
}


def _register(counter: ModuleType) -> None:
    import torch

    # They define the operators.
    for module in ("_registered", "_projected_registered", "_dense"):
        importlib.import_module(f"fourtap.{module}")
    for name, formula in FORMULAS.items():
        operator = getattr(torch.ops.fourtap, name)
        if operator not in counter.flop_registry:
            counter.register_flop_formula(operator)(formula)


def register_when_imported() -> None:
    """Makes the counter know the operators as soon as somebody imports it.

    A counter knows what was registered before it was made, and importing it takes a second where there is Triton.
    """

    def then(counter: ModuleType) -> None:
        later.stop()
        _register(counter)

    later = WhenImported(_COUNTER.__eq__, then)
    # First, so that it is not missed where another thread imports it meanwhile.
    later.start()
    if _COUNTER in sys.modules:
        then(sys.modules[_COUNTER])
