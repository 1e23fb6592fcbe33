"""Hugging Face transformers: the layer and the functions that its detection and segmentation models call.

To make transformers use fourtap, in models loaded before or after::

    import fourtap.compat.transformers
    fourtap.compat.transformers.patch()

or, by the ``kernels`` package, for one model::

    with kernels.use_kernel_mapping(fourtap.compat.transformers.kernel_mapping()):
        kernels.kernelize(model, mode=kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE)

or, where a program asks the hub for the kernel by itself, by the variable ``LOCAL_KERNELS``: see
:func:`local_kernel_path`.

Dense attention, for models of all kinds, is an attention implementation as transformers has several::

    fourtap.compat.transformers.register_attention()
    model = AutoModel.from_pretrained(name, attn_implementation="fourtap")

"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

from torch import Tensor, nn

from fourtap.compat import _trial_cases as cases
from fourtap.compat._drop_in import Replacements, attend, require_installed
from fourtap.compat._frozen_batch_norm import NAME, in_one_operator
from fourtap.compat._imports import WhenImported
from fourtap.compat._point_lists import attend_point_lists
from fourtap.compat._transformers_attention import attention_forward, register_attention
from fourtap.compat._transformers_modules import from_projections
from fourtap.compat._trial import Case, bare_module, require_agreement, require_plain_function, require_same_arguments
from fourtap.errors import UnsupportedError
from fourtap.nn import SpatialShapes

__all__ = [
    "FAMILIES",
    "MultiScaleDeformableAttention",
    "attention_forward",
    "kernel_mapping",
    "local_kernel_path",
    "multi_scale_deformable_attention",
    "multi_scale_deformable_attention_v2",
    "patch",
    "register_attention",
    "unpatch",
]

#: The model families that :func:`patch` replaces, if the installed transformers has them.
FAMILIES = (
    "d_fine",
    "deformable_detr",
    "deimv2",
    "grounding_dino",
    "lw_detr",
    "mask2former",
    "mm_grounding_dino",
    "omdet_turbo",
    "oneformer",
    "pp_doclayout_v2",
    "pp_doclayout_v3",
    "pp_doclayout_v4",
    "rf_detr",
    "rt_detr",
    "rt_detr_v2",
)

_LAYER = "MultiScaleDeformableAttention"
# What the names of the modules around it end in.
_MODULE = "MultiscaleDeformableAttention"
_HUB_KERNELS = "transformers.integrations.hub_kernels"

_replaced = Replacements()


class MultiScaleDeformableAttention(nn.Module):
    """The stateless layer of Deformable DETR, Grounding DINO, RT-DETR and related models."""

    # What `kernels` checks before it uses this in a model that is compiled or trained.
    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        value: Tensor,
        value_spatial_shapes: Tensor,
        value_spatial_shapes_list: Sequence[tuple[int, int]] | None,
        level_start_index: Tensor | None,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        im2col_step: int,
    ) -> Tensor:
        """``[N, Q, M * D]``; the list, where there is one, is used instead of the tensors that say the same."""
        if value_spatial_shapes_list is not None:
            return attend(value, value_spatial_shapes_list, None, sampling_locations, attention_weights)
        return attend(value, value_spatial_shapes, level_start_index, sampling_locations, attention_weights)


def multi_scale_deformable_attention(
    value: Tensor,
    value_spatial_shapes: SpatialShapes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """The function of Mask2Former and OneFormer."""
    return attend(value, value_spatial_shapes, None, sampling_locations, attention_weights)


def multi_scale_deformable_attention_v2(
    value: Tensor,
    value_spatial_shapes: SpatialShapes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    num_points_list: Sequence[int],
    method: str = "default",
) -> Tensor:
    """The function of RT-DETRv2, D-FINE and DEIMv2: every level may have its own number of points.

    Args:
        value: ``[N, S, M, D]``.
        value_spatial_shapes: ``[L, 2]``, height and width of each level: a list of pairs, or a tensor.
        sampling_locations: ``[N, Q, M, sum(num_points_list), 2]``.
        attention_weights: ``[N, Q, M, sum(num_points_list)]``.
        num_points_list: The number of points of each level.
        method: ``"default"`` interpolates; ``"discrete"`` takes the nearest pixel, of the border for locations
            outside, and has no gradient by the locations.

    Returns:
        ``[N, Q, M * D]``.

    """
    return attend_point_lists(
        value, value_spatial_shapes, sampling_locations, attention_weights, num_points_list, method
    )


@dataclass(frozen=True)
class _LayerRepository:
    """Where ``kernels`` gets the layer from: no folder and no hub, just this package."""

    layer_name: str = _LAYER

    def load(self) -> type[nn.Module]:
        return MultiScaleDeformableAttention


def kernel_mapping() -> dict[str, dict[str, _LayerRepository]]:
    """The layer as a mapping for ``kernels.use_kernel_mapping``, for CUDA devices and CPUs."""
    return {_LAYER: {"cpu": _LayerRepository(), "cuda": _LayerRepository()}}


def local_kernel_path() -> Path:
    """The folder of this package that is laid out as a kernel of the hub, for CUDA devices and CPUs.

    It is a folder for whatever takes one: ``kernels.LocalLayerRepository``, ``kernels.get_local_kernel``, and the
    variable ``LOCAL_KERNELS``, which makes programs that ask for the hub's kernel get this one, unchanged::

        export LOCAL_KERNELS="kernels-community/deformable-detr=$(
            python -c 'from fourtap.compat import transformers; print(transformers.local_kernel_path())')"

    Example:
        >>> from fourtap.compat import transformers
        >>> sorted(folder.name for folder in (transformers.local_kernel_path() / "build").iterdir())
        ['torch-cpu', 'torch-cuda']

    """
    return Path(__file__).parent / "hub_kernel"


def patch(*, strict: bool = False) -> list[str]:
    """Makes transformers call fourtap in all :data:`FAMILIES`; also in models that exist already.

    Batch norms of their backbones with fixed statistics are computed in one operator instead of eleven: the same up to
    rounding, and most of what small models gain on a GPU.

    It imports nothing: families that are imported later are changed then. A model loaded with ``use_kernels=True``
    after this uses fourtap too; one that got its layers from the hub before keeps them. Compile models afterwards.

    What computes something else than fourtap does is left alone: both are tried on small cases first.

    Args:
        strict: Whether it is an error that something is left alone, instead of a line in the log of ``fourtap.compat``;
            also in families that are imported later.

    Returns:
        The names of what is replaced now, in the modules that are imported.

    Raises:
        fourtap.UnsupportedError: There is no transformers; or with ``strict``, and then nothing is replaced.

    """
    require_installed("transformers")
    _replaced.is_strict = strict
    # First, so that no module is missed that another thread imports meanwhile.
    _later.start()
    try:
        for name, module in list(sys.modules.items()):
            if _is_changed(name) and isinstance(module, ModuleType):
                _patch_module(module)
    except UnsupportedError:
        unpatch()
        raise
    return _replaced.names


def unpatch() -> None:
    """Undoes :func:`patch`."""
    _later.stop()
    _replaced.undo()


def _is_changed(name: str) -> bool:
    # Not only the families: models that come with later versions are found, too.
    return name == _HUB_KERNELS or (name.startswith("transformers.models.") and ".modeling_" in name)


def _patch_module(module: ModuleType) -> None:
    if module.__name__ == _HUB_KERNELS:
        _patch_kernel_mapping(module)
        return
    _patch_layer(module)
    every = cases.function_cases
    _patch_function(module, multi_scale_deformable_attention, _forward_attention.__code__, every)
    every = functools.partial(cases.point_list_cases, lambda value: value)
    _patch_function(module, multi_scale_deformable_attention_v2, _forward_attention_v2.__code__, every)
    _patch_modules(module)
    if module.__name__.split(".")[2] in FAMILIES:
        _patch_batch_norms(module)


_later = WhenImported(_is_changed, _patch_module)


def _patch_layer(module: ModuleType) -> None:
    layer = vars(module).get(_LAYER)
    if isinstance(layer, type) and issubclass(layer, nn.Module):
        # The class stays and gets another method, so that existing layers use it too.
        _replaced.try_forward(f"{layer.__module__}.{_LAYER}", layer, functools.partial(_forward_for, layer))


def _forward_for(layer: type[nn.Module]) -> Callable[..., Tensor]:
    ours = MultiScaleDeformableAttention.forward
    require_same_arguments(layer.forward, ours)
    require_agreement(layer.forward, ours, _layer_cases(layer))
    return ours


def _layer_cases(layer: type[nn.Module]) -> Iterator[Case]:
    levels = (cases.tensor_of(), list(cases.SHAPES), cases.starts_of())
    for training in (False, True):
        module = bare_module(layer, {}, training=training)

        def call(function: Callable[..., Any], given: Mapping[str, Tensor], module: nn.Module = module) -> Any:
            return function(module, given["value"], *levels, given["locations"], given["weights"], 64)

        tensors = cases.core_tensors((len(cases.SHAPES), cases.POINTS))
        yield Case("points inside and outside", tensors, call, module)


def _patch_function(
    module: ModuleType, ours: Callable[..., Tensor], forwarding: CodeType, trial: Callable[[], Iterator[Case]]
) -> None:
    theirs = vars(module).get(ours.__name__)
    if not isinstance(theirs, FunctionType):
        return

    def make() -> CodeType:
        require_plain_function(theirs)
        require_same_arguments(theirs, ours)
        require_agreement(theirs, ours, trial())
        return forwarding

    # The function stays and gets another body. Another function in its place would not be noticed by the layers
    # of D-FINE and its descendants, which hold it, and which are pickled with a reference to it by name.
    _replaced.try_code(f"{theirs.__module__}.{theirs.__name__}", theirs, make)


def _patch_modules(module: ModuleType) -> None:
    """The modules around what is replaced: whatever comes before it, from their projections on, is then left out."""
    functions = [
        function
        for name in (multi_scale_deformable_attention.__name__, multi_scale_deformable_attention_v2.__name__)
        if f"{module.__name__}.{name}" in _replaced.names and (function := vars(module).get(name)) is not None
    ]

    def is_ours(core: object) -> bool:
        if not isinstance(core, nn.Module):
            return core in functions
        # Somebody who puts a layer or a hook of their own there wants it to be called.
        unchanged = "forward" not in core.__dict__ and not core._forward_hooks and not core._forward_pre_hooks
        return unchanged and type(core).forward is MultiScaleDeformableAttention.forward

    for name, found in list(vars(module).items()):
        if _is_defined_in(found, module) and name.endswith(_MODULE):
            make = functools.partial(from_projections, module, found, is_ours)
            _replaced.try_forward(f"{module.__name__}.{name}", found, make)


def _is_defined_in(found: object, module: ModuleType) -> TypeGuard[type[nn.Module]]:
    return isinstance(found, type) and issubclass(found, nn.Module) and found.__module__ == module.__name__


def _patch_batch_norms(module: ModuleType) -> None:
    """Those of the backbones, which take more launches than all attention."""
    for name, found in list(vars(module).items()):
        if _is_defined_in(found, module) and name.endswith(NAME):
            _replaced.try_forward(f"{module.__name__}.{name}", found, functools.partial(in_one_operator, found))


# The bodies run in the module of the function that gets them, so they can use nothing of this one.
def _forward_attention(
    value: Tensor, value_spatial_shapes: Any, sampling_locations: Tensor, attention_weights: Tensor
) -> Tensor:
    from fourtap.compat.transformers import multi_scale_deformable_attention as ours

    return ours(value, value_spatial_shapes, sampling_locations, attention_weights)


def _forward_attention_v2(
    value: Tensor,
    value_spatial_shapes: Any,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    num_points_list: Any,
    method: str = "default",
) -> Tensor:
    from fourtap.compat.transformers import multi_scale_deformable_attention_v2 as ours

    return ours(value, value_spatial_shapes, sampling_locations, attention_weights, num_points_list, method)


def _patch_kernel_mapping(hub_kernels: ModuleType) -> None:
    """Without this, ``use_kernels=True`` would put the hub's layer over the one that is replaced."""
    lookup = getattr(hub_kernels, "get_kernel_mapping_transformers", None)
    mapping: Any = lookup() if lookup is not None else getattr(hub_kernels, "_KERNEL_MAPPING", None)
    if isinstance(mapping, dict):
        _replaced.set_item(f"{_HUB_KERNELS}.{_LAYER}", mapping, _LAYER, kernel_mapping()[_LAYER])
