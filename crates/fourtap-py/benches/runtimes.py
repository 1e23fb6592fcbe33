"""The operator and small models of transformers in other runtimes: right or wrong, and how long they take.

Each runtime runs in a Python of its own, where it is installed: ``--runtime NAME=PYTHON``, with the names of
tests/runtime_worker.py. ``--web FOLDER`` is the npm package onnxruntime-web.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import torch
from measuring import Records, print_table, show_progress

TESTS = pathlib.Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

import runtime_cases  # noqa: E402
import test_models  # noqa: E402

MODELS = ("rt_detr", "rt_detr_v2", "d_fine", "deformable_detr")
# Further off than rounding goes in a network of random weights.
ALLOWED_ERROR = 1e-3


def run(command: list[str], folder: pathlib.Path, repetitions: int) -> dict[str, Any]:
    """What a worker found, by form."""
    done = subprocess.run([*command, str(folder), str(repetitions)], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    words = (done.stderr.strip().splitlines() or [""])[-1]
    return {form: {"failed": f"exit status {done.returncode}: {words}"} for form in runtime_cases.FORMS}


def error_of(case: runtime_cases.Case, folder: pathlib.Path, result: dict[str, Any]) -> float:
    """The error of a result that a worker has written."""
    files = zip(result["outputs"], result["shapes"], strict=True)
    return case.error([np.fromfile(folder / file, np.float32).reshape(shape) for file, shape in files])


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runtime", action="append", default=[], metavar="NAME=PYTHON", help="a runtime, and where it is"
    )
    parser.add_argument("--web", metavar="FOLDER", help="where the npm package onnxruntime-web is")
    parser.add_argument("--case", action="append", choices=("operator", *MODELS), help="by default all")
    parser.add_argument("--repetitions", type=int, default=9, help="turns each form gets")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="append JSON records to it, one per line")
    options = parser.parse_args()
    commands = {}
    for given in options.runtime:
        name, _, python = given.partition("=")
        commands[given] = (name, [python, str(TESTS / "runtime_worker.py"), name])
    if options.web:
        commands["web"] = ("onnxruntime-web", ["node", str(TESTS / "runtime_worker.mjs"), options.web])
    records = Records("runtimes", torch.device("cpu"), options.json)
    rows = [("case", "runtime", "form", "error", "ms", "")]
    with tempfile.TemporaryDirectory() as kept:
        for name in options.case or ("operator", *MODELS):
            show_progress(f"exporting: {name}")
            case = (
                runtime_cases.operator(images=1)
                if name == "operator"
                else runtime_cases.model(name, test_models.build(name, "cpu", images=1))
            )
            folder = pathlib.Path(kept) / name
            case.write(folder, programs=any(runtime == "executorch" for runtime, _ in commands.values()))
            for runtime, command in commands.values():
                show_progress(f"{name}: {runtime}")
                for form, result in run(command, folder, options.repetitions).items():
                    fields = {key: result[key] for key in ("failed", "version", "seconds") if key in result}
                    row = [name, f"{runtime} {result.get('version', '')}".strip(), form]
                    if "failed" in result:
                        records.write(what=name, runtime=runtime, form=form, **fields)
                        rows.append((*row, "", "", result["failed"][:90]))
                        continue
                    error, seconds = error_of(case, folder, result), min(result["seconds"])
                    verdict = "right" if error <= ALLOWED_ERROR else "WRONG"
                    records.write(what=name, runtime=runtime, form=form, error=error, **fields)
                    rows.append((*row, f"{error:.1e}", f"{seconds * 1e3:.2f}", verdict))
    show_progress("")
    print(f"on {records.heading}; milliseconds, the least of {options.repetitions} in turns\n")
    print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
