"""Times fourtap and PyTorch's grid_sample composition on the same tensors, alternately, on all cores of this machine.

PyTorch's side is what Deformable-DETR calls ms_deform_attn_core_pytorch: one grid_sample a level, then a weighted
sum. Both sides' results are compared before anything is timed. Usually run as `cargo xtask compare-pytorch`.
"""

import argparse
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

LEVELS = [(100, 167), (50, 84), (25, 42), (13, 21)]  # detr-encoder; its queries are the pixels
HEADS, CHANNELS, POINTS = 8, 32, 4
SIGMA = 4.0  # pixels, of the "local" distribution
DIRECTIONS = ("forward", "backward")
GRADIENTS = {"value": "grad_value", "sampling_locations": "grad_locations", "attention_weights": "grad_weights"}


def make_inputs(distribution, images, generator):
    pixels = sum(height * width for height, width in LEVELS)
    shape = (images, pixels, HEADS, len(LEVELS), POINTS)
    if distribution == "uniform":
        locations = torch.rand(*shape, 2, generator=generator)
    else:
        references = []
        for height, width in LEVELS:
            y = (torch.arange(height) + 0.5) / height
            x = (torch.arange(width) + 0.5) / width
            grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
            references.append(torch.stack([grid_x, grid_y], -1).reshape(-1, 2))
        sizes = torch.tensor([[width, height] for height, width in LEVELS], dtype=torch.float32)
        noise = torch.randn(*shape, 2, generator=generator) * SIGMA / sizes[:, None, :]
        locations = torch.cat(references)[None, :, None, None, None, :] + noise
    weights = torch.rand(*shape, generator=generator).flatten(3).softmax(-1).view(shape)
    return {
        "value": torch.rand(images, pixels, HEADS, CHANNELS, generator=generator) * 2 - 1,
        "spatial_shapes": torch.tensor(LEVELS),
        "sampling_locations": locations.contiguous(),
        "attention_weights": weights.contiguous(),
        "grad_out": torch.rand(images, pixels, HEADS * CHANNELS, generator=generator) * 2 - 1,
    }


def grid_sample_attention(value, locations, weights):
    images, _, heads, channels = value.shape
    queries = locations.shape[1]
    grids = 2 * locations - 1
    samples = []
    for level, (height, width) in enumerate(LEVELS):
        start = sum(h * w for h, w in LEVELS[:level])
        pixels = value[:, start : start + height * width].flatten(2).transpose(1, 2)
        image = pixels.reshape(images * heads, channels, height, width)
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        samples.append(F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    weights = weights.transpose(1, 2).reshape(images * heads, 1, queries, -1)
    out = (torch.stack(samples, dim=-2).flatten(-2) * weights).sum(-1)
    return out.view(images, heads * channels, queries).transpose(1, 2).contiguous()


def time_pytorch(inputs, direction, repeats):
    """Seconds of each call, and the results of the last."""
    arguments = [inputs[name].clone() for name in GRADIENTS]
    seconds = []
    for _ in range(repeats):
        if direction == "forward":
            with torch.no_grad():
                begin = time.perf_counter()
                results = {"out": grid_sample_attention(*arguments)}
                seconds.append(time.perf_counter() - begin)
        else:
            arguments = [argument.detach().requires_grad_() for argument in arguments]
            out = grid_sample_attention(*arguments)
            begin = time.perf_counter()
            out.backward(inputs["grad_out"])
            seconds.append(time.perf_counter() - begin)
            results = {name: argument.grad for name, argument in zip(GRADIENTS.values(), arguments, strict=True)}
    return seconds, results


def time_fourtap(program, file, direction, *more):
    """The record of `fourtap bench` on the tensors in `file`; it verifies against its oracle first."""
    command = [program, "bench", file, "--device", "cpu", "--direction", direction, "--json", "-", *more]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    records = [json.loads(line) for line in printed.splitlines()]
    # Ceilings of the processor come first.
    (record,) = [record for record in records if record["kind"] == "bench"]
    return record


def compare_results(program, file, folder, inputs):
    """Refuses to go on unless both sides compute the same."""
    output = folder / "output.safetensors"
    command = [program, "run", file, "-o", output, "--device", "cpu", "--grad", "--force"]
    subprocess.run(command, check=True, capture_output=True)
    ours = load_file(output)
    theirs = time_pytorch(inputs, "forward", 1)[1] | time_pytorch(inputs, "backward", 1)[1]
    for name, expected in theirs.items():
        # Both round coordinates to f32, in different ways, and a point within that of a pixel's centre may fall
        # in either cell: its location gradient differs then, which a norm forgives and a wrong result does not.
        error = ((ours[name] - expected).norm() / expected.norm()).item()
        limit = 1e-2 if name == "grad_locations" else 1e-4
        if not error <= limit:
            sys.exit(f"error: {name} differs from PyTorch's by {error:.1e} in the 2-norm, {limit:.0e} allowed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/fourtap", help="the fourtap to run")
    parser.add_argument("--rounds", type=int, default=5, help="turns each side gets (default: 5)")
    parser.add_argument("--repeats", type=int, default=3, help="PyTorch calls a turn (default: 3)")
    parser.add_argument("--images", type=int, default=1, help="images (default: 1)")
    parser.add_argument("--output", type=pathlib.Path, help="append one JSON record per line to this file")
    options = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for distribution in ("local", "uniform"):
            inputs = make_inputs(distribution, options.images, generator)
            file = folder / "input.safetensors"
            save_file(inputs, file)
            compare_results(options.program, file, folder, inputs)
            halves = {}
            for dtype in (torch.float16, torch.bfloat16):
                halves[dtype] = folder / f"{dtype}.safetensors".replace("torch.", "")
                half = inputs | {name: inputs[name].to(dtype) for name in ("value", "grad_out")}
                save_file(half, halves[dtype])
            for direction in DIRECTIONS:
                pytorch, fourtap = [], {"f32": [], "f16": [], "bf16": []}
                for turn in range(options.rounds):
                    print(
                        f"\r{distribution} {direction}: turn {turn + 1} of {options.rounds} ", end="", file=sys.stderr
                    )
                    pytorch += time_pytorch(inputs, direction, options.repeats)[0]
                    for dtype, one in zip(fourtap, (file, *halves.values()), strict=True):
                        record = time_fourtap(options.program, one, direction)
                        fourtap[dtype] += [sample / 1e3 for sample in record["hot"]["samples_ms"]]
                device = record["device"]
                rows.append((distribution, direction, pytorch, fourtap, device))
                print("\r" + " " * 50 + "\r", end="", file=sys.stderr)

    print(f"detr-encoder, N = {options.images}, PyTorch {torch.__version__} on {torch.get_num_threads()} threads")
    print("medians in ms; PyTorch in f32; the ratio is PyTorch over fourtap, both f32\n")
    print(f"{'':8} {'':9} {'PyTorch':>9} {'fourtap':>9} {'ratio':>7} {'f16':>9} {'bf16':>9}")
    for distribution, direction, pytorch, fourtap, device in rows:
        theirs = statistics.median(pytorch) * 1e3
        ours = {dtype: statistics.median(seconds) * 1e3 for dtype, seconds in fourtap.items()}
        ratio = theirs / ours["f32"]
        print(
            f"{distribution:8} {direction:9} {theirs:9.1f} {ours['f32']:9.1f} {ratio:6.1f}x"
            f" {ours['f16']:9.1f} {ours['bf16']:9.1f}"
        )
        if options.output:
            record = {
                "comparison": "detr-encoder",
                "images": options.images,
                "distribution": distribution,
                "direction": direction,
                "ratio_f32": ratio,
                "pytorch_median_ms": theirs,
                "fourtap_median_ms": ours,
                "pytorch_samples_ms": [second * 1e3 for second in pytorch],
                "fourtap_samples_ms": {dtype: [s * 1e3 for s in seconds] for dtype, seconds in fourtap.items()},
                "pytorch_version": torch.__version__,
                "pytorch_threads": torch.get_num_threads(),
                "device": device,
                "python": platform.python_version(),
                "unix_time": int(time.time()),
            }
            options.output.parent.mkdir(parents=True, exist_ok=True)
            with options.output.open("a") as lines:
                lines.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
