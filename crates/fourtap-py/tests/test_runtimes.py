"""The forms of the operator in other runtimes: in this Python, or in those that FOURTAP_RUNTIMES names.

It is a list such as ``openvino=/venv/bin/python:tract=/venv/bin/python``; ``web=FOLDER`` is the npm package
onnxruntime-web.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runtime_cases
import test_models

pytestmark = pytest.mark.slow
WORKERS = Path(__file__).parent
#: What a runtime computes right, in a network of random weights; where it refuses a form, the test says so.
RUNTIMES = {
    "onnxruntime": ("GridSample", "portable", "our node"),
    "openvino": ("GridSample", "portable"),
    "tract": ("GridSample", "portable"),
    "executorch": ("GridSample", "portable"),
    "web": ("GridSample", "portable"),
}
#: What cannot be loaded: this model's own export has grids of doubles.
REFUSED = {("onnxruntime", "deformable_detr", "GridSample")}
CASES = ("operator", "rt_detr", "rt_detr_v2", "d_fine", "deformable_detr")


def command(runtime: str) -> list[str]:
    given = dict(one.split("=", 1) for one in os.environ.get("FOURTAP_RUNTIMES", "").split(os.pathsep) if one)
    if runtime == "web":
        if "web" not in given or shutil.which("node") is None:
            pytest.skip("needs node, and the folder of onnxruntime-web in FOURTAP_RUNTIMES")
        return ["node", str(WORKERS / "runtime_worker.mjs"), given["web"]]
    if runtime not in given and importlib.util.find_spec(runtime) is None:
        pytest.skip(f"needs the package {runtime}, here or in a Python that FOURTAP_RUNTIMES names")
    return [given.get(runtime, sys.executable), str(WORKERS / "runtime_worker.py"), runtime]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    name = request.param
    built = (
        runtime_cases.operator(images=1)
        if name == "operator"
        else runtime_cases.model(name, test_models.build(name, "cpu", images=1))
    )
    folder = tmp_path_factory.mktemp(name)
    built.write(folder, programs=True)
    return built, folder


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_forms(runtime: str, case: tuple[Any, Path]) -> None:
    built, folder = case
    done = subprocess.run([*command(runtime), str(folder), "0"], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr
    for form, result in json.loads(lines[-1]).items():
        if form not in RUNTIMES[runtime] or (runtime, built.name, form) in REFUSED:
            assert "failed" in result
            continue
        assert "failed" not in result, (form, result)
        files = zip(result["outputs"], result["shapes"], strict=True)
        error = built.error([np.fromfile(folder / file, np.float32).reshape(shape) for file, shape in files])
        assert error < (1e-5 if built.name == "operator" else 1e-3), form
