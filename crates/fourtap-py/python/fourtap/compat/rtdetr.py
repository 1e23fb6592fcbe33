"""The repositories of RT-DETR, RT-DETRv2, D-FINE and DEIM: their attention modules, and the functions these call.

They are not packages, so what to change is named, after it is imported: a model, a module, or the folder of them all::

    import fourtap.compat.rtdetr
    fourtap.compat.rtdetr.patch(model)      # or patch(src), patch(engine)

"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

from torch import Tensor, nn

from fourtap.compat import _trial_cases as cases
from fourtap.compat._drop_in import Replacements, attend
from fourtap.compat._point_lists import attend_point_lists
from fourtap.compat._rtdetr_modules import from_projections, one_tensor
from fourtap.compat._trial import (
    require_agreement,
    require_one_of,
    require_plain_function,
    require_same_arguments,
)
from fourtap.errors import InputError, UnsupportedError
from fourtap.nn import SpatialShapes

__all__ = ["deformable_attention_core_func", "deformable_attention_core_func_v2", "patch", "unpatch"]

_CLASS = "MSDeformableAttention"
_replaced = Replacements()


def deformable_attention_core_func(
    value: Tensor,
    value_spatial_shapes: SpatialShapes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """RT-DETR's function: ``[N, Q, M * D]``, differentiable with respect to value, locations and weights."""
    return attend(value, value_spatial_shapes, None, sampling_locations, attention_weights)


def deformable_attention_core_func_v2(
    value: Tensor | Sequence[Tensor],
    value_spatial_shapes: SpatialShapes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    num_points_list: Sequence[int],
    method: str = "default",
    value_shape: str = "default",
) -> Tensor:
    """The function of RT-DETRv2, D-FINE and DEIM: every level may have its own number of points.

    Args:
        value: ``[N, S, M, D]`` as in RT-DETRv2; or one ``[N, M, D, H * W]`` for each level, as in D-FINE and DEIM.
        value_spatial_shapes: ``[L, 2]``, height and width of each level: a list of pairs, or a tensor.
        sampling_locations: ``[N, Q, M, sum(num_points_list), 2]``.
        attention_weights: ``[N, Q, M, sum(num_points_list)]``.
        num_points_list: The number of points of each level.
        method: ``"default"`` interpolates; ``"discrete"`` takes the nearest pixel, of the border for locations outside,
            and has no gradient by the locations. The last column is that of a square, as in the originals: of a level
            that is wider than high, they read no more than that.
        value_shape: DEIM's, which says what ``value`` is; not needed.

    Returns:
        ``[N, Q, M * D]``, differentiable with respect to value and weights, and with ``"default"`` to the locations.

    Example:
        >>> import torch
        >>> from fourtap.compat.rtdetr import deformable_attention_core_func_v2
        >>> shapes, points = [(8, 8), (4, 4)], [4, 2]
        >>> levels = [torch.rand(1, 8, 32, height * width) for height, width in shapes]
        >>> locations, weights = torch.rand(1, 10, 8, 6, 2), torch.rand(1, 10, 8, 6)
        >>> deformable_attention_core_func_v2(levels, shapes, locations, weights, points).shape
        torch.Size([1, 10, 256])

    """
    if value_shape not in ("default", "reshape"):
        raise InputError(f"value_shape: expected 'default' or 'reshape', found {value_shape!r}")
    if not isinstance(value, Tensor):
        value = one_tensor(value, value_spatial_shapes)
    return attend_point_lists(
        value,
        value_spatial_shapes,
        sampling_locations,
        attention_weights,
        num_points_list,
        method,
        columns_by_height=True,
    )


def patch(*things: nn.Module | ModuleType, strict: bool = False) -> list[str]:
    """Makes models of these repositories call fourtap; those that exist already, and all that are built afterwards.

    It replaces the bodies of their functions, which are reached through every name, and the ``forward`` of their
    ``MSDeformableAttention``; class names and checkpoints stay as they are. What computes something else than fourtap
    does is left alone: both are tried on small cases first. Compile models afterwards.

    Args:
        things: Models, or modules of Python with the functions or classes: ``rtdetrv2_decoder``, ``utils``. All that is
            imported from below a package counts, so it may be ``src`` or ``engine``.
        strict: Whether it is an error that something is left alone, instead of a line in the log of ``fourtap.compat``.

    Returns:
        The names of what is replaced now.

    Raises:
        fourtap.UnsupportedError: One of them has nothing in it that could be replaced; or with ``strict``, and then
            nothing is replaced.

    """
    _replaced.is_strict = strict
    try:
        _patch(things)
    except UnsupportedError:
        if strict:
            unpatch()
        raise
    return _replaced.names


def _patch(things: Iterable[nn.Module | ModuleType]) -> None:
    for thing in things:
        if not isinstance(thing, nn.Module | ModuleType):
            raise InputError(f"things: expected models or modules, found {type(thing).__name__}")
        found = list(_of_model(thing) if isinstance(thing, nn.Module) else _of_module(thing))
        if not found:
            name = thing.__name__ if isinstance(thing, ModuleType) else type(thing).__name__
            raise UnsupportedError(
                f"{name}: expected {_CLASS} or deformable_attention_core_func of RT-DETR, RT-DETRv2, D-FINE or DEIM, "
                "found none of them"
            )
        for function, _ in found:
            if function is not None:
                _patch_function(function)
        for function, owner in found:
            if owner is not None and _calls_ours(owner, function):
                _patch_class(owner)


def unpatch() -> None:
    """Undoes :func:`patch`."""
    _replaced.undo()
    _functions.clear()


# A function of theirs, or a class with projections, or both.
_Found = tuple[FunctionType | None, type[nn.Module] | None]
# Those whose bodies are replaced.
_functions: list[FunctionType] = []


def _of_model(model: nn.Module) -> Iterator[_Found]:
    for module in model.modules():
        core = getattr(module, "ms_deformable_attn_core", None)
        # A partial function, where there are several ways to sample.
        function = getattr(core, "func", core)
        if _is_core(function):
            yield function, type(module)


def _of_module(home: ModuleType) -> Iterator[_Found]:
    below = f"{home.__name__}."
    inner = [module for name, module in list(sys.modules.items()) if name.startswith(below)]
    for module in [home, *inner]:
        for thing in list(getattr(module, "__dict__", {}).values()):
            if _is_core(thing):
                yield thing, None
            elif isinstance(thing, type) and issubclass(thing, nn.Module) and thing.__name__ == _CLASS:
                yield None, thing


def _is_core(thing: object) -> TypeGuard[FunctionType]:
    return isinstance(thing, FunctionType) and any(thing.__name__ == ours.__name__ for ours, _ in _BODIES)


def _patch_function(function: FunctionType) -> None:
    name = f"{function.__module__}.{function.__name__}"
    # The function stays and gets another body: the models' layers hold the function itself.
    _replaced.try_code(name, function, functools.partial(_body_for, function))
    if function not in _functions and any(function.__code__ is body.__code__ for _, body in _BODIES):
        _functions.append(function)


def _patch_class(owner: type[nn.Module]) -> None:
    name = f"{owner.__module__}.{owner.__qualname__}.forward"
    cores = (deformable_attention_core_func, deformable_attention_core_func_v2)
    _replaced.try_forward(name, owner, functools.partial(from_projections, owner, cores, _is_ours))


def _calls_ours(owner: type[nn.Module], function: FunctionType | None) -> bool:
    """Whether its modules may call a function of ours; with theirs, a ``forward`` of ours would change nothing."""
    if function is not None:
        return function in _functions
    known = owner.forward.__globals__.values()
    return any(isinstance(thing, FunctionType) and thing in _functions for thing in known)


def _is_ours(core: object) -> bool:
    """Whether what a module calls is replaced: who puts a function of their own there wants it to be called."""
    return getattr(core, "func", core) in _functions


# The bodies run in the module of the function that gets them, so they can use nothing of this one.
def _body(value: Tensor, value_spatial_shapes: Any, sampling_locations: Tensor, attention_weights: Tensor) -> Tensor:
    from fourtap.compat.rtdetr import deformable_attention_core_func as ours

    return ours(value, value_spatial_shapes, sampling_locations, attention_weights)


def _body_v2(
    value: Any,
    value_spatial_shapes: Any,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    num_points_list: Any,
    method: str = "default",
) -> Tensor:
    from fourtap.compat.rtdetr import deformable_attention_core_func_v2 as ours

    return ours(value, value_spatial_shapes, sampling_locations, attention_weights, num_points_list, method)


def _body_deim(
    value: Any,
    value_spatial_shapes: Any,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    num_points_list: Any,
    method: str = "default",
    value_shape: str = "default",
) -> Tensor:
    from fourtap.compat.rtdetr import deformable_attention_core_func_v2 as ours

    others = (num_points_list, method, value_shape)
    return ours(value, value_spatial_shapes, sampling_locations, attention_weights, *others)


_BODIES: tuple[tuple[Callable[..., Tensor], Callable[..., Tensor]], ...] = (
    (deformable_attention_core_func, _body),
    (deformable_attention_core_func_v2, _body_v2),
    (deformable_attention_core_func_v2, _body_deim),
)


def _body_for(function: FunctionType) -> CodeType:
    """The new body for one of theirs."""
    require_plain_function(function)
    known = [(ours, body) for ours, body in _BODIES if function.__name__ == ours.__name__]
    ours, body = require_one_of(known, lambda pair: require_same_arguments(function, pair[1]))
    _require_same_function(function, ours)
    return body.__code__


def _require_same_function(function: FunctionType, ours: Callable[..., Tensor]) -> None:
    if ours is deformable_attention_core_func:
        require_agreement(function, ours, cases.function_cases())
        return
    # Of levels that are higher than wide they read columns that are not there.
    shapes = ((4, 7), (2, 3))
    by_level = functools.partial(cases.by_level, shapes=shapes)
    by_level_cases = functools.partial(cases.point_list_cases, by_level, shapes)
    whole_cases = functools.partial(cases.point_list_cases, lambda value: value, shapes)
    if len(inspect.signature(function).parameters) > len(inspect.signature(_body_v2).parameters):
        # DEIM's, which is told what the value is.
        require_agreement(function, ours, by_level_cases())
        require_agreement(functools.partial(function, value_shape="reshape"), ours, whole_cases())
        return
    # RT-DETRv2's takes one of the two, D-FINE's and DEIM's the other.
    require_agreement(function, ours, itertools.chain(whole_cases(optional=True), by_level_cases(optional=True)))
