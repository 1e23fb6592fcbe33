"""The training example with several processes of torchrun, against one process."""

from __future__ import annotations

import importlib
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch

HERE = pathlib.Path(__file__).parent
if not (HERE.parents[2] / "examples" / "train_encoder.py").exists():
    pytest.skip("the examples are not here", allow_module_level=True)
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

pytestmark = pytest.mark.slow  # each test starts several processes, which import PyTorch


def run(folder: pathlib.Path, processes: int, *arguments: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """Trains with so many processes; one is started without torchrun."""
    torchrun = [
        *("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"),
        f"--max-restarts={restarts}",
    ]
    command = [sys.executable, *(torchrun if processes > 1 else []), str(HERE / "train_worker.py"), str(folder)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300, check=False)


def result(folder: pathlib.Path) -> dict[str, Any]:
    """What the first process wrote."""
    found: dict[str, Any] = torch.load(folder / "result.pt")
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The training of one process."""
    folder = tmp_path_factory.mktemp("alone")
    finished = run(folder, 1, "ddp")
    assert finished.returncode == 0, finished.stderr
    return result(folder)


FULLY_SHARD = hasattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard")
WITH_FSDP = pytest.param(2, "fsdp", marks=pytest.mark.skipif(not FULLY_SHARD, reason="PyTorch before 2.6"))


@pytest.mark.parametrize(("processes", "strategy"), [(2, "ddp"), (4, "ddp"), WITH_FSDP])
def test_several_processes_train_like_one(
    processes: int, strategy: str, alone: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    finished = run(tmp_path, processes, strategy)
    assert finished.returncode == 0, finished.stderr
    found = result(tmp_path)
    assert found["gradients"].keys() == alone["gradients"].keys()
    for name, gradient in found["gradients"].items():
        expected = alone["gradients"][name]
        # Sums of the same terms in another order.
        assert (gradient - expected).norm() <= 1e-5 * expected.norm() + 1e-8, name
    # Rounding grows with every step, as Adam divides by the size of gradients.
    assert found["losses"][0] == pytest.approx(alone["losses"][0], rel=1e-6)
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-2)
    assert len(found["losses"]) == 6


def test_a_killed_process_ends_all_with_an_error(alone: dict[str, Any], tmp_path: pathlib.Path) -> None:
    finished = run(tmp_path, 2, "ddp", "3")
    assert finished.returncode != 0
    assert "SIGKILL" in finished.stderr
    assert "rank" in finished.stderr
    assert not (tmp_path / "result.pt").exists()
    # What was saved before is whole, and another number of processes goes on from there.
    saved = torch.load(tmp_path / "training.pt")["losses"]
    assert len(saved) == 2
    finished = run(tmp_path, 1, "ddp")
    assert finished.returncode == 0, finished.stderr
    assert result(tmp_path)["losses"][:2] == saved
    assert result(tmp_path)["losses"] == pytest.approx(alone["losses"], rel=1e-2)


def test_a_restarted_training_loses_only_what_came_after_its_checkpoint(tmp_path: pathlib.Path) -> None:
    whole, restarted = tmp_path / "whole", tmp_path / "restarted"
    for folder, arguments in ((whole, ["ddp"]), (restarted, ["ddp", "3"])):
        folder.mkdir()
        finished = run(folder, 2, *arguments, restarts=1)
        assert finished.returncode == 0, finished.stderr
    # The same images in the same order, so the same bits.
    assert result(restarted)["losses"] == result(whole)["losses"]
