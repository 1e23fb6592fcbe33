"""Before anything is replaced, theirs and ours are run on small cases and must give the same results and gradients.

That is the one way to know another project's code: not by its names, which forks keep. The cases are in float64 on the
CPU, whatever the defaults are, and leave no trace: no random numbers are drawn, and PyTorch's autograd engine, which
would start its threads for the GPU, is not used.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import io
import token
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "Case",
    "Disagreement",
    "bare_module",
    "require_agreement",
    "require_arguments",
    "require_one_of",
    "require_plain_function",
    "require_same_arguments",
    "source_of",
]

_Choice = TypeVar("_Choice")

# What both may differ by, as a part of the largest number of a tensor, and of all tensors: rounding is 1e-16, and no
# change of a formula is so small.
_RELATIVE, _RELATIVE_TO_ALL = 1e-9, 1e-12


class Disagreement(Exception):
    """Why something of another project is left alone."""

    def __init__(self, why: str, *, is_measured: bool = False) -> None:
        """``is_measured``: it could be run, and computes something else."""
        super().__init__(why)
        self.is_measured = is_measured


@dataclass(frozen=True)
class Case:
    """What theirs and ours are called with."""

    words: str
    "What is special about it."
    tensors: Mapping[str, Tensor]
    "The operands; both get copies."
    call: Callable[[Callable[..., Any], dict[str, Tensor]], Any]
    "Calls either of them with operands."
    module: nn.Module | None = None
    "Whose parameters get gradients, too."
    optional: bool = False
    "Whether some versions of the original cannot compute it; those are not compared."


def require_agreement(theirs: Callable[..., Any], ours: Callable[..., Any], cases: Iterable[Case]) -> None:
    """Raises :class:`Disagreement` unless both compute the same in all cases, which are made one by one."""
    skipped = None
    is_compared = False
    with _undisturbed():
        try:
            for case in cases:
                expected = _run_theirs(theirs, case)
                if expected is None:
                    skipped = case
                else:
                    _compare(expected, _run(ours, case), case.words)
                    is_compared = True
            if skipped is not None and not is_compared:
                _run(theirs, skipped)
        except Disagreement:
            raise
        # Code of others may fail in any way.
        except Exception as error:
            raise Disagreement(f"it cannot be tried: {_in_one_line(error)}") from error


def require_arguments(theirs: Callable[..., Any], known: Iterable[str]) -> None:
    """Raises :class:`Disagreement` if theirs may get arguments that ours would ignore: no case would show that."""
    known = set(known)
    for parameter in inspect.signature(theirs).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD and not _reads(inspect.unwrap(theirs), parameter.name):
            continue
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            raise Disagreement(f"it reads any arguments, *{parameter.name}")
        if parameter.name not in known:
            raise Disagreement(f"it takes an argument that is not known, {parameter.name}")


def require_same_arguments(theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """Raises :class:`Disagreement` unless the parameters of both have the same names in the same order."""
    expected, found = (list(inspect.signature(function).parameters) for function in (ours, theirs))
    if expected != found:
        raise Disagreement(f"it takes other arguments: {', '.join(found)}")


def require_one_of(choices: Iterable[_Choice], require: Callable[[_Choice], None]) -> _Choice:
    """The first of the choices that the requirement holds for; raises the :class:`Disagreement` that says most."""
    failures = []
    for choice in choices:
        try:
            require(choice)
        except Disagreement as failure:
            failures.append(failure)
        else:
            return choice
    raise max(failures, key=lambda failure: failure.is_measured)


def require_plain_function(theirs: FunctionType) -> None:
    """Raises :class:`Disagreement` for functions that cannot get the body of another."""
    if theirs.__closure__:
        raise Disagreement("it is a function inside of another")


def source_of(function: Callable[..., Any]) -> str:
    """A digest of how a function is written, but for comments and spaces; "" if nobody knows."""
    try:
        lines = io.StringIO(inspect.getsource(inspect.unwrap(function)))
        tokens = list(tokenize.generate_tokens(lines.readline))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return ""
    structure = {token.INDENT: "{", token.DEDENT: "}", token.NEWLINE: ";", token.NL: "", token.COMMENT: ""}
    written = "".join(structure.get(found.type, found.string) for found in tokens)
    return hashlib.sha256(written.encode()).hexdigest()[:16]


def _reads(function: Callable[..., Any], variable: str) -> bool:
    """Whether the function does anything with this variable of its own."""
    code = function.__code__
    if variable in code.co_cellvars:
        return True
    return any(
        instruction.argval == variable or (isinstance(instruction.argval, tuple) and variable in instruction.argval)
        for instruction in dis.get_instructions(code)
        if instruction.opname.startswith("LOAD_FAST")
    )


class _Bare:
    """Notes which attributes are missing or set, in a set that the attribute ``unknown`` holds."""

    unknown: set[str]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            self.unknown.add(f"reads self.{name}")
            raise

    def __setattr__(self, name: str, value: object) -> None:
        self.unknown.add(f"sets self.{name}")


def bare_module(owner: type[nn.Module], attributes: Mapping[str, Any], *, training: bool = False) -> nn.Module:
    """A module of the class with these attributes and no others, whatever arguments its ``__init__`` takes.

    So an attribute that ours knows nothing about is noticed, also one that is read by ``getattr`` with a default.
    """
    metaclass: Any = type(owner)
    kind = metaclass(owner.__name__, (_Bare, owner), {})
    module: nn.Module = object.__new__(kind)
    object.__setattr__(module, "unknown", set())
    nn.Module.__init__(module)
    for name, value in attributes.items():
        if isinstance(value, Tensor):
            module.register_buffer(name, value)
        else:
            nn.Module.__setattr__(module, name, value)
    object.__setattr__(module, "training", training)
    return module


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Default devices, autocast and modes of the caller do not count, nor do they learn of anything in here."""
    with ExitStack() as stack:
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        if torch._C._len_torch_function_stack():
            # A default device is such a mode.
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        threads = torch.get_num_threads()
        if threads > 1:
            # Cases are so small that handing parts of them to threads takes longer than computing them.
            torch.set_num_threads(1)
            stack.callback(torch.set_num_threads, threads)
        yield


def _run_theirs(theirs: Callable[..., Any], case: Case) -> dict[str, Tensor] | None:
    """As :func:`_run`; None if the case need not be computed, and is not."""
    unknown: set[str] = getattr(case.module, "unknown", set())
    unknown.clear()
    random = torch.get_rng_state()
    try:
        found = _run(theirs, case)
    except Disagreement:
        raise
    except Exception as error:
        if case.optional and not unknown:
            return None
        if not unknown:
            raise Disagreement(f"it cannot be tried with {case.words}: {_in_one_line(error)}") from error
    if unknown:
        raise Disagreement(f"it {min(unknown)}")
    if not torch.equal(random, torch.get_rng_state()):
        torch.set_rng_state(random)
        raise Disagreement("it draws random numbers")
    return found


def _run(function: Callable[..., Any], case: Case) -> dict[str, Tensor]:
    """Results and gradients by name."""
    operands = {
        name: tensor.clone().requires_grad_(tensor.is_floating_point()) for name, tensor in case.tensors.items()
    }
    results = case.call(function, dict(operands))
    with torch.no_grad():
        alone = case.call(function, {name: tensor.detach() for name, tensor in operands.items()})
    if any(tensor._version for tensor in operands.values()):
        raise Disagreement("it changes its arguments")
    found = {**_named("results", results), **_named("results without gradients", alone)}
    inputs = {**operands, **({} if case.module is None else dict(case.module.named_parameters()))}
    inputs = {name: tensor for name, tensor in inputs.items() if tensor.requires_grad}
    gradients = _gradients([tensor for name, tensor in found.items() if "without" not in name], list(inputs.values()))
    for (name, tensor), gradient in zip(inputs.items(), gradients, strict=True):
        found[f"gradients of {name}"] = torch.zeros_like(tensor) if gradient is None else gradient
    return found


def _named(words: str, results: object) -> dict[str, Tensor]:
    if isinstance(results, Tensor):
        return {words: results}
    if isinstance(results, tuple | list) and results and all(isinstance(result, Tensor) for result in results):
        return {f"{words}{f' {index}' if index else ''}": result for index, result in enumerate(results)}
    raise Disagreement(f"it returns no tensors, but {type(results).__name__}")


def _compare(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], words: str) -> None:
    if expected.keys() != found.keys():
        raise Disagreement(f"it returns {len(expected)} things with {words}")
    largest = max((tensor.detach().abs().max().item() for tensor in expected.values()), default=0.0)
    for name, theirs in expected.items():
        ours = found[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            sizes = " instead of ".join(f"{list(tensor.shape)} in {tensor.dtype}" for tensor in (theirs, ours))
            raise Disagreement(f"its {name} are {sizes} with {words}")
        scale, off = (tensor.detach().abs().max().item() for tensor in (theirs, theirs - ours))
        # A comparison that NaN does not pass.
        if not off <= _RELATIVE * scale + _RELATIVE_TO_ALL * largest:
            raise Disagreement(f"its {name} differ by {off:.2g} of {scale:.2g} with {words}", is_measured=True)


def _gradients(results: list[Tensor], inputs: list[Tensor]) -> list[Tensor | None]:
    """The gradients of a sum of all results, each number with a weight of its own.

    The graph is walked here: the engine would start threads for every GPU with its first call, and processes that are
    forked after that could neither use autograd nor the GPU.
    """
    pending: dict[Any, list[Tensor | None]] = {}
    wanted: dict[Any, Tensor] = {}

    def add(node: Any, index: int, gradient: Tensor) -> None:
        slots = pending.setdefault(node, [None] * len(node._input_metadata))
        # Nodes leave it to the engine to undo their broadcasting.
        gradient = gradient.sum_to_size(node._input_metadata[index].shape)
        former = slots[index]
        slots[index] = gradient if former is None else former + gradient

    with torch.no_grad():
        for result in results:
            if result.grad_fn is not None:
                steps = torch.arange(result.numel(), dtype=result.dtype)
                add(result.grad_fn, result.output_nr, (steps * 0.7).cos().reshape(result.shape))
        for node in _in_order([result.grad_fn for result in results if result.grad_fn is not None]):
            arrived = pending.pop(node, None)
            if arrived is None:
                continue
            if hasattr(node, "variable"):
                wanted[node.variable] = arrived[0]  # type: ignore[assignment]
                continue
            whole = [
                torch.zeros(metadata.shape, dtype=metadata.dtype) if gradient is None else gradient
                for gradient, metadata in zip(arrived, node._input_metadata, strict=True)
            ]
            for gradient, (before, index) in zip(_called(node, whole), node.next_functions, strict=True):
                if before is not None and gradient is not None:
                    add(before, index, gradient)
    return [wanted.get(tensor) for tensor in inputs]


def _called(node: Any, gradients: list[Tensor]) -> Sequence[Tensor | None]:
    """What a node of the graph hands on, one for each of its edges."""
    if not hasattr(node, "needs_input_grad"):
        found = node(*gradients)
        return found if isinstance(found, tuple) else (found,)
    # One that is written in Python has something for all arguments, but edges for tensors only.
    found = node.apply(*gradients)
    found = found if isinstance(found, tuple) else (found,)
    needed = iter([gradient for gradient, is_needed in zip(found, node.needs_input_grad, strict=False) if is_needed])
    return [None if before is None else next(needed) for before, _ in node.next_functions]


def _in_order(roots: list[Any]) -> list[Any]:
    """All nodes of a graph, each before those that get gradients from it."""
    done: dict[Any, None] = {}
    stack = [(root, False) for root in roots]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            done[node] = None
        elif node not in done:
            stack.append((node, True))
            stack.extend((before, False) for before, _ in node.next_functions if before is not None)
    return list(done)[::-1]


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}"
