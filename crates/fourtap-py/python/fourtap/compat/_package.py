"""A package of others whose modules are changed, whether they are imported before or after."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from fourtap.compat._drop_in import Replacements, require_installed
from fourtap.compat._imports import WhenImported
from fourtap.errors import UnsupportedError

__all__ = ["Package"]


class Package:
    """What ``patch`` and ``unpatch`` of a drop-in are made of."""

    def __init__(self, name: str, modules: Sequence[str], change: Callable[[ModuleType, Replacements], None]) -> None:
        """Nothing happens before :meth:`patch`.

        Args:
            name: Of the package.
            modules: Those of its modules that are changed, with the name of the package.
            change: Replaces what it wants to in one of them, once or again.

        """
        self._name = name
        self._modules = tuple(modules)
        self._change = change
        self._replaced = Replacements()
        self._later = WhenImported(self._modules.__contains__, self._change_one)

    def patch(self, *, strict: bool) -> list[str]:
        """Changes the modules that are imported, now, and the others when they are; imports nothing.

        Args:
            strict: Whether it is an error that something is left alone; then everything is restored.

        Returns:
            The names of what is replaced now.

        """
        require_installed(self._name)
        self._replaced.is_strict = strict
        # First, so that no module is missed that another thread imports meanwhile.
        self._later.start()
        try:
            for name in self._modules:
                module = sys.modules.get(name)
                if module is not None:
                    self._change_one(module)
        except UnsupportedError:
            self.unpatch()
            raise
        return self._replaced.names

    def unpatch(self) -> None:
        """Undoes :meth:`patch`."""
        self._later.stop()
        self._replaced.undo()

    def _change_one(self, module: ModuleType) -> None:
        self._change(module, self._replaced)
