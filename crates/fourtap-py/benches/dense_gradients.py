"""Times gradients of `fourtap.scaled_dot_product_attention` and of PyTorch's with each backend forced, all in one run.

Backward alone is the registered operator `torch.ops.fourtap.dense_backward` for us, and `torch.autograd.grad` on the
graph of a forward pass that was run before for PyTorch; for two shapes of models forward and backward are one step. On
CUDA every contender is captured into a graph of several calls and the graphs are replayed in turns, each round in
another order. A backend that cannot be captured is timed by events around as many calls instead, and named; records say
`graph`. The L2 cache is as the call before has left it, for all alike.

All gradients are compared with those in f64 before anything is timed, row by row; a wrong or unavailable contender is
not timed. TFLOP/s count 2.5 times the two products of forward, 3.5 times with forward, half of it where a causal mask
hides half. Without a GPU the same is measured on CPU tensors, without graphs and with smaller shapes; each turn then
begins with a call that is not timed, as OpenMP's idle threads keep a processor busy for milliseconds after PyTorch's.

Masks are those of models: groups that do not see each other beside keys that all see (denoising in DINO's decoder), and
a bias for each head that is trained (Swin). PyTorch gets them in three forms: as they are; as numbers in rows that are
aligned as its EFFICIENT backend wants them ("padded"); and such rows expanded to all sequences ("expanded"). The table
shows the best form of each backend.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from dense_attention import (
    BACKENDS,
    BACKENDS_OF_THE_CPU,
    FOURTAP,
    GOOD_FLOP_PER_SECOND,
    MOST_CALLS,
    REPLAY_SECONDS,
)
from gradient_problems import ROWS, Problem, Row, gradients_in_f64, problem_of, worst_row
from measuring import (
    Records,
    Samples,
    device_named,
    device_seconds,
    no_garbage_collection,
    print_table,
    show_progress,
)
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import sdpa_kernel

import fourtap
from fourtap import scaled_dot_product_attention as attend  # also registers the operators

# Of the worst row of a gradient, in the 2-norm.
ALLOWED_ERROR = {"f16": 1e-2, "bf16": 8e-2, "f32": 4e-5}
# Pairs of queries and keys beyond which PyTorch's MATH backend, which stores them several times, is left out.
MOST_PAIRS_OF_MATH = 1 << 29
ALIGNMENT = 16  # elements, which is more than any backend asks for
FORMS = ("", " padded", " expanded")

Call = Callable[[], Sequence[Tensor]]


def ours(problem: Problem, both: bool) -> Call:
    """What is timed for fourtap."""
    query, key, value, mask = problem.operands
    if both:
        leaves = problem.leaves()

        def step() -> Sequence[Tensor]:
            *given, last = leaves if problem.bias is not None else [*leaves, mask]
            out = attend(*given, last, is_causal=problem.causal)
            return torch.autograd.grad(out, leaves, problem.grad_out)

        return step
    settings = (None, None, 0 if problem.causal else None, False, False)
    out, lse = torch.ops.fourtap.dense(query, key, value, *settings, True, mask)
    wanted = [True, True, True, problem.bias is not None]

    def backward() -> Sequence[Tensor]:
        found = torch.ops.fourtap.dense_backward(problem.grad_out, query, key, value, *settings, mask, out, lse, wanted)
        return [gradient for gradient, want in zip(found, wanted, strict=True) if want]

    return backward


def aligned(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers, in memory whose rows are a multiple of the alignment apart."""
    numbers = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf) if mask.dtype is torch.bool else mask
    return functional.pad(numbers, (0, -mask.shape[-1] % ALIGNMENT))


def theirs(problem: Problem, both: bool, name: str) -> Call:
    """What is timed for the backend and form of this name."""
    backend, _, form = name.partition(" ")
    query, mask = problem.operands[0], problem.operands[3]
    keys = problem.operands[1].shape[2]
    leaves = problem.leaves()
    if mask is not None and form:
        rows = aligned(mask, query.dtype)
        if problem.bias is not None:
            leaves[3] = rows.requires_grad_()
        mask = rows
    whole = (*query.shape[:3], keys)

    def forward() -> Tensor:
        given = mask if problem.bias is None else leaves[3]
        if given is not None and form:
            given = given[..., :keys]
        if given is not None and form == "expanded":
            given = given.expand(whole)
        with sdpa_kernel(BACKENDS[backend]):
            return functional.scaled_dot_product_attention(*leaves[:3], given, is_causal=problem.causal)

    def gradients(out: Tensor, keep: bool) -> Sequence[Tensor]:
        *others, last = torch.autograd.grad(out, leaves, problem.grad_out, retain_graph=keep)
        # What was padded has zeros there.
        return [*others, last[..., :keys] if problem.bias is not None else last]

    if both:
        return lambda: gradients(forward(), keep=False)
    out = forward()
    return lambda: gradients(out, keep=True)


@dataclass
class Contender:
    """One way to compute a row, ready to be timed."""

    name: str
    run: Callable[[], object]
    error: float
    graph: bool
    samples: Samples = field(default_factory=Samples)


def captured(make: Callable[[], Call], calls: int) -> tuple[Callable[[], object], Sequence[Tensor]]:
    """A graph of so many calls, and what they compute."""
    # Autograd runs backward on the stream of forward, so all must be on the one that is captured.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call = make()
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            results = call()
    torch.cuda.synchronize()
    for result in results:
        result.fill_(torch.nan)
    graph.replay()

    # It holds what the graph reads, too.
    def replay(_: Call = call) -> None:
        graph.replay()

    return replay, results


def ready(make: Callable[[], Call], name: str, calls: int, device: torch.device) -> tuple[Contender, Sequence[Tensor]]:
    """The contender, not verified yet, and what it computes."""
    if device.type == "cuda":
        try:
            run, results = captured(make, calls)
            return Contender(name, run, torch.nan, graph=True), results
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as failure:
            if name == FOURTAP:
                raise
            # A backend that does not serve the call fails here again.
            make()()
            print(f"no graph: {name}: {str(failure).splitlines()[0]}", file=sys.stderr)
    call = make()
    torch.full_like(call()[0], torch.nan)  # so that memory which is used again holds nothing right

    def run_all() -> None:
        for _ in range(calls):
            call()

    return Contender(name, run_all, torch.nan, graph=False), call()


def names(row: Row, device: torch.device) -> Iterator[str]:
    """The contenders, ours first."""
    yield FOURTAP
    shape = row.shape
    for backend in BACKENDS if device.type == "cuda" else BACKENDS_OF_THE_CPU:
        if backend != "MATH" or shape.batch * shape.heads * shape.positions * shape.keys <= MOST_PAIRS_OF_MATH:
            yield from (f"{backend}{form}" for form in (FORMS if shape.mask else FORMS[:1]))


def contenders(row: Row, device: torch.device, calls: int) -> list[Contender]:
    """Those that compute the right thing. If fourtap does not, the run ends."""
    problem = problem_of(row.shape, device)
    expected = gradients_in_f64(problem)
    found = []
    for name in names(row, device):
        show_progress(f"verifying: {row.name}, {name}")

        def make(name: str = name) -> Call:
            return ours(problem, row.both) if name == FOURTAP else theirs(problem, row.both, name)

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what backends say of why they are not there
                contender, results = ready(make, name, calls, device)
            contender.error = worst_row(results, expected)
        except (RuntimeError, fourtap.Error) as failure:  # out of memory, too
            reason = str(failure).splitlines()[0]
            if device.type == "cuda":
                torch.cuda.empty_cache()  # for those that need less
        else:
            if contender.error <= ALLOWED_ERROR[row.shape.dtype]:
                found.append(contender)
                continue
            reason = (
                f"a row is off by {contender.error:.1e} in the 2-norm, {ALLOWED_ERROR[row.shape.dtype]:.1e} allowed"
            )
        if name == FOURTAP:
            sys.exit(f"error: {row.name}, {name}: {reason}")
        print(f"left out: {row.name}, {name}: {reason}", file=sys.stderr)
    return found


def measure(row: Row, device: torch.device, rounds: int, calls: int) -> list[Contender]:
    """Times all contenders in turns, each round in another order, so that none always follows the same one."""
    found = contenders(row, device, calls)
    order = random.Random(0)
    with no_garbage_collection():
        for contender in found:
            contender.run()
        for turn in range(rounds):
            show_progress(f"{row.name}: round {turn + 1} of {rounds}")
            for contender in order.sample(found, len(found)):
                if device.type == "cpu":
                    contender.run()  # until idle threads of the one before have stopped spinning
                contender.samples.seconds.append(device_seconds(contender.run, device) / calls)
    return found


def report(row: Row, found: list[Contender], calls: int, records: Records) -> tuple[list[str], float | None]:
    """Writes the records; returns a row of the table and fourtap's speedup over PyTorch's best."""
    shape = row.shape
    best: dict[str, float] = {}
    for contender in found:
        backend, _, form = contender.name.partition(" ")
        median = contender.samples.median
        best[backend] = min(median, best.get(backend, median))
        records.write(
            what=row.what,
            implementation=backend,
            form=form or None,
            batch=shape.batch,
            heads=shape.heads,
            positions=shape.positions,
            channels=shape.channels,
            dtype=shape.dtype,
            causal=shape.causal,
            keys=shape.keys,
            mask=shape.mask,
            calls=calls,
            graph=contender.graph,
            **contender.samples.fields(),
            tflops=row.flop / median / 1e12,
            verified=contender.error,
        )
    times = [f"{best[name] * 1e6:.1f}" if name in best else "" for name in (FOURTAP, *BACKENDS)]
    mine = best.pop(FOURTAP)
    fastest = min(best.values(), default=None)
    speeds = [f"{row.flop / seconds / 1e12:.3g}" if seconds else "-" for seconds in (mine, fastest)]
    compared = (best.get("FLASH"), best.get("CUDNN"), fastest)
    ratios = [f"{seconds / mine:.2f}x" if seconds else "-" for seconds in compared]
    return [row.name, *times, *speeds, *ratios, f"{found[0].error:.0e}"], fastest and fastest / mine


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--rounds", type=int, help="turns each contender gets (default: 30 on CUDA, 10 on the CPU)")
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="rows whose name contains one of these, like D128")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="append JSON records to it, one per line")
    options = parser.parse_args()

    device = device_named(options.device)
    # f32 is f32 for all: PyTorch's products have TF32 off.
    torch.backends.cuda.matmul.allow_tf32 = False
    on_cuda = device.type == "cuda"
    rounds = 3 if options.quick else options.rounds or (30 if on_cuda else 10)
    chosen = [row for row in ROWS[device.type] if any(text in row.name for text in options.rows or [""])]
    if rounds < 1 or not chosen:
        parser.error("--rounds: expected at least 1" if rounds < 1 else f"--rows: none is named {options.rows}")

    records = Records("dense_gradients", device, options.json)
    heading = ["row", *(f"{name} us" for name in (FOURTAP, *BACKENDS)), f"{FOURTAP} TFLOP/s", "best TFLOP/s"]
    table = [[*heading, "x FLASH", "x CUDNN", "x best", "error"]]
    ratios = []
    for row in chosen:
        calls = max(1, min(MOST_CALLS, round(REPLAY_SECONDS * GOOD_FLOP_PER_SECOND[row.shape.dtype] / row.flop)))
        calls = calls if on_cuda else 1
        line, ratio = report(row, measure(row, device, rounds, calls), calls, records)
        table.append(line)
        ratios.append(ratio)
        if on_cuda:
            torch.cuda.empty_cache()  # graphs have memory of their own
    show_progress("")

    print(f"gradients of scaled_dot_product_attention on {records.heading}")
    print(f"medians of {rounds} rounds{', in CUDA graphs' if on_cuda else ''}; x: speedup of fourtap\n")
    print_table(table)
    reached = sum(ratio is not None and ratio >= 1 for ratio in ratios)
    print(f"\nat least as fast as PyTorch's best at {reached} of {len(ratios)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
