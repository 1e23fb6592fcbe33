"""Pages from outside docs/, and links that work both on GitHub and on the site."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent

# Pages of the site that are files elsewhere in the repository.
ELSEWHERE = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "releasing.md": "RELEASING.md",
    "security.md": "SECURITY.md",
    "runs.md": "runs/README.md",
}

# Pages made of docstrings, and the modules on them: the first is what the page is about.
API = {
    "api/fourtap.md": ["fourtap"],
    "api/nn.md": ["fourtap.nn"],
    "api/onnx.md": ["fourtap.onnx"],
    "api/distributed.md": ["fourtap.distributed"],
    "api/compat.md": [
        "fourtap.compat",
        "fourtap.compat.deformable_detr",
        "fourtap.compat.groundingdino",
        "fourtap.compat.mmcv",
        "fourtap.compat.rfdetr",
        "fourtap.compat.rtdetr",
        "fourtap.compat.transformers",
        "fourtap.compat.ultralytics",
        "fourtap.compat.dcnv4",
    ],
}
PYTHON = ROOT / "crates/fourtap-py/python"

# Files of this folder that pages use.
ASSETS = {"assets/logo.svg": "logo.svg", "assets/style.css": "style.css"}

# Where a page that the navigation does not list belongs, by its folder.
SECTIONS = {"": "Guide"}

# Code, in which nothing is a link; then the target of a link or picture, in Markdown or HTML.
CODE = re.compile(r"(^ *(?P<fence>```+|~~~+).*?^ *(?P=fence) *$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
TARGET = re.compile(
    r'(?P<before>\]\(|<(?:a|img|source)\s[^>]*?(?:href|src|srcset)=")(?P<target>[^)"\s]+)(?P<after>[)"])'
)

# What a browser would fetch from another host.
FETCHED = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\ssrc(?:set)?="?(?:https?:)?//|<link\b[^>]*rel="?stylesheet[^>]*https?://'
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and assets that are not under docs/, and complete the navigation."""
    for name, source in ELSEWHERE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    for name, modules in API.items():
        content = "\n".join(section(module, 1 if module == modules[0] else 2) for module in modules)
        files.append(File.generated(config, name, content=content))
    for name, source in ASSETS.items():
        files.append(File.generated(config, name, abs_src_path=str(Path(__file__).parent / source)))
    listed = set(pages_of(config.nav))
    for file in sorted(files.documentation_pages(), key=lambda file: file.src_uri):
        if file.src_uri not in listed:
            section_of(config.nav, str(PurePosixPath(file.src_uri).parent)).append(file.src_uri)
    check_other_documents(files)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links relative to the site, or to the repository where the site has no such page."""
    source = ELSEWHERE.get(page.file.src_uri) or f"docs/{page.file.src_uri}"
    # The room of a list of one page, or of no headings, is better used for tables.
    page.meta["hide"] = ["navigation"] if page.is_homepage else []
    if page.file.src_uri not in API and "\n## " not in markdown:
        page.meta["hide"].append("toc")
    sites = pages_by_source(files)

    def rewrite(target: str) -> str:
        path, anchor = resolve(source, target)
        anchor = f"#{anchor}" if anchor else ""
        if path in sites:
            return os.path.relpath(sites[path], PurePosixPath(page.file.src_uri).parent) + anchor
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{path}{anchor}"

    return with_targets(separate_lists(markdown), rewrite)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would fetch something from another host."""
    if found := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri}: expected nothing fetched from other hosts, found {found.group()!r}")
    return output


def section(module: str, level: int) -> str:
    """A module with a heading of this level. Of what it exports, functions come before classes: most are errors."""
    path = PYTHON / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    exports = re.search(r"^__all__ = (\[.*?\])", source.read_text(), re.MULTILINE | re.DOTALL)
    if exports is None:
        raise PluginError(f"{source.relative_to(ROOT)}: expected a list __all__, found none")
    # Modules have sections or pages of their own.
    names = [name for name in ast.literal_eval(exports[1]) if not name.startswith("_") and not (path / name).exists()]
    names = [name for name in names if not (path / f"{name}.py").exists()]
    members = json.dumps(sorted(names, key=lambda name: name[0].isupper()))
    return f"::: {module}\n    options:\n      heading_level: {level}\n      members: {members}\n"


def pages_of(nav: Any) -> Iterator[str]:
    """The pages that a part of the navigation lists."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(part)


def section_of(nav: list[dict[str, Any]], folder: str) -> list[str]:
    """The section of the navigation for the pages of a folder."""
    title = SECTIONS.get("" if folder == "." else folder)
    for part in nav:
        if title in part:
            return part[title]
    raise PluginError(f"site/hooks.py: expected a section of the navigation for docs/{folder}, found none in SECTIONS")


def pages_by_source(files: Files) -> dict[str, str]:
    """Where on the site the files of the repository are that are on it."""
    sites = {f"docs/{file.src_uri}": file.src_uri for file in files if file.src_uri not in API}
    sites.update({source: page for page, source in ELSEWHERE.items()})
    return sites


def resolve(source: str, target: str) -> tuple[str, str]:
    """The file or folder that a link in a document means, from the root of the repository, and the anchor in it."""
    path, _, anchor = target.partition("#")
    path = os.path.normpath(os.path.join(os.path.dirname(source), path)) if path else source
    if path.startswith("..") or not (ROOT / path).exists():
        raise PluginError(f"{source}: expected a link to a file of the repository, found {target!r}")
    return path, anchor


def with_targets(markdown: str, rewrite: Any) -> str:
    """The text with the target of each link to a file replaced."""

    def replace(found: re.Match[str]) -> str:
        target = found["target"]
        if re.match(r"[a-z]+:|//|#", target):
            return found.group()
        return found["before"] + rewrite(target) + found["after"]

    pieces, end = [], 0
    for code in CODE.finditer(markdown):
        pieces += [TARGET.sub(replace, markdown[end : code.start()]), code.group()]
        end = code.end()
    return "".join([*pieces, TARGET.sub(replace, markdown[end:])])


def separate_lists(markdown: str) -> str:
    """The text with a blank line before each list: GitHub lets one follow a paragraph, the site's Markdown does not."""
    lines, before, in_code = [], "", False
    for line in markdown.splitlines():
        in_code ^= line.lstrip().startswith(("```", "~~~"))
        if not in_code and re.match(r"[-*] |1\. ", line) and re.match(r"(?![-*] |\d+\. )[^\s#|>]", before):
            lines.append("")
        lines.append(line)
        before = line
    return "\n".join(lines)


def check_other_documents(files: Files) -> None:
    """Check the links of documents that are not on the site: they are read on GitHub."""
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True)
    for document in set(tracked.stdout.splitlines()) - set(pages_by_source(files)):
        if (ROOT / document).exists():
            with_targets((ROOT / document).read_text(), lambda target, document=document: resolve(document, target)[0])
