"""Compares fourtap with every other implementation of deformable attention that is installed, in one process.

Looked for: the extension `MultiScaleDeformableAttention` of Deformable DETR, mmcv, DCNv4, msda-triton, the kernel that
transformers fetches from the Hugging Face hub, and PyTorch's grid_sample composition, eager and compiled. Each is
checked first: its output and its gradients against the operator in f64 on the very numbers it was given. A result
beyond the tolerance is reported as inaccurate or wrong, beside its time. Then all are timed in turns: single calls,
and for short calls also CUDA graphs, where the cost of launching does not count. `fourtap report` draws the records.
"""

from __future__ import annotations

import argparse
import datetime
import math
import pathlib
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from implementations import NAMES, TAKES_LOGITS, Implementation, Prepared, Problem, installed, logit_gradient
from measuring import (
    Levels,
    Records,
    device_named,
    device_seconds,
    device_words,
    grid_sample_attention,
    level_tensors,
    no_garbage_collection,
    print_table,
    relative_error,
    show_progress,
)
from points import CROWDED, SPREAD, sampling_locations
from torch import Tensor

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Relative, in the 2-norm: four times the unit roundoff of a 16-bit type. In f32 more, because of points on the border
# of two pixels: rounding puts them on one side or the other, and there the gradient by location jumps.
TOLERANCE = {"f16": 4 * 2.0**-11, "bf16": 4 * 2.0**-8, "f32": 1e-4}
LOCATION_TOLERANCE = 1e-2
WRONG = 0.1  # from here on, or where it is not a number, a result is not even inaccurate
DIRECTIONS = ("forward", "backward")
# Points anywhere, and a gradient of the output that is NaN: what RT-DETR in f16 trains with while it overflows.
NAN_GRADIENT = "nan-gradient"
GRAPH_SECONDS = 1e-3  # calls shorter than this are timed in graphs too
GRAPH_CALLS = 20
DISTRIBUTIONS = (*SPREAD, *CROWDED, NAN_GRADIENT)


@dataclass(frozen=True)
class Workload:
    """The sizes of a model's call; the names are those of `fourtap bench`."""

    images: int
    queries: int
    heads: int
    channels: int
    levels: Levels
    points: int

    def problem(self, distribution: str, dtype: torch.dtype, device: torch.device) -> Problem:
        """Random operands, the coordinates in f32."""
        torch.manual_seed(0)
        shapes, starts = level_tensors(self.levels, device)
        pixels = sum(height * width for height, width in self.levels)
        size = (self.images, self.queries, self.heads, len(self.levels), self.points)
        value = torch.randn(self.images, pixels, self.heads, self.channels, device=device).to(dtype)
        placed = "uniform" if distribution == NAN_GRADIENT else distribution
        locations = sampling_locations(placed, size, shapes)
        weights = torch.randn(*size, device=device).flatten(3).softmax(-1).view(size)
        return Problem(value, self.levels, shapes, starts, locations, weights)


DETR_LEVELS = ((100, 167), (50, 84), (25, 42), (13, 21))
WORKLOADS = {
    "detr-encoder": Workload(4, 22223, 8, 32, DETR_LEVELS, 4),
    "dino-decoder": Workload(4, 900, 8, 32, DETR_LEVELS, 4),
    "rtdetr-decoder": Workload(1, 300, 8, 32, ((80, 80), (40, 40), (20, 20)), 4),
    "bev-d64": Workload(6, 10000, 8, 64, ((116, 200), (58, 100), (29, 50), (15, 25)), 8),
    "seed-full": Workload(48, 15422, 1, 32, ((92, 160), (46, 80), (23, 40), (12, 20)), 8),
    "tiny": Workload(2, 50, 2, 16, ((12, 10), (6, 5)), 4),
}


def in_type(problem: Problem, dtype: torch.dtype) -> Problem:
    """All operands in one type, ready to be differentiated; f64 is the reference."""
    tensors = (tensor.detach().to(dtype).requires_grad_() for tensor in problem.differentiated)
    value, locations, weights = tensors
    return Problem(value, problem.levels, problem.shapes, problem.starts, locations, weights)


def separate(problem: Problem) -> Problem:
    """The operands in the types they have, ready to be differentiated."""
    value, locations, weights = (tensor.detach().clone().requires_grad_() for tensor in problem.differentiated)
    return Problem(value, problem.levels, problem.shapes, problem.starts, locations, weights)


@dataclass
class Reference:
    """Output and gradients in f64."""

    output: Tensor
    gradients: tuple[Tensor, Tensor, Tensor]
    logits: Tensor  # the gradient by the weights' logits

    @classmethod
    def of(cls, problem: Problem, grad_out: Tensor) -> Reference:
        """Computes both."""
        exact = in_type(problem, torch.float64)
        output = grid_sample_attention(exact.value, exact.levels, exact.locations, exact.weights)
        value, locations, weights = torch.autograd.grad(output, exact.differentiated, grad_out.double())
        logits = logit_gradient(exact.weights.detach(), weights)
        return cls(output.detach(), (value, locations, weights), logits)


@dataclass
class Contender:
    """An implementation on one problem."""

    name: str
    prepared: Prepared
    grad_out: Tensor
    errors: dict[str, dict[str, float]] = field(default_factory=dict)  # by direction and tensor
    verdicts: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {direction: [] for direction in DIRECTIONS})
    graph_seconds: dict[str, float] = field(default_factory=dict)

    def worst_error(self, direction: str) -> float:
        """Of all tensors; infinite where a result is not a number."""
        return max(size(error) for error in self.errors[direction].values())

    def forward(self) -> Tensor:
        """Without gradients."""
        with torch.no_grad():
            return self.prepared.forward()

    def gradients_of(self, output: Tensor) -> tuple[Tensor, ...]:
        """What backward alone computes; may be called again."""
        return torch.autograd.grad(output, self.prepared.inputs, self.grad_out.to(output.dtype), retain_graph=True)

    def check(self, reference: Reference, dtype: str) -> None:
        """Compares output and gradients with the reference."""
        output = self.prepared.forward()
        value, locations, weights = self.prepared.gradients(self.gradients_of(output))
        expected_weights = reference.logits if self.name == TAKES_LOGITS else reference.gradients[2]
        error = relative_error if self.grad_out.isfinite().all() else misplaced
        found = {
            "forward": {"output": relative_error(output, reference.output)},
            "backward": {
                "value": error(value, reference.gradients[0]),
                "locations": error(locations, reference.gradients[1]),
                "weights": error(weights, expected_weights),
            },
        }
        for direction, errors in found.items():
            self.errors[direction] = errors
            limit = TOLERANCE[dtype]
            is_ok = all(
                size(error) <= (max(limit, LOCATION_TOLERANCE) if name == "locations" else limit)
                for name, error in errors.items()
            )
            self.verdicts[direction] = (
                "ok" if is_ok else "wrong" if self.worst_error(direction) >= WRONG else "inaccurate"
            )

    def time_once(self, device: torch.device) -> None:
        """One turn."""
        self.seconds["forward"].append(device_seconds(self.forward, device))
        output = self.prepared.forward()
        self.seconds["backward"].append(device_seconds(lambda: self.gradients_of(output), device))

    def time_graphs(self) -> None:
        """Of many calls each, forward and backward."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Backward runs on the stream that forward ran on, which must be the captured one.
            output = self.prepared.forward()
            calls: dict[str, Callable[[], object]] = {
                "forward": self.forward,
                "backward": lambda: self.gradients_of(output),
            }
            for direction, call in calls.items():
                if statistics.median(self.seconds[direction]) > GRAPH_SECONDS:
                    continue
                call()
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    for _ in range(GRAPH_CALLS):
                        call()
                graph.replay()
                replays = [device_seconds(graph.replay, output.device) / GRAPH_CALLS for _ in range(9)]
                self.graph_seconds[direction] = statistics.median(replays)


def misplaced(found: Tensor, expected: Tensor) -> float:
    """The share of elements that are finite where they should not be, or the other way round."""
    return (found.isfinite() != expected.isfinite()).double().mean().item()


def size(error: float) -> float:
    """An error to compare with: what is not a number is beyond every tolerance."""
    return error if math.isfinite(error) else math.inf


def finite(error: float) -> float | None:
    """As JSON can say it."""
    return error if math.isfinite(error) else None


def contenders(
    problem: Problem, implementations: list[Implementation], dtype: str, factor: float = 1.0
) -> tuple[list[Contender], list[tuple[str, str]]]:
    """Every implementation that takes this problem, checked, and why the others do not.

    The gradient of the output is multiplied by ``factor``.
    """
    given = {True: problem, False: in_type(problem, DTYPES[dtype])}
    grad_out = factor * torch.randn(
        problem.value.shape[0], problem.locations.shape[1], problem.value[0, 0].numel(), device=problem.value.device
    ).to(DTYPES[dtype])
    references: dict[bool, Reference] = {}
    taken, refused = [], []
    for implementation in implementations:
        if dtype == "f32" and implementation.name == "fourtap-16":
            continue
        in_f32 = implementation.coordinates_in_f32
        try:
            contender = Contender(implementation.name, implementation.prepare(separate(given[in_f32])), grad_out)
            contender.forward()
            if in_f32 not in references:
                references[in_f32] = Reference.of(given[in_f32], grad_out)
            contender.check(references[in_f32], dtype)
            taken.append(contender)
        except Exception as error:  # a rival that fails is reported and the others go on
            refused.append((implementation.name, f"{type(error).__name__}: {str(error).splitlines()[0]}"))
    return taken, refused


def measure(problem: Problem, runners: list[Contender], rounds: int) -> None:
    """Times all in turns."""
    device = problem.value.device
    with no_garbage_collection():
        for _ in range(2):
            for runner in runners:
                runner.time_once(device)
        for runner in runners:
            runner.seconds = {direction: [] for direction in DIRECTIONS}
        for turn in range(rounds):
            for runner in runners if turn % 2 == 0 else reversed(runners):
                runner.time_once(device)
        if device.type != "cuda":
            return
        for runner in runners:
            try:
                runner.time_graphs()
            except Exception as error:  # an implementation that cannot be captured has no graph time
                print(f"{runner.name}: no graph: {str(error).splitlines()[0]}", file=sys.stderr)


def report(records: Records, case: dict[str, str], runners: list[Contender], refused: list[tuple[str, str]]) -> None:
    """Prints a table and writes the records of one problem."""
    fastest = {
        direction: min(
            (statistics.median(runner.seconds[direction]) for runner in runners if runner.name.startswith("fourtap")),
            default=math.nan,
        )
        for direction in DIRECTIONS
    }
    heading = [
        "",
        "forward ms",
        "times fourtap",
        "graph us",
        "error",
        "backward ms",
        "times fourtap",
        "graph us",
        "error",
        "",
    ]
    rows = [heading]
    for runner in sorted(runners, key=lambda runner: statistics.median(runner.seconds["forward"])):
        row = [runner.name]
        for direction in DIRECTIONS:
            seconds = statistics.median(runner.seconds[direction])
            graph = runner.graph_seconds.get(direction)
            row += [
                f"{seconds * 1e3:.4f}",
                f"{seconds / fastest[direction]:.2f}",
                f"{graph * 1e6:.1f}" if graph else "-",
                f"{runner.worst_error(direction):.0e}",
            ]
            records.write(
                record="peers",
                **case,
                implementation=runner.name,
                direction=direction,
                milliseconds=seconds * 1e3,
                turns_ms=[1e3 * turn for turn in runner.seconds[direction]],
                graph_microseconds=graph * 1e6 if graph else None,
                error=finite(runner.worst_error(direction)),
                errors={name: finite(error) for name, error in runner.errors[direction].items()},
                tolerance=TOLERANCE[case["dtype"]],
                verdict=runner.verdicts[direction],
            )
        verdicts = [
            f"{direction} {runner.verdicts[direction]}"
            for direction in DIRECTIONS
            if runner.verdicts[direction] != "ok"
        ]
        rows.append([*row, ", ".join(verdicts)])
    print(f"\n{case['workload']}, {case['distribution']}, {case['dtype']}")
    print_table(rows)
    for name, why in refused:
        print(f"{name}: {why}")
        for direction in DIRECTIONS:
            records.write(
                record="peers", **case, implementation=name, direction=direction, verdict="unsupported", note=why
            )


def call_microseconds(runner: Contender) -> float:
    """Forward and backward: in graphs, where both were, else by single calls."""
    if len(runner.graph_seconds) == len(DIRECTIONS):
        return 1e6 * sum(runner.graph_seconds.values())
    return 1e6 * sum(statistics.median(runner.seconds[direction]) for direction in DIRECTIONS)


def points_table(timed: dict[tuple[str, str, str], dict[str, float]], ours: str = "fourtap") -> list[list[str]]:
    """Microseconds by where points lie, from those of each implementation by workload, dtype and distribution."""
    names = [name for name in NAMES if any(name in spent for spent in timed.values())]
    rivals = [name for name in names if not name.startswith(ours)]
    rows = [["workload", "dtype", "points", f"{ours} us", "of anywhere", *(f"{name} / {ours}" for name in rivals)]]
    for (workload, dtype, points), spent in timed.items():
        if ours not in spent:
            continue
        anywhere = timed.get((workload, dtype, "uniform"), {}).get(ours)
        grown = f"{spent[ours] / anywhere:.2f}" if anywhere else ""
        ratios = [f"{spent[name] / spent[ours]:.2f}" if name in spent else "-" for name in rivals]
        rows.append([workload, dtype, points, f"{spent[ours]:.1f}", grown, *ratios])
    return rows


def arguments() -> argparse.Namespace:
    """What the user asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=None, metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", default="f32,f16,bf16", help="comma-separated")
    parser.add_argument(
        "--distribution",
        "--points",
        default="local",
        metavar="NAMES",
        help=f"where points lie, comma-separated: {', '.join(DISTRIBUTIONS)}; all for all of them",
    )
    parser.add_argument("--images", type=int, help="instead of the workloads' own numbers")
    parser.add_argument("--only", default=",".join(NAMES), help="implementations, comma-separated")
    parser.add_argument("--rounds", type=int, default=9, help="turns of every implementation")
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE", help="append one JSON record per line to this file"
    )
    given = parser.parse_args()
    if given.distribution == "all":
        given.distribution = ",".join(DISTRIBUTIONS)
    given.workloads = given.workloads or ["detr-encoder", "dino-decoder", "rtdetr-decoder", "bev-d64", "seed-full"]
    for option, values, known in (
        ("WORKLOAD", given.workloads, WORKLOADS),
        ("--dtype", given.dtype.split(","), DTYPES),
        ("--distribution", given.distribution.split(","), DISTRIBUTIONS),
        ("--only", given.only.split(","), NAMES),
    ):
        for value in values:
            if value not in known:
                parser.error(f"{option}: expected one of {', '.join(known)}, found {value}")
    for option, number in (("--rounds", given.rounds), ("--images", given.images)):
        if number is not None and number < 1:
            parser.error(f"{option}: expected at least 1, found {number}")
    return given


def main() -> None:
    """Compares."""
    given = arguments()
    device = device_named(given.device)
    records = Records("peers", device, given.json)
    print(records.heading)
    implementations: list[Implementation] = []
    for found in installed(given.only.split(",")):
        if isinstance(found, Implementation):
            implementations.append(found)
        else:
            print(f"{found[0]}: not here: {found[1]}")
    timed: dict[tuple[str, str, str], dict[str, float]] = {}
    for name in given.workloads:
        workload = WORKLOADS[name]
        if given.images not in (None, workload.images):
            workload, name = replace(workload, images=given.images), f"{name}, images {given.images}"
        for dtype in given.dtype.split(","):
            for distribution in given.distribution.split(","):
                show_progress(f"{name} {distribution} {dtype}")
                problem = workload.problem(distribution, DTYPES[dtype], device)
                factor = math.nan if distribution == NAN_GRADIENT else 1.0
                runners, refused = contenders(problem, implementations, dtype, factor)
                measure(problem, runners, given.rounds)
                show_progress("")
                case = {
                    "machine": device_words(device),
                    "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
                    "workload": name,
                    "distribution": distribution,
                    "dtype": dtype,
                }
                report(records, case, runners, refused)
                timed[name, dtype, distribution] = {runner.name: call_microseconds(runner) for runner in runners}
    if len(given.distribution.split(",")) > 1:
        print("\nforward and backward by where points lie, in CUDA graphs where calls are short:")
        print_table(points_table(timed))


if __name__ == "__main__":
    main()
