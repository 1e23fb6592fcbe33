"""Compiled kernels of the package fourtap-kernels, where it is installed."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["installed_folder"]


def installed_folder() -> str | None:
    """The folder of the package, which is not imported; None if it is not installed.

    The library opens it when a kernel is first needed, and warns if it is of another version.
    """
    try:
        found = find_spec("fourtap_kernels")
    except (ImportError, ValueError):  # a finder that fails, or a module that somebody put in its place
        return None
    if found is None or not found.submodule_search_locations:
        return None
    return next(iter(found.submodule_search_locations))
