"""Where the custom operators for ONNX Runtime are."""

from __future__ import annotations

from fourtap import _native

__all__ = ["library_path"]


def library_path() -> str:
    """Where the custom operators for ONNX Runtime are: what ``SessionOptions.register_custom_ops_library`` takes.

    Only in Python: the library is part of this package's extension module. Other programs take ``libfourtap_onnx``, see
    docs/onnx.md.

    Example:
        >>> import fourtap.onnx
        >>> from pathlib import Path
        >>> Path(fourtap.onnx.library_path()).exists()
        True

    """
    return str(_native.__file__)
