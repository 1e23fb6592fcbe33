"""Times fourtap's dense attention and PyTorch's on the same tensors, alternately, on all cores of this machine.

PyTorch's side is torch.nn.functional.scaled_dot_product_attention in the same element type. Both sides' results are
compared before anything is timed. Usually run as `cargo xtask compare-pytorch dense`.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from compare_pytorch import time_fourtap
from safetensors.torch import load_file, save_file

# How far the two may differ in the 2-norm: some units in the last place of their type.
DTYPES = {"f32": (torch.float32, 1e-5), "f16": (torch.float16, 2e-3), "bf16": (torch.bfloat16, 1.6e-2)}


@dataclasses.dataclass
class Case:
    name: str
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    channels: int
    causal: bool = False

    def inputs(self, dtype):
        generator = torch.Generator().manual_seed(0)
        keys = (self.batch, self.key_heads, self.keys, self.channels)
        shapes = {"query": (self.batch, self.heads, self.queries, self.channels), "key": keys, "value": keys}
        return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


CASES = [
    Case("dense-s2048-d64", 1, 8, 8, 2048, 2048, 64),
    Case("dense-s512-d64", 1, 8, 8, 512, 512, 64),
    Case("dense-s1024-d64", 1, 8, 8, 1024, 1024, 64),
    Case("dense-s2048-d64-causal", 1, 8, 8, 2048, 2048, 64, causal=True),
    Case("dense-s2048-d128", 1, 8, 8, 2048, 2048, 128),
    Case("dense-decode", 1, 32, 8, 1, 8192, 128),
]


def attend(case, inputs):
    gqa = case.heads != case.key_heads
    with torch.no_grad():
        return F.scaled_dot_product_attention(**inputs, is_causal=case.causal, enable_gqa=gqa)


def time_pytorch(case, inputs, budget):
    """Milliseconds of each call, after one that does not count."""
    attend(case, inputs)
    samples, started = [], time.perf_counter()
    while len(samples) < 5 or time.perf_counter() - started < budget:
        begin = time.perf_counter()
        attend(case, inputs)
        samples.append((time.perf_counter() - begin) * 1e3)
    return samples


def compare_results(program, case, inputs, file, limit):
    """Refuses to go on unless both sides compute the same; the distance between them."""
    output = file.with_name("output.safetensors")
    command = [program, "run", file, "-o", output, "--device", "cpu", "--force"]
    subprocess.run(command, check=True, capture_output=True)
    ours = load_file(output)["out"].double()
    theirs = attend(case, inputs).double()
    error = ((ours - theirs).norm() / theirs.norm()).item()
    if not error <= limit:
        sys.exit(f"error: {case.name}: out differs from PyTorch's by {error:.1e} in the 2-norm, {limit:.0e} allowed")
    return error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/fourtap", help="the fourtap to run")
    parser.add_argument("--rounds", type=int, default=5, help="turns each side gets (default: 5)")
    parser.add_argument("--budget", type=float, default=0.5, help="seconds of PyTorch a turn (default: 0.5)")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this; repeatable")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES), help="only this; repeatable")
    parser.add_argument("--output", type=pathlib.Path, help="append one JSON record per line to this file")
    options = parser.parse_args()

    print(f"PyTorch {torch.__version__} on {torch.get_num_threads()} threads; medians in ms, timed alternately")
    print("ratio: PyTorch over fourtap; smallest and largest: of single turns\n")
    print(f"{'':24} {'':5} {'PyTorch':>9} {'fourtap':>9} {'ratio':>7} {'smallest':>9} {'largest':>8}")
    for case in CASES:
        for name, (dtype, limit) in DTYPES.items():
            if (options.case and case.name not in options.case) or (options.dtype and name not in options.dtype):
                continue
            compare_case(options, case, name, dtype, limit)


def compare_case(options, case, name, dtype, limit):
    inputs = case.inputs(dtype)
    pytorch, fourtap, ratios, loads = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "input.safetensors"
        save_file(inputs, file, metadata={"causal": "top-left"} if case.causal else None)
        error = compare_results(options.program, case, inputs, file, limit)
        for turn in range(options.rounds):
            print(f"\r{case.name} {name}: turn {turn + 1} of {options.rounds} ", end="", file=sys.stderr)
            loads.append(os.getloadavg()[0])
            theirs = time_pytorch(case, inputs, options.budget)
            record = time_fourtap(options.program, file, "forward", "--quick")
            ours = record["hot"]["samples_ms"]
            pytorch += theirs
            fourtap += ours
            ratios.append(statistics.median(theirs) / statistics.median(ours))
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    theirs, ours = statistics.median(pytorch), statistics.median(fourtap)
    print(
        f"{case.name:24} {name:5} {theirs:9.2f} {ours:9.2f} {theirs / ours:6.2f}x"
        f" {min(ratios):8.2f}x {max(ratios):7.2f}x",
        flush=True,
    )
    if options.output:
        result = {
            "comparison": "dense",
            "case": dataclasses.asdict(case),
            "dtype": name,
            "ratio": theirs / ours,
            "ratio_of_each_turn": ratios,
            "pytorch_median_ms": theirs,
            "fourtap_median_ms": ours,
            "pytorch_samples_ms": pytorch,
            "fourtap_samples_ms": fourtap,
            "distance": error,
            "load_average_before_each_turn": loads,
            "pytorch_version": torch.__version__,
            "pytorch_threads": torch.get_num_threads(),
            "device": record["device"],
            "python": platform.python_version(),
            "unix_time": int(time.time()),
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("a") as lines:
            lines.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
