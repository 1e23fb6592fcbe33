"""Times Deformable DETR's encoder and RT-DETR's decoder in ONNX Runtime on a CUDA device, stock and with our nodes.

``make FOLDER`` writes the models of onnx_runtime.py, in f32 and in f16; it needs transformers, and no device. ``run
FOLDER`` times them, on a machine with onnxruntime-gpu that need have nothing else of this. In f16, ``stock`` is that
file converted by ONNX Runtime's tool; GridSample stays in f32, in which alone the CUDA provider has it.

All inputs and outputs are on the device. Before anything is timed, outputs are compared with those of the stock f32
model on the CPU. A time is that of a run until its work is done (``alone``), or of one of many in a queue (``queued``),
which does not have the host's waiting for the device in it. With ``graph``, runs are replays of a CUDA graph.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import pathlib
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import torch
from measuring import Records, Samples, no_garbage_collection, print_table, show_progress

import fourtap.onnx

PROVIDER = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
FILES = {"f32": ("stock", "rewritten", "exported"), "f16": ("stock", "exported")}
MODELS = {"f32": ("stock", "rewritten", "exported", "function"), "f16": ("stock", "exported", "function")}
GRAPHS = ("stock", "exported")
# The CUDA provider multiplies f32 matrices in TF32. In f16, stock models have places in f16 too, which are as far
# apart as a twelfth of a pixel of the widest level.
ALLOWED_ERRORS = {"f32": 1e-2, "f16": 5e-2}
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(bool)": np.bool_}
SIGMA = 4.0  # as in onnx_runtime.py
QUEUED = 20
WARM_UP = 4


def make(folder: pathlib.Path) -> None:
    """Writes the models, and ``cases.json``, which says what they are and what goes into them."""
    import onnx
    import onnx_runtime
    from onnxruntime.transformers import float16

    from fourtap.compat import transformers as compat

    torch.manual_seed(0)
    cases = []
    for number, case in enumerate([*onnx_runtime.encoder(1), *onnx_runtime.decoder(1)]):
        print(f"{number}: {case.what}", flush=True)
        here = folder / str(number)
        here.mkdir(parents=True, exist_ok=True)
        names = {"input_names": list(case.feed), "verbose": False}
        with tempfile.TemporaryDirectory() as temporary, torch.no_grad():
            files = {name: pathlib.Path(temporary) / f"{name}.onnx" for name in FILES["f32"]}
            torch.onnx.export(case.part, case.inputs, files["stock"], dynamo=True, **names)
            fourtap.onnx.rewrite(files["stock"], files["rewritten"])
            half = pathlib.Path(temporary) / "half.onnx"
            compat.patch()
            try:
                fourtap.onnx.export(case.part, case.inputs, files["exported"], **names)
                # Reference points stay as they are: our node takes them so.
                narrow = [
                    one.half() if one.is_floating_point() and name != "reference_points" else one
                    for one, name in zip(case.inputs, case.part.names, strict=True)
                ]
                fourtap.onnx.export(copy.deepcopy(case.part).half(), tuple(narrow), half, **names)
            finally:
                compat.unpatch()
            models = {f"f32-{name}": onnx.load(file) for name, file in files.items()}
            models["f16-exported"] = onnx.load(half)
            kept = [*float16.DEFAULT_OP_BLOCK_LIST, "GridSample"]
            models["f16-stock"] = float16.convert_float_to_float16(
                onnx.load(files["stock"]), keep_io_types=False, op_block_list=kept
            )
        for name, model in models.items():
            onnx.save(model, here / f"{name}.onnx")
        inputs = [
            {"name": file, "what": name, "shape": list(tensor.shape)}
            for file, name, tensor in zip(case.feed, case.part.names, case.inputs, strict=True)
        ]
        cases.append({"what": case.what, "levels": case.part.levels, "inputs": inputs})
    (folder / "cases.json").write_text(json.dumps(cases, indent=1))


def centres(levels: list[tuple[int, int]]) -> np.ndarray:
    """Where each pixel of each level is, on every level."""
    places = []
    for height, width in levels:
        y, x = np.meshgrid((np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij")
        places.append(np.stack([x, y], -1).reshape(-1, 2))
    return np.repeat(np.concatenate(places)[None, :, None], len(levels), 2)


def tensors(case: dict[str, Any]) -> dict[str, np.ndarray]:
    """The inputs of a case, in f32."""
    random = np.random.default_rng(0)
    feed = {}
    for one in case["inputs"]:
        shape = one["shape"]
        if one["what"] == "attention_mask":
            feed[one["name"]] = np.ones(shape, np.bool_)
        elif one["what"] == "reference_points":
            of_pixels = centres(case["levels"])
            boxes = random.random(shape) * [1, 1, 0.3, 0.3][: shape[-1]]
            feed[one["name"]] = (of_pixels if list(of_pixels.shape) == shape else boxes).astype(np.float32)
        else:
            scale = SIGMA if one["what"] == "offsets" else 1
            feed[one["name"]] = random.standard_normal(shape, np.float32) * np.float32(scale)
    return feed


def load(file: pathlib.Path, *, with_library: bool, provider: Any) -> Any:
    """A session of a file on this provider."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if with_library:
        options.register_custom_ops_library(fourtap.onnx.library_path())
    session = onnxruntime.InferenceSession(file, options, providers=[provider], enable_fallback=False)
    name = provider if isinstance(provider, str) else provider[0]
    if name not in session.get_providers():
        raise RuntimeError(f"ONNX Runtime does not use {name}, only {session.get_providers()}")
    return session


def nodes(session: Any) -> dict[str, int]:
    """How many nodes each provider has."""
    found: dict[str, int] = collections.Counter()
    for part in session.get_provider_graph_assignment_info():
        found[part.ep_name] += len(part.get_nodes())
    return dict(found)


@dataclass
class Model:
    """A model with its tensors on the device."""

    name: str
    session: Any
    feed: dict[str, np.ndarray]
    shape: tuple[int, ...]
    device: str = "cuda"
    alone: Samples = field(default_factory=Samples)
    queued: Samples = field(default_factory=Samples)
    error: float = 0.0

    def __post_init__(self) -> None:
        """Puts the tensors there."""
        make = onnxruntime.OrtValue
        self.binding = self.session.io_binding()
        self.inputs = {}
        for one in self.session.get_inputs():
            given = self.feed[one.name].astype(TYPES[one.type])
            self.inputs[one.name] = make.ortvalue_from_numpy(given, self.device, 0)
            self.binding.bind_ortvalue_input(one.name, self.inputs[one.name])
        (out,) = self.session.get_outputs()
        self.out = make.ortvalue_from_shape_and_type(list(self.shape), TYPES[out.type], self.device, 0)
        self.binding.bind_ortvalue_output(out.name, self.out)
        self.unfinished = onnxruntime.RunOptions()
        self.unfinished.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def check(self, expected: np.ndarray) -> None:
        """Runs it, the last time on outputs that nobody has written yet."""
        for _ in range(WARM_UP):
            self.session.run_with_iobinding(self.binding)
        self.out.update_inplace(np.zeros(self.shape, self.out.numpy().dtype))
        self.session.run_with_iobinding(self.binding)
        found = self.out.numpy().astype(np.float64)
        self.error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))

    def measure(self) -> None:
        """Times it once."""
        self.session.run_with_iobinding(self.binding)
        begin = time.perf_counter()
        self.session.run_with_iobinding(self.binding)
        self.alone.seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(QUEUED):
            self.session.run_with_iobinding(self.binding, self.unfinished)
        self.binding.synchronize_outputs()
        self.queued.seconds.append((time.perf_counter() - begin) / QUEUED)


def prepared(folder: pathlib.Path, number: int, case: dict[str, Any], dtype: str, expected: np.ndarray) -> list[Model]:
    """The models of a case that run and are right; of the others it is printed why not."""
    feed = tensors(case)
    models = []
    for name in MODELS[dtype]:
        file = folder / str(number) / f"{dtype}-{'exported' if name == 'function' else name}.onnx"
        for options in ({}, {"enable_cuda_graph": "1"}) if name in GRAPHS else ({},):
            words = f"{name}, graph" if options else name
            show_progress(f"{case['what']}, {dtype}: {words}")
            try:
                provider = (PROVIDER, options) if PROVIDER != CPU else CPU
                session = load(file, with_library=name != "function", provider=provider)
                device = "cuda" if PROVIDER != CPU else "cpu"
                model = Model(words, session, feed, expected.shape, device)
                model.check(expected)
                if not options:
                    print(f"{case['what']}, {dtype}, {words}: {nodes(session)}, error {model.error:.1e}", flush=True)
            except Exception as error:
                print(f"{case['what']}, {dtype}, {words}: does not run: {str(error)[:300]!r}", flush=True)
                continue
            if model.error <= ALLOWED_ERRORS[dtype]:
                models.append(model)
            else:
                print(f"{case['what']}, {dtype}, {words}: off by {model.error:.1e}: left out", flush=True)
    return models


def run(folder: pathlib.Path, repetitions: int, records: Records, wanted: list[str]) -> None:
    """Times all models."""
    for number, case in enumerate(json.loads((folder / "cases.json").read_text())):
        if wanted and str(number) not in wanted:
            continue
        case["levels"] = [tuple(level) for level in case["levels"]]
        session = load(folder / str(number) / "f32-stock.onnx", with_library=False, provider=CPU)
        (expected,) = session.run(None, tensors(case))
        for dtype in MODELS:
            try:
                models = prepared(folder, number, case, dtype, expected.astype(np.float64))
                with no_garbage_collection():
                    for repetition in range(repetitions):
                        show_progress(f"{case['what']}, {dtype}: repetition {repetition + 1} of {repetitions}")
                        for model in models:
                            model.measure()
            except Exception:
                print(f"{case['what']}, {dtype}:\n{traceback.format_exc()}", flush=True)
                continue
            show_progress("")
            rows = [("model", "alone", "queued", "lowest", "highest", "error")]
            for model in models:
                records.write(
                    what=case["what"],
                    model=model.name,
                    dtype=dtype,
                    level_sizes=case["levels"],
                    onnxruntime=onnxruntime.__version__,
                    alone=model.alone.fields(),
                    queued=model.queued.fields(),
                    verified=model.error,
                )
                times = (model.alone.median, model.queued.median, model.queued.low, model.queued.high)
                rows.append((model.name, *(f"{seconds * 1e6:.1f}" for seconds in times), f"{model.error:.0e}"))
            print(f"\n{case['what']}, {dtype}, levels {case['levels']}: microseconds")
            print_table(rows)
            print(flush=True)
            models.clear()


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "run"])
    parser.add_argument("folder", type=pathlib.Path, help="where the models are")
    parser.add_argument("--repetitions", type=int, default=15, help="turns each model gets")
    parser.add_argument("--only", nargs="*", default=[], metavar="NUMBER", help="these cases")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="append JSON records to it, one per line")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.what == "make":
        make(options.folder)
        return 0
    if PROVIDER not in onnxruntime.get_available_providers():
        sys.exit("error: this ONNX Runtime has no CUDA\nhint: pip install onnxruntime-gpu")
    records = Records("onnx_cuda", torch.device("cuda" if PROVIDER != CPU else "cpu"), options.json)
    print(f"ONNX Runtime {onnxruntime.__version__}, batch 1, medians of {options.repetitions} in turns")
    print(f"on {records.heading}\n")
    run(options.folder, options.repetitions, records, options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
