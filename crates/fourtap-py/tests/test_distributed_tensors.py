"""Sharded tensors, modules and sequences, by several processes."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch.distributed.tensor.experimental", reason="PyTorch before 2.5 has no register_sharding")

pytestmark = pytest.mark.slow  # starts several processes, which import PyTorch


HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "split_attention.py"


def run(script: pathlib.Path, processes: int, *arguments: str) -> None:
    """Runs a script in so many processes; each compares what it finds."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    finished = subprocess.run(
        [sys.executable, *torchrun, str(script), *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("processes", [2, 4])  # in a row, and 2 x 2
def test_sharded_tensors_give_what_whole_ones_give(processes: int) -> None:
    run(HERE / "shard_worker.py", processes)


@pytest.mark.parametrize("processes", [2, 4])
def test_placements_do_not_change_the_answer(processes: int) -> None:
    run(HERE / "placements_worker.py", processes, "40")


@pytest.mark.parametrize(
    "imports",
    [
        "import torch.distributed.tensor, fourtap.nn",
        "import fourtap.nn, torch.distributed.tensor",
        "from fourtap import ms_deform_attn; import torch.distributed.tensor.parallel",
        "import torch.distributed.tensor; from fourtap import scaled_dot_product_attention",
        "import fourtap.distributed",
        # Which imports torch.distributed.tensor in the middle of itself.
        "import fourtap.nn, torch._dynamo, torch.distributed.fsdp",
    ],
)
def test_whoever_comes_first_pytorch_knows_the_operators(imports: str) -> None:
    asked = (
        "import torch; from torch.distributed.tensor import DTensor; "
        "known = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs; "
        "names = [name for way in ('msda', 'msda_projected', 'dense') for name in (way, f'{way}_backward')]; "
        "assert all(getattr(torch.ops.fourtap, name).default in known for name in names)"
    )
    subprocess.run([sys.executable, "-c", f"{imports}; import fourtap.attention; {asked}"], check=True, timeout=300)


def test_modules_sharded_by_heads_give_what_whole_ones_give() -> None:
    run(HERE / "heads_worker.py", 4)


@pytest.mark.parametrize("processes", [2, 4])
def test_ring_attention_gives_what_one_process_gives(processes: int) -> None:
    run(HERE / "ring_worker.py", processes)


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are not here")
@pytest.mark.parametrize("split", ["heads", "sequence"])
def test_the_example_finds_no_more_than_rounding(split: str) -> None:
    run(EXAMPLE, 2, split, "--device", "cpu")
