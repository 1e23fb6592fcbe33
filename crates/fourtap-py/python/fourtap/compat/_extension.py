"""fourtap in place of a compiled extension, so that what imports it need not be built."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from fourtap.compat._drop_in import Replacements
from fourtap.errors import UnsupportedError

__all__ = ["Extension"]


class Extension:
    """An extension module of another project, by its name and the functions that it has."""

    def __init__(
        self, name: str, functions: Mapping[str, Callable[..., Any]], others: Callable[[str], Any] | None = None
    ) -> None:
        """Nothing happens before :meth:`install`.

        Args:
            name: Of the extension, with that of its package.
            functions: What it has of ours.
            others: What else it has, by name, where there is no real one.

        """
        self._name = name
        self._functions = dict(functions)
        self._others = others
        self._replaced = Replacements()

    @property
    def names(self) -> list[str]:
        """The names of what is replaced now."""
        return self._replaced.names

    def install(self, *, force: bool = False) -> None:
        """Makes ``import`` of the name load our functions; with ``force``, one imported before gets them."""
        extension = sys.modules.get(self._name)
        if extension is None:
            extension = ModuleType(self._name, f"fourtap in place of the extension {self._name}.")
            # importlib.util.find_spec, which some use to test for the extension, fails on modules without a spec.
            extension.__spec__ = importlib.machinery.ModuleSpec(self._name, loader=None, origin="fourtap.compat")
            vars(extension).update(self._functions)
            if self._others is not None:
                vars(extension)["__getattr__"] = self._others
            self._replaced.set_item(self._name, sys.modules, self._name, extension)
            return
        if all(getattr(extension, name, None) is function for name, function in self._functions.items()):
            return
        if not force:
            origin = getattr(extension, "__file__", None) or "an unknown place"
            raise UnsupportedError(
                f"{self._name}: expected not to be imported yet, found it imported from {origin}; call install() "
                "before whatever imports it, or install(force=True) to replace its functions"
            )
        for name, function in self._functions.items():
            self._replaced.set_attribute(f"{self._name}.{name}", extension, name, function)

    def uninstall(self) -> None:
        """Undoes :meth:`install`; those who have imported ours get the real one, if there is one."""
        ours = sys.modules.get(self._name)
        self._replaced.undo()
        if ours is not None and sys.modules.get(self._name) is not ours:
            self._give_back(ours)

    def _give_back(self, ours: ModuleType) -> None:
        namespaces = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]
        holders = [(names, name) for names in namespaces for name, thing in list(names.items()) if thing is ours]
        if not holders:
            return
        try:
            real = importlib.import_module(self._name)
        except ImportError:
            # None is built, or one for another PyTorch; without ours they would not have been imported.
            return
        for names, name in holders:
            names[name] = real
