"""Docstrings as the site reads them: roles, such as :func:`name`, become links, and examples code."""

from __future__ import annotations

import re
from typing import Any

import griffe

# One example is called so in the sources; the site's reader of docstrings knows only several.
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
# Two colons before an indented block, which is code here without them.
BLOCK = re.compile(r"::$", re.MULTILINE)
ROLE = re.compile(r":(?:class|func|meth|mod):`~?(?P<name>[\w.]+)`")


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of a package, once all of it has been read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the docstrings of everything in the package."""
        rewrite(pkg, pkg)


def rewrite(thing: griffe.Object | griffe.Alias, package: griffe.Module) -> None:
    """Rewrite the docstring of a thing and of what it contains."""
    if thing.is_alias:
        return
    if thing.docstring:
        text = BLOCK.sub(":", EXAMPLE.sub("Examples:", thing.docstring.value))
        thing.docstring.value = ROLE.sub(lambda role: link(role["name"], thing, package), text)
    for member in thing.members.values():
        rewrite(member, package)


def link(name: str, thing: griffe.Object | griffe.Alias, package: griffe.Module) -> str:
    """A link to what a name means in a docstring; code alone if it is not in the package."""
    scopes = [thing.path.rsplit(".", depth)[0] for depth in range(thing.path.count(".") + 1)]
    for path in [name, *(f"{scope}.{name}" for scope in scopes)]:
        if path.startswith(f"{package.path}."):
            try:
                return f"[`{name}`][{package[path.removeprefix(f'{package.path}.')].canonical_path}]"
            except KeyError:
                continue
    return f"`{name}`"
