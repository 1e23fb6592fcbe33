"""The training example in this process: it goes on from its checkpoint."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"
if not (EXAMPLES / "train_encoder.py").exists():
    pytest.skip("the examples are not here", allow_module_level=True)


def trained(file: pathlib.Path, steps: int, *, stopped_after: int | None = None) -> tuple[list[float], dict[str, Any]]:
    """The losses, and the optimizer's settings at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        from distributed import World
        from train_encoder import Plan, fresh_model, train

        device = torch.device("cpu")
        plan = Plan(steps=steps, batch=2, checkpoint=file, checkpoint_every=2)
        losses = []
        for loss in train(fresh_model(0, device), plan, World(device)):
            losses.append(loss)
            if len(losses) == stopped_after:
                break
    (group,) = torch.load(file)["optimizer"]["param_groups"]
    return losses, {name: setting for name, setting in group.items() if name != "params"}


def test_a_training_goes_on_from_its_checkpoint(tmp_path: pathlib.Path) -> None:
    whole, settings = trained(tmp_path / "whole.pt", 6)
    assert trained(tmp_path / "part.pt", 6, stopped_after=3)[0] == whole[:3]
    # The same images in the same order, so the same bits.
    assert trained(tmp_path / "part.pt", 6) == (whole, settings)


def test_a_training_goes_on_with_more_steps(tmp_path: pathlib.Path) -> None:
    _, settings = trained(tmp_path / "whole.pt", 8)
    first, _ = trained(tmp_path / "part.pt", 4)
    losses, found = trained(tmp_path / "part.pt", 8)
    assert len(losses) == 8 and losses[:4] == first
    # The learning rate is that of eight steps.
    assert found == settings
    assert trained(tmp_path / "part.pt", 4)[0] == losses
