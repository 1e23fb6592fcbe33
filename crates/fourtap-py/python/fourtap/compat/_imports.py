"""Modules of others, looked at as soon as somebody imports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["WhenImported"]


class WhenImported(MetaPathFinder):
    """Calls ``then`` with every module whose name ``fits``, right after its code has run."""

    def __init__(self, fits: Callable[[str], bool], then: Callable[[ModuleType], None]) -> None:
        """Nothing happens before :meth:`start`."""
        self._fits = fits
        self._then = then

    def start(self) -> None:
        """From now on; nothing happens if that is already so."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """No longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, with a loader that calls ``then``."""
        if not self._fits(fullname):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._then)
                return spec
        return None


class _Loader(Loader):
    """Somebody else's loader, which gets its place back once the module is there."""

    def __init__(self, theirs: Loader, then: Callable[[ModuleType], None]) -> None:
        self._theirs = theirs
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._theirs.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._theirs
        module.__loader__ = self._theirs
        self._theirs.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)
