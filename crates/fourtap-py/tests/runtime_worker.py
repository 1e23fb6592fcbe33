"""Runs the files of a case in one runtime: ``python runtime_worker.py RUNTIME FOLDER REPETITIONS``.

Runs where the runtime is installed, with nothing of ours. Prints one JSON object; outputs go to FOLDER. All forms take
turns in one process, so that whatever else the machine does slows them all.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Run = Callable[[], list[Any]]
THREADS = 2


def onnxruntime(folder: pathlib.Path, case: dict[str, Any], form: str) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 4
    if form == "our node":
        options.register_custom_ops_library(case["library"])
    file = str(folder / case["forms"][form])
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda: list(session.run(case["outputs"], inputs(folder, case, session.get_inputs())))


def openvino(folder: pathlib.Path, case: dict[str, Any], form: str) -> Run:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS}
    compiled = openvino.Core().compile_model(folder / case["forms"][form], "CPU", settings)
    feed = inputs(folder, case)
    return lambda: list(compiled(feed).values())


def tract(folder: pathlib.Path, case: dict[str, Any], form: str) -> Run:
    import tract

    model = tract.onnx().load(str(folder / case["forms"][form]))
    feed = list(inputs(folder, case).values())
    for at, array in enumerate(feed):
        model.set_input_fact(at, f"{','.join(map(str, array.shape))},{'f32' if array.dtype == np.float32 else 'i64'}")
    runnable = model.into_model().into_runnable()
    return lambda: [one.to_numpy() for one in runnable.run(feed)]


def ncnn(folder: pathlib.Path, case: dict[str, Any], form: str) -> Run:
    """Through its converter, pnnx, which takes traced programs and files of ONNX."""
    import ncnn

    source = folder / ("GridSample.pt" if form == "GridSample" else case["forms"][form])
    shapes = ",".join(f"{json.dumps(one['shape'])}{_SHORT[one['type']]}" for one in case["inputs"].values())
    name = source.stem + "-ncnn"
    command = [os.path.join(os.path.dirname(sys.executable), "pnnx"), str(source)]
    command += [f"inputshape={shapes.replace(' ', '')}", "fp16=0"]
    command += [f"ncnnparam={folder / name}.param", f"ncnnbin={folder / name}.bin"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode != 0 or not (folder / f"{name}.param").exists():
        raise RuntimeError(f"pnnx: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}")
    net = ncnn.Net()
    net.opt.num_threads = THREADS
    if net.load_param(f"{folder / name}.param") != 0 or net.load_model(f"{folder / name}.bin") != 0:
        raise RuntimeError("ncnn: load_param or load_model failed")
    arrays = list(inputs(folder, case).values())

    def run() -> list[Any]:
        with net.create_extractor() as extractor:
            for at, array in enumerate(arrays):
                # It has no axis of images.
                extractor.input(f"in{at}", ncnn.Mat(np.ascontiguousarray(array[0])).clone())
            found = [extractor.extract(f"out{at}") for at in range(len(case["outputs"]))]
        if any(code != 0 for code, _ in found):
            raise RuntimeError(f"ncnn: extract returned {[code for code, _ in found]}")
        return [np.array(one)[None] for _, one in found]

    return run


def executorch(folder: pathlib.Path, case: dict[str, Any], form: str) -> Run:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    if form == "our node":
        raise FileNotFoundError("exported programs have no nodes of ours")
    program = torch.export.load(folder / f"{form}.pt2")
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    loaded = Runtime.get().load_program(lowered.buffer)
    method = loaded.load_method("forward")
    tensors = [torch.from_numpy(array) for array in inputs(folder, case).values()]
    # A method does not keep its program.
    return lambda: [one.numpy() for one in method.execute(tensors) if loaded]


_SHORT = {"float32": "f32", "int64": "i64"}
RUNTIMES = {one.__name__: one for one in (onnxruntime, openvino, tract, ncnn, executorch)}


def inputs(folder: pathlib.Path, case: dict[str, Any], wanted: Any = None) -> dict[str, Any]:
    """The arrays of a case, or of those that a session has inputs for: exporters leave out what is not used."""
    names = case["inputs"] if wanted is None else [one.name for one in wanted]
    described = {name: case["inputs"][name] for name in names}
    return {
        name: np.fromfile(folder / one["file"], one["type"]).reshape(one["shape"]) for name, one in described.items()
    }


def main() -> None:
    runtime, folder, repetitions = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
    case = json.loads((folder / "case.json").read_text())
    version = importlib.metadata.version(runtime)
    results: dict[str, dict[str, Any]] = {}
    ready: dict[str, Run] = {}
    for form in case["forms"]:
        try:
            run = RUNTIMES[runtime](folder, case, form)
            found = run()
        except Exception as error:
            results[form] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300], "version": version}
            continue
        ready[form] = run
        names = [f"{runtime}-{form}-{at}.bin" for at in range(len(found))]
        for name, array in zip(names, found, strict=True):
            np.asarray(array, np.float32).tofile(folder / name)
        shapes = [list(np.shape(one)) for one in found]
        results[form] = {"outputs": names, "shapes": shapes, "seconds": [], "version": version}
    for _ in range(repetitions):
        for form, run in ready.items():
            begin = time.perf_counter()
            run()
            results[form]["seconds"].append(time.perf_counter() - begin)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
