"""Models in ONNX Runtime, with deformable attention as one node of the library.

:func:`library_path` is what a session registers. :func:`export` writes a PyTorch model with our nodes in it, and
:func:`rewrite` puts them into a file that was exported without us; ``python -m fourtap.onnx rewrite`` does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fourtap._lazy import import_lazily
from fourtap.onnx.errors import PatternError, VerificationError
from fourtap.onnx.library import library_path

if TYPE_CHECKING:
    from fourtap.onnx.exporting import Translation, export, translation
    from fourtap.onnx.rewriting import Rewritten, rewrite

__all__ = [
    "PatternError",
    "Rewritten",
    "Translation",
    "VerificationError",
    "export",
    "library_path",
    "rewrite",
    "translation",
]

# The first needs PyTorch, the second `onnx`: sessions need neither.
_HOMES = {
    "Translation": "exporting",
    "export": "exporting",
    "translation": "exporting",
    "Rewritten": "rewriting",
    "rewrite": "rewriting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fourtap.onnx' has no attribute {name!r}")
    found = getattr(import_lazily(f"fourtap.onnx.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
