"""What all replacements share: the call in the originals' argument order, and patching and restoring attributes."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import operator
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fourtap import attention
from fourtap.compat._trial import Case, Disagreement, require_agreement, require_arguments, source_of
from fourtap.errors import UnsupportedError
from fourtap.nn import SpatialShapes, accepted_type

_MISSING = object()
# What drop-ins have put somewhere, each its own: others leave that alone.
_taken: set[str] = set()
_log = logging.getLogger("fourtap.compat")


def attend(
    value: Tensor,
    spatial_shapes: SpatialShapes,
    level_start_index: Tensor | None,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """The operator in the order of arguments that the originals share."""
    # Which axes these have does not matter to the originals.
    if attention_weights.dim() == 4 and sampling_locations.dim() == 6:
        attention_weights = torch.unflatten(attention_weights, 3, sampling_locations.shape[3:5])
    return attention.ms_deform_attn(
        value,
        spatial_shapes,
        accepted_type(sampling_locations, value),
        accepted_type(attention_weights, value),
        level_start_index=level_start_index,
    )


def replace_forward(
    replaced: Replacements,
    home: ModuleType,
    name: str,
    ours: Callable[[Callable[..., Tensor]], Callable[..., Tensor]],
    cases: Callable[[type[nn.Module]], Iterator[Case]],
    known: Iterable[str] = (),
    sources: Container[str] = (),
) -> None:
    """Gives the class of this name another ``forward``, if that computes the same.

    Args:
        replaced: Where that is kept.
        home: The module that the class is in.
        name: The class.
        ours: Makes the new ``forward`` of the old.
        cases: What both are tried with.
        known: The arguments that ours takes beside those it names.
        sources: How versions are written that cannot be tried; see :func:`source_of`.

    """
    owner = vars(home).get(name)
    if not isinstance(owner, type) or not issubclass(owner, nn.Module):
        return
    original = vars(owner).get("forward")
    if not isinstance(original, FunctionType):
        return

    def make() -> Callable[..., Tensor]:
        forward = ours(original)
        require_arguments(original, {*inspect.signature(forward, follow_wrapped=False).parameters, *known})
        try:
            require_agreement(original, forward, cases(owner))
        except Disagreement as failure:
            if failure.is_measured or source_of(original) not in sources:
                raise
        return forward

    # The class stays and gets another method, so that existing modules use it too.
    replaced.try_forward(f"{home.__name__}.{name}.forward", owner, make)


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
        self._later: list[Callable[[], None]] = []
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

    def try_everywhere(
        self, home: ModuleType, attribute: str, replacement: Any, require: Callable[[Any], None]
    ) -> None:
        """The same for a function or a class with static methods, in all modules that have imported it from ``home``.

        ``require`` is called with theirs, and raises :class:`Disagreement` if it computes something else.
        """
        name, theirs = f"{home.__name__}.{attribute}", vars(home).get(attribute)
        if theirs is None or theirs is replacement:
            return
        methods = list(vars(theirs).values()) if isinstance(theirs, type) else []
        function = getattr(theirs, "forward", theirs) if methods else theirs

        def make() -> Any:
            require(theirs)
            return replacement

        if self._try(name, function, methods, make) is not None:
            self.set_everywhere(home, attribute, replacement)

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
        _taken.add(name)

        def put_back() -> None:
            _taken.discard(name)
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
        ours = {name for name, _ in _holders(attribute, replacement)}
        for name, module in _holders(attribute, original):
            self.set_attribute(f"{name}.{attribute}", module, attribute, replacement)

        def put_back_later_ones() -> None:
            # Whoever imported it from there since then has got the replacement.
            for name, module in _holders(attribute, replacement):
                if name not in ours and f"{name}.{attribute}" not in _taken:
                    setattr(module, attribute, original)

        self._later.append(put_back_later_ones)

    def undo(self) -> None:
        """Restores everything."""
        while self._undo:
            _, put_back = self._undo.popitem()
            put_back()
        while self._later:
            self._later.pop()()


def _holders(attribute: str, thing: object) -> Iterator[tuple[str, ModuleType]]:
    """The modules of others that have it under this name."""
    for name, module in list(sys.modules.items()):
        # Not getattr, which would make lazy packages import all their modules.
        if getattr(module, "__dict__", {}).get(attribute) is thing and name.partition(".")[0] != "fourtap":
            yield name, module
