"""Another operator of mmcv's extension, and what reports about an installation ask for."""

from __future__ import annotations

import importlib
from typing import Any

ext_module = importlib.import_module("mmcv._ext")
assert all(hasattr(ext_module, name) for name in ("nms", "get_compiler_version", "get_compiling_cuda_version"))


def nms(*arguments: Any) -> Any:
    return ext_module.nms(*arguments)


def get_compiler_version() -> Any:
    return ext_module.get_compiler_version()
