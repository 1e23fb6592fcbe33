"""One process of test_distributed.py: trains the example's model for a few steps, and writes what it was like.

Usage: train_worker.py FOLDER STRATEGY [KILLED_AT]. Rank 1 kills itself before that step, the first time it is started.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples"))

from distributed import joined, spread
from shapes import Pictures, joined_batches, loss_of
from torch.distributed.tensor import DTensor
from train_encoder import Plan, fresh_model, train

folder, strategy = pathlib.Path(sys.argv[1]), sys.argv[2]
killed_at = int(sys.argv[3]) if len(sys.argv) > 3 else None
torch.set_num_threads(1)

with joined(torch.device("cpu")) as world:
    plan = Plan(steps=6, batch=4, strategy=strategy, checkpoint=folder / "training.pt", checkpoint_every=2)
    # Gradients of the first step.
    model = fresh_model(0, world.device)
    together = spread(model, model.layers, strategy, world)
    pictures = Pictures(plan.batch, plan.seed, world.device)
    batch = joined_batches([pictures[index] for index in range(world.rank, plan.batch, world.size)])
    loss_of(together, batch, world.mean(batch.found())).backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        gradients[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient

    losses = []
    for loss in train(fresh_model(0, world.device), plan, world):
        losses.append(loss)
        first_time = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if len(losses) == killed_at and world.rank == 1 and first_time:
            os.kill(os.getpid(), signal.SIGKILL)
    if world.leads:
        torch.save({"losses": losses, "gradients": gradients}, folder / "result.pt")
