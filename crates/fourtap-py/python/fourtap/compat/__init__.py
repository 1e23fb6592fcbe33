"""Drop-in replacements for the operators of other projects, with their names, arguments and results.

- :mod:`fourtap.compat.deformable_detr`: Deformable DETR, DINO, Mask2Former's and OneFormer's own repositories and all
  others that build the extension ``MultiScaleDeformableAttention``: ``install()``.
- :mod:`fourtap.compat.groundingdino`: the original Grounding DINO, without its extension: ``patch()``.
- :mod:`fourtap.compat.ultralytics`: RT-DETR of ultralytics: ``patch()``.
- :mod:`fourtap.compat.rfdetr`: RF-DETR: ``patch()``.
- :mod:`fourtap.compat.rtdetr`: the repositories of RT-DETR, RT-DETRv2, D-FINE and DEIM: ``patch(model)``.
- :mod:`fourtap.compat.mmcv`: mmcv and detrex: ``patch()``, or its module instead of theirs.
- :mod:`fourtap.compat.transformers`: models of Hugging Face: ``patch()``, or a mapping or folder for ``kernels``; and
  ``register_attention()`` for dense attention, ``attn_implementation="fourtap"``.
- :mod:`fourtap.compat.dcnv4`: DCNv4's ``FlashDeformAttnFunction``.

An ``im2col_step`` is accepted wherever the original has one, and ignored: any batch size works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fourtap._lazy import import_lazily

if TYPE_CHECKING:
    from fourtap.compat import (
        dcnv4,
        deformable_detr,
        groundingdino,
        mmcv,
        rfdetr,
        rtdetr,
        transformers,
        ultralytics,
    )

__all__ = [
    "dcnv4",
    "deformable_detr",
    "groundingdino",
    "mmcv",
    "rfdetr",
    "rtdetr",
    "transformers",
    "ultralytics",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_lazily(f"fourtap.compat.{name}")
    raise AttributeError(f"module 'fourtap.compat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
