"""Code that looks like other code: sources of Python with one thing changed.

A mutant may compute the same, something else, or nothing that runs; that is for who takes it to find out.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Mutant", "mutants"]

_OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Div),
    ast.Div: (ast.Mult, ast.Sub),
    ast.FloorDiv: (ast.Mult,),
}
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
}
_MODES = {
    "zeros": ("border", "reflection"),
    "bilinear": ("nearest", "bicubic"),
    "default": ("discrete",),
    "discrete": ("default",),
}
# What somebody might write instead of an option: usual numbers, which are not those of the module that is tried.
_USUAL = {
    "n_points": "4",
    "num_points": "4",
    "n_heads": "8",
    "num_heads": "8",
    "n_levels": "4",
    "num_levels": "4",
    "d_model": "256",
    "offset_scale": "0.5",
    "eps": "1e-3",
}
_LAYERS = ("value_proj", "output_proj")
# What may happen to a tensor before others take it.
_AFTERWARDS = {
    "sign": ("-({0})", "({0}).abs()", "({0}).relu()"),
    "order": ("({0}).flip(0)", "({0}).flip(1)", "({0}).flip(-1)", "({0}).roll(1, -2)"),
    "size": ("({0}) * 2", "({0}) * 1.01", "({0}) + 0.01", "({0}).tanh()", "({0}).float().double()"),
    "limit": ("({0}).clamp(-8, 8)", "({0}).clamp(min=0)", "({0}).clamp(-1, 1)", "({0}).nan_to_num(0).clamp(max=1)"),
    "gradient": ("({0}).detach()", "({0}) if torch.is_grad_enabled() else ({0}) * 2"),
    "residual": ("({0}) + ({0})",),
}


@dataclass(frozen=True)
class Mutant:
    """A source, and what is changed in it."""

    kind: str
    what: str
    _tree: ast.AST
    _node: ast.AST
    _instead: ast.AST

    @property
    def source(self) -> str:
        """Written when it is wanted: there are thousands."""
        whole = _Replacing(self._node, self._instead).visit(copy.deepcopy(self._tree))
        return ast.unparse(ast.fix_missing_locations(whole))


def mutants(source: str) -> Iterator[Mutant]:
    """All of a source, in its order."""
    tree = ast.fix_missing_locations(_Bare().visit(ast.parse(source)))
    for at, node in enumerate(ast.walk(tree)):
        node.at = at  # type: ignore[attr-defined]
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        if function.name == "__init__":
            continue
        names = _names(function)
        inner = [node for child in function.body for node in ast.walk(child)]
        for node in [*function.args.defaults, *inner]:
            for kind, what, changed in _changes(node, names):
                yield Mutant(kind, f"{function.name}, {ast.unparse(node)!r}: {what}", tree, node, changed)


class _Bare(ast.NodeTransformer):
    """Leaves out what does not compute anything: annotations, docstrings and what errors say."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        arguments = node.args
        for argument in (*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
            if argument is not None:
                argument.annotation = None
        node.returns = None
        if ast.get_docstring(node) is not None:
            del node.body[0]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return node
        return self.generic_visit(ast.Assign([node.target], node.value))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("")

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.parse("raise ValueError").body[0]


class _Replacing(ast.NodeTransformer):
    """Puts another node in the place of one, in a copy of its tree."""

    def __init__(self, node: ast.AST, other: ast.AST) -> None:
        self._at = node.at  # type: ignore[attr-defined]
        self._other = other

    def visit(self, node: ast.AST) -> ast.AST:
        return self._other if getattr(node, "at", None) == self._at else self.generic_visit(node)


def _names(function: ast.FunctionDef) -> list[str]:
    """The variables of a function, arguments first."""
    arguments = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    names = [node for child in function.body for node in ast.walk(child) if isinstance(node, ast.Name)]
    return list(dict.fromkeys([*arguments, *(name.id for name in names if isinstance(name.ctx, ast.Store))]))


_Change = tuple[str, str, ast.AST]


def _changes(node: ast.AST, names: list[str]) -> Iterator[_Change]:
    yield from _of_constants(node)
    yield from _of_operators(node)
    yield from _of_order(node)
    yield from _of_names(node, names)
    yield from _of_statements(node, names)


def _of_constants(node: ast.AST) -> Iterator[_Change]:
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    others: list[object] = []
    kind = "constant"
    if isinstance(value, bool):
        kind, others = "mode", [not value]
    elif isinstance(value, int):
        # Most are axes, or parts of them.
        kind, others = "integer", [value + 1, value - 1, -value, 2 * value]
    elif isinstance(value, float):
        others = [2 * value, -value, 1.01 * value, value + 1]
    elif isinstance(value, str):
        kind, others = "mode", list(_MODES.get(value, ()))
    for other in others:
        if other != value:
            yield kind, f"{other!r} instead", ast.Constant(other)


def _of_operators(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.BinOp):
        for other in _OPERATORS.get(type(node.op), ()):
            yield "operator", other.__name__, ast.BinOp(node.left, other(), node.right)
        yield "operator", "the first of both", node.left
        if not isinstance(node.op, ast.Add | ast.Mult):
            yield "order", "operands exchanged", ast.BinOp(node.right, node.op, node.left)
    if isinstance(node, ast.UnaryOp):
        yield "sign", "without it", node.operand
    if isinstance(node, ast.BoolOp):
        other_kind = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "condition", "the other one of and, or", ast.BoolOp(other_kind, node.values)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        other_test = _COMPARISONS[type(node.ops[0])]()
        yield "condition", "the contrary", ast.Compare(node.left, [other_test], node.comparators)


def _of_order(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Call):
        for exchanged in _exchanged(node.args):
            yield "order", "arguments exchanged", ast.Call(node.func, exchanged, node.keywords)
        for keyword in node.keywords:
            others = [other for other in node.keywords if other is not keyword]
            yield "mode", f"without {keyword.arg}", ast.Call(node.func, node.args, others)
        if isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Name):
            yield "left out", "what it is of", node.func.value
    if isinstance(node, ast.Tuple | ast.List) and isinstance(node.ctx, ast.Load):
        for exchanged in _exchanged(node.elts):
            yield "order", "exchanged", type(node)(exchanged, ast.Load())


def _exchanged(nodes: list[ast.expr]) -> Iterator[list[ast.expr]]:
    for at in range(1, len(nodes)):
        if ast.dump(nodes[at - 1]) != ast.dump(nodes[at]):
            yield [*nodes[: at - 1], nodes[at], nodes[at - 1], *nodes[at + 1 :]]


def _of_names(node: ast.AST, names: list[str]) -> Iterator[_Change]:
    variables = [name for name in names if name != "self"]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in variables:
        for other in variables:
            if other != node.id:
                yield "name", other, ast.Name(other, ast.Load())
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        if node.attr in _USUAL:
            yield "option", f"{_USUAL[node.attr]} instead", _expression(_USUAL[node.attr])
        if node.attr in _LAYERS:
            (other,) = (layer for layer in _LAYERS if layer != node.attr)
            yield "name", other, ast.Attribute(node.value, other, ast.Load())


def _of_statements(node: ast.AST, names: list[str]) -> Iterator[_Change]:
    if isinstance(node, ast.If):
        for answer in (True, False):
            yield "condition", f"always {answer}", ast.If(ast.Constant(answer), node.body, node.orelse)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        target = node.targets[0].id
        if any(isinstance(used, ast.Name) and used.id == target for used in ast.walk(node.value)):
            yield "left out", "the statement", ast.Pass()
        for kind, what, value in _after(node.value, names):
            yield kind, what, ast.Assign(node.targets, value)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Tuple):
        for kind, what, value in _after(node.value, names):
            yield kind, what, ast.Return(value)


def _after(value: ast.expr, names: list[str]) -> Iterator[tuple[str, str, ast.expr]]:
    """What may happen to the value of a statement."""
    written = ast.unparse(value)
    templates = [(kind, template) for kind, every in _AFTERWARDS.items() for template in every]
    templates += [("residual", f"({{0}}) + {name}") for name in names if name != "self"]
    if "self" in names:
        # Modules are in training or not.
        templates.append(("condition", "({0}) * (2 if self.training else 1)"))
    for kind, template in templates:
        # Braces of the value are none of the template's.
        yield kind, template.format("it"), _expression(template.replace("{0}", written))


def _expression(written: str) -> ast.expr:
    return ast.parse(written, mode="eval").body
