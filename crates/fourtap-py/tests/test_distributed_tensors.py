"""Operators on DTensors, by several processes."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch.distributed.tensor.experimental", reason="PyTorch before 2.5 has no register_sharding")

pytestmark = pytest.mark.slow  # starts several processes, which import PyTorch


@pytest.mark.parametrize("processes", [2, 4])  # in a row, and 2 x 2
def test_sharded_tensors_give_what_whole_ones_give(processes: int) -> None:
    worker = pathlib.Path(__file__).with_name("shard_worker.py")
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    finished = subprocess.run(
        [sys.executable, *torchrun, str(worker)], capture_output=True, text=True, timeout=300, check=False
    )
    assert finished.returncode == 0, finished.stderr
