"""The repositories of RT-DETR, RT-DETRv2, D-FINE and DEIM: their attention modules, and the functions these call.

They are not packages, so what to change is named, after it is imported: a model, a module, or the folder of them all::

    import fourtap.compat.rtdetr
    fourtap.compat.rtdetr.patch(model)      # or patch(src), patch(engine)

"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn

from fourtap.compat._drop_in import Replacements, attend, takes_the_same
from fourtap.compat._point_lists import attend_point_lists
from fourtap.compat._rtdetr_modules import from_projections, one_tensor
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


def patch(*things: nn.Module | ModuleType) -> list[str]:
    """Makes models of these repositories call fourtap; those that exist already, and all that are built afterwards.

    It replaces the bodies of their functions, which are reached through every name, and the ``forward`` of their
    ``MSDeformableAttention`` where that is one we know; class names and checkpoints stay as they are. Compile models
    afterwards.

    Args:
        things: Models, or modules of Python with the functions or classes: ``rtdetrv2_decoder``, ``utils``. All that is
            imported from below a package counts, so it may be ``src`` or ``engine``.

    Returns:
        The names of what is replaced now.

    Raises:
        fourtap.UnsupportedError: One of them has nothing in it that could be replaced.

    """
    for thing in things:
        if not isinstance(thing, nn.Module | ModuleType):
            raise InputError(f"things: expected models or modules, found {type(thing).__name__}")
        found = list(_of_model(thing) if isinstance(thing, nn.Module) else _of_module(thing))
        functions = [function for function, _ in found if function is not None]
        classes = {owner: None for _, owner in found if owner is not None}
        if not functions and not classes:
            name = thing.__name__ if isinstance(thing, ModuleType) else type(thing).__name__
            raise UnsupportedError(
                f"{name}: expected {_CLASS} or deformable_attention_core_func of RT-DETR, RT-DETRv2, D-FINE or DEIM, "
                "found none of them"
            )
        for function in functions:
            _patch_function(function)
        for owner in classes:
            _patch_class(owner)
    return _replaced.names


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
        if _body_for(function) is not None:
            yield function, type(module)


def _of_module(home: ModuleType) -> Iterator[_Found]:
    below = f"{home.__name__}."
    inner = [module for name, module in list(sys.modules.items()) if name.startswith(below)]
    for module in [home, *inner]:
        for thing in list(getattr(module, "__dict__", {}).values()):
            if _body_for(thing) is not None:
                yield thing, None
            elif isinstance(thing, type) and issubclass(thing, nn.Module) and thing.__name__ == _CLASS:
                yield None, thing


def _patch_function(function: FunctionType) -> None:
    body = _body_for(function)
    if body is not None and function not in _functions:
        # The function stays and gets another body: the models' layers hold the function itself.
        _replaced.set_code(f"{function.__module__}.{function.__name__}", function, body)
        _functions.append(function)


def _patch_class(owner: type[nn.Module]) -> None:
    forward = from_projections(owner, _is_ours)
    if forward is not None:
        _replaced.set_attribute(f"{owner.__module__}.{owner.__qualname__}.forward", owner, "forward", forward)


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


_BODIES: tuple[tuple[str, Callable[..., Tensor]], ...] = (
    (deformable_attention_core_func.__name__, _body),
    (deformable_attention_core_func_v2.__name__, _body_v2),
    (deformable_attention_core_func_v2.__name__, _body_deim),
)


def _body_for(function: object) -> CodeType | None:
    """The new body for a function, if it is one of theirs."""
    if not isinstance(function, FunctionType) or function.__closure__:
        return None
    bodies = (body for name, body in _BODIES if function.__name__ == name and takes_the_same(function, body))
    body = next(bodies, None)
    return None if body is None else body.__code__
