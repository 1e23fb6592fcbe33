"""What all replacements share: the call in the originals' argument order, and patching and restoring attributes."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import operator
import sys
from collections.abc import Callable, Set
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import Tensor

from fourtap import attention
from fourtap.compat._trial import Disagreement
from fourtap.errors import UnsupportedError
from fourtap.nn import SpatialShapes, accepted_type

_MISSING = object()
_log = logging.getLogger("fourtap.compat")


def attend(
    value: Tensor,
    spatial_shapes: SpatialShapes,
    level_start_index: Tensor | None,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """The operator in the order of arguments that the originals share."""
    return attention.ms_deform_attn(
        value,
        spatial_shapes,
        accepted_type(sampling_locations, value),
        accepted_type(attention_weights, value),
        level_start_index=level_start_index,
    )


def is_written_with(function: Callable[..., Any], always: Set[str], sometimes: Set[str], factors: Set[float]) -> bool:
    """Whether a function is one we know: by all names that it uses, and by its fractions but 0.

    Args:
        function: Of another package; what its decorators wrap counts.
        always: The names that every version of it uses.
        sometimes: Those that some versions use beside them.
        factors: All its fractions.

    """
    code = inspect.unwrap(function).__code__
    names = set(code.co_names)
    found = {constant for constant in code.co_consts if isinstance(constant, float) and constant}
    return always <= names <= always | sometimes and found == factors


def replace_forward(
    replaced: Replacements,
    home: ModuleType,
    name: str,
    always: Set[str],
    sometimes: Set[str],
    ours: Callable[[Callable[..., Tensor]], Callable[..., Tensor]],
) -> bool:
    """Gives the class of this name another ``forward``, if its own is one we know; says whether it is.

    Args:
        replaced: Where that is kept.
        home: The module that the class is in.
        name: The class.
        always: As for :func:`is_written_with`, like ``sometimes``; one half is the only fraction in all of them.
        sometimes: See there.
        ours: Makes the new ``forward`` of the old.

    """
    owner = vars(home).get(name)
    original = vars(owner).get("forward") if isinstance(owner, type) else None
    if not isinstance(original, FunctionType) or not is_written_with(original, always, sometimes, {0.5}):
        return False
    # The class stays and gets another method, so that existing modules use it too.
    replaced.set_attribute(f"{home.__name__}.{name}.forward", owner, "forward", ours(original))
    return True


def takes_the_same(theirs: object, ours: Callable[..., Tensor]) -> bool:
    """Whether the parameters of both have the same names in the same order."""
    return callable(theirs) and list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)


def require_installed(package: str) -> None:
    """Refuses to go on without the package, which is not imported for that."""
    if importlib.util.find_spec(package) is None:
        raise UnsupportedError(f"{package}: expected it to be installed, found no such package")


class _Tried:
    """What came of a trial, and of what."""

    def __init__(self, state: list[Any]) -> None:
        self._state = state
        self.found: Any = None
        self.reason = ""

    def is_of(self, state: list[Any]) -> bool:
        """Whether all of these are what was tried."""
        return len(state) == len(self._state) and all(map(operator.is_, state, self._state))


class Replacements:
    """Patched attributes of other packages' modules and classes, so that they can be restored."""

    def __init__(self) -> None:
        self._undo: dict[str, Callable[[], None]] = {}
        self._tried: dict[str, _Tried] = {}
        self.is_strict = False
        "Whether it is an error that something is left alone."

    def try_forward(self, name: str, owner: type, make: Callable[[], Callable[..., Any] | None]) -> None:
        """Gives a class the ``forward`` that ``make`` returns, if there is one.

        Args:
            name: See :meth:`set_attribute`.
            owner: The class.
            make: Raises :class:`Disagreement` if theirs computes something else. That is logged, or refused where
                :attr:`is_strict`; and it is not called again as long as theirs is the same.

        """
        if name not in self._undo:
            found = self._try(name, owner.forward, list(vars(owner).values()), make)  # type: ignore[attr-defined]
            if found is not None:
                self.set_attribute(name, owner, "forward", found)

    def try_code(self, name: str, function: FunctionType, make: Callable[[], CodeType | None]) -> None:
        """The same for the body of a function."""
        if name not in self._undo:
            found = self._try(name, function, [], make)
            if found is not None:
                self.set_code(name, function, found)

    def _try(self, name: str, theirs: Any, others: list[Any], make: Callable[[], Any]) -> Any:
        written = inspect.unwrap(theirs)
        if not isinstance(written, FunctionType):
            return None
        around = [written.__globals__.get(used) for used in written.__code__.co_names]
        state = [theirs, written.__code__, *around, *others]
        known = self._tried.get(name)
        if known is None or not known.is_of(state):
            known = _Tried(state)
            self._tried[name] = known
            try:
                known.found = make()
            except Disagreement as why:
                known.reason = f"{name}: expected what fourtap computes, found that {why}"
                if not self.is_strict:
                    _log.warning("%s; it is left alone", known.reason)
            if known.found is None and not known.reason:
                # There is nothing to try yet.
                del self._tried[name]
        if known.reason and self.is_strict:
            raise UnsupportedError(known.reason)
        return known.found

    @property
    def names(self) -> list[str]:
        """The names of what is replaced now."""
        return sorted(self._undo)

    def set_attribute(self, name: str, owner: Any, attribute: str, replacement: object) -> None:
        """Sets an attribute; its former value is kept under ``name``. Nothing happens if that is already done."""
        if name in self._undo:
            return
        former = vars(owner).get(attribute, _MISSING)
        setattr(owner, attribute, replacement)

        def put_back() -> None:
            # If it was replaced again since then, leave it alone.
            if vars(owner).get(attribute) is not replacement:
                return
            if former is _MISSING:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, former)

        self._undo[name] = put_back

    def set_code(self, name: str, function: FunctionType, replacement: CodeType) -> None:
        """The same for the body of a function, which then changes for all holders of the function."""
        if name in self._undo:
            return
        former = function.__code__
        function.__code__ = replacement

        def put_back() -> None:
            if function.__code__ is replacement:
                function.__code__ = former

        self._undo[name] = put_back

    def set_item(self, name: str, owner: dict[Any, Any], key: object, replacement: object) -> None:
        """The same for an entry of a dictionary."""
        if name in self._undo:
            return
        former = owner.get(key, _MISSING)
        owner[key] = replacement

        def put_back() -> None:
            if owner.get(key) is not replacement:
                return
            if former is _MISSING:
                del owner[key]
            else:
                owner[key] = former

        self._undo[name] = put_back

    def set_everywhere(self, home: ModuleType, attribute: str, replacement: object) -> None:
        """Sets an attribute of a module, and of all modules that have imported it from there."""
        original = getattr(home, attribute, None)
        if original is None or original is replacement:
            return
        for name, module in list(sys.modules.items()):
            # Not getattr, which would make lazy packages import all their modules.
            if getattr(module, "__dict__", {}).get(attribute) is original:
                self.set_attribute(f"{name}.{attribute}", module, attribute, replacement)

    def undo(self) -> None:
        """Restores everything."""
        while self._undo:
            _, put_back = self._undo.popitem()
            put_back()
