"""The packages that only this part needs, and the error where one is missing."""

from __future__ import annotations

import importlib
from typing import Any

from fourtap.errors import UnsupportedError

__all__ = ["require"]


def require(package: str, purpose: str) -> Any:
    """The package, imported; or an error that names it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UnsupportedError(
            f"{package}: expected the package to be installed, which {purpose} needs, found none; "
            "pip install 'fourtap[onnx]' brings it"
        ) from error
