"""Python code in the documentation: complete examples run, and every name of ours in the others exists."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
PAGES = [
    *(page for page in (ROOT / "README.md", ROOT / "crates/fourtap-py/README.md") if page.exists()),
    *sorted((ROOT / "docs").glob("*.md")),
]

pytestmark = pytest.mark.skipif(not PAGES, reason="expected a checkout, with its documents")


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def lines_of(page: Path) -> list[str]:
    """The imports of ours that stand in the text and in tables, as in README's table of one-line changes."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line for line in re.findall(r"`([^`\n]+)`", text) if re.match(r"(import|from) fourtap\b", line)]


def unknown_names(code: str) -> Iterator[str]:
    """What the code imports from fourtap, or names as ``fourtap.a.b``, and does not exist."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
        yield from (name for name in names if re.fullmatch(r"fourtap(\.\w+)+", name) and not exists(name))


def exists(name: str) -> bool:
    found = importlib.import_module("fourtap")
    path = name.split(".")
    for at, part in enumerate(path[1:], 2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(path[:at]))
            except ModuleNotFoundError:
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_in_examples_exist(page: Path) -> None:
    assert [name for code in [*blocks_of(page), *lines_of(page)] for name in unknown_names(code)] == []


def test_a_name_that_does_not_exist_is_found() -> None:
    code = "import fourtap.compat.nobody; fourtap.nn.Nothing(); fourtap.compat.mmcv.patch()"
    assert sorted(unknown_names(code)) == ["fourtap.compat.nobody", "fourtap.nn.Nothing"]


def test_the_example_of_the_readme_runs() -> None:
    names: dict[str, object] = {}
    exec(blocks_of(ROOT / "README.md")[0], names)
    assert names["out"].shape == (1, 900, 256)


def test_the_example_of_the_packages_readme_gives_what_it_says() -> None:
    *imports, example = blocks_of(ROOT / "crates/fourtap-py/README.md")
    assert imports
    *lines, last = ast.parse(example).body
    names: dict[str, object] = {}
    exec(compile(ast.Module(lines, []), "README.md", "exec"), names)
    result = eval(compile(ast.Expression(last.value), "README.md", "eval"), names)
    assert example.rstrip().endswith("# array([[[15.]]], dtype=float32)")
    np.testing.assert_array_equal(result, np.array([[[15.0]]], np.float32))
