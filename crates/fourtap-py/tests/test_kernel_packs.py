"""The package fourtap-kernels is found where it is installed, and ignored where it is stale or damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fourtap


def run(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search}
    environment.pop("FOURTAP_PACK", None)
    command = [sys.executable, "-m", "fourtap", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def kernels_found(path: Path) -> Any:
    done = run(path, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["cuda"]["kernels"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package that has two kernels for one architecture."""
    path = tmp_path_factory.mktemp("packages")
    folder = path / "fourtap_kernels"
    done = run(path, "bake", "--usual", "--arch", "sm_90a", "--only", "projected-mask", "-o", str(folder))
    if "NVRTC" in done.stderr and done.returncode != 0:
        assert not os.environ.get("FOURTAP_REQUIRE_NVRTC"), done.stderr
        pytest.skip("no NVRTC")
    assert done.returncode == 0, done.stderr
    (folder / "__init__.py").write_text("raise AssertionError('only looked for, not imported')\n")
    return path


def test_none_is_needed(tmp_path: Path) -> None:
    assert kernels_found(tmp_path) is None


def test_an_installed_package_is_found_and_not_imported(package: Path) -> None:
    found = kernels_found(package)["found"]
    assert found["version"] == fourtap.__version__
    assert found["path"] == str(package / "fourtap_kernels")
    assert found["packs"] == [{"architecture": "sm_90a", "kernels": 2}]


def test_one_of_another_version_is_named(package: Path) -> None:
    listed = package / "fourtap_kernels" / "kernels.txt"
    text = listed.read_text()
    try:
        listed.write_text(text.replace(fourtap.__version__, "0.0.1"))
        missing = kernels_found(package)["missing"]
    finally:
        listed.write_text(text)
    assert f"expected kernels of fourtap {fourtap.__version__} (" in missing
    assert "found those of fourtap 0.0.1 (" in missing
    assert f"Install fourtap-kernels {fourtap.__version__}, which `cargo xtask packs` builds" in missing


def test_a_damaged_kernel_is_named(package: Path) -> None:
    pack = package / "fourtap_kernels" / "sm_90a.pack"
    data = pack.read_bytes()
    try:
        pack.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        missing = kernels_found(package)["missing"]
    finally:
        pack.write_bytes(data)
    assert "the checksum of kernel msda-projected-mask" in missing


def test_a_module_in_its_place_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "fourtap_kernels.py").write_text("")
    assert kernels_found(tmp_path) is None
