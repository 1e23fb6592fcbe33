"""Trains a small deformable encoder to find shapes in noise: a minute on two CPU cores, seconds on a GPU.

    python examples/train_encoder.py --save encoder.pt
    torchrun --nproc-per-node 2 examples/train_encoder.py --checkpoint training.pt

With torchrun each process has a GPU of its own, or shares the CPU, and a share of every batch; the loss is the same as
of one process. With `--checkpoint` a training that was interrupted goes on where it was last saved, with any number of
processes; `torchrun --max-restarts 3` does so by itself. With more `--steps` than before it goes on with the learning
rate of a training of that length.

Ends with "loss FIRST -> LAST", and with exit code 1 if the last loss is not below a fifth of the first.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from distributed import STRATEGIES, World, joined, restore, save, spread, weights_of
from shapes import Pictures, ShapeFinder, joined_batches, loss_of
from torch.utils.data import DataLoader, DistributedSampler, Subset

# A model that sees nothing but how common shapes are gets to about 0.3 of the first loss.
FALLS_BELOW = 0.2
DTYPES = {"f32": None, "bf16": torch.bfloat16}


def progress(losses: Iterator[float], steps: int) -> list[float]:
    """All losses, shown while they come: as a bar on a terminal, else as a line every few seconds."""
    terminal = sys.stderr.isatty()
    begin = shown = time.monotonic()
    collected: list[float] = []
    for loss in losses:
        collected.append(loss)
        now, done = time.monotonic(), len(collected)
        if done < steps and now - shown < (0.1 if terminal else 5.0):
            continue
        shown = now
        left = (now - begin) / done * (steps - done)
        text = f"step {done} of {steps}, loss {loss:.3f}, {left:.0f} s left"
        if terminal:
            filled = 30 * done // steps
            # The cursor goes back to the beginning, and what an earlier, longer text left behind it is erased.
            print(f"\r[{'#' * filled}{'-' * (30 - filled)}] {text}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)
    if terminal:
        print(file=sys.stderr)
    return collected


@dataclass(frozen=True)
class Plan:
    """How a model is trained."""

    steps: int = 150
    batch: int = 8
    seed: int = 0
    dtype: str = "f32"
    strategy: str = "ddp"
    checkpoint: pathlib.Path | None = None
    checkpoint_every: int = 50


def schedule_of(optimizer: torch.optim.Optimizer, steps: int, done: int = 0) -> torch.optim.lr_scheduler.OneCycleLR:
    """The learning rate of so many steps, some of which may be done."""
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.15, last_epoch=done - 1
    )


def train(model: ShapeFinder, plan: Plan, world: World) -> Iterator[float]:
    """The loss of every step, each on images never seen before.

    Every process has its share of a step's images. With a checkpoint that exists, training goes on behind it.
    """
    device = world.device
    model.train()
    together = spread(model, model.layers, plan.strategy, world)
    optimizer = torch.optim.AdamW(together.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = schedule_of(optimizer, plan.steps)
    losses: list[float] = []
    if plan.checkpoint and plan.checkpoint.exists():
        state = restore(plan.checkpoint, together, optimizer)
        losses = state["losses"]
        yield from losses
        if len(losses) >= plan.steps:
            return
        # Not the schedule's own state, which would end with the steps that it was begun with.
        schedule = schedule_of(optimizer, plan.steps, len(losses))
    count = plan.steps * plan.batch
    pictures = Subset(Pictures(count, plan.seed, device), range(len(losses) * plan.batch, count))
    sampler = DistributedSampler(pictures, world.size, world.rank, shuffle=False)
    for batch in DataLoader(pictures, plan.batch // world.size, sampler=sampler, collate_fn=joined_batches):
        # Sampling locations stay in float32 under autocast; the operator's values are taken in bfloat16.
        with torch.autocast(device.type, dtype=DTYPES[plan.dtype], enabled=DTYPES[plan.dtype] is not None):
            loss = loss_of(together, batch, world.mean(batch.found()))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(together.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(world.mean(loss).item())
        if plan.checkpoint and (len(losses) % plan.checkpoint_every == 0 or len(losses) == plan.steps):
            save(plan.checkpoint, together, optimizer, world, losses=losses)
        yield losses[-1]


def fresh_model(seed: int, device: torch.device) -> ShapeFinder:
    """An untrained model."""
    torch.manual_seed(seed)
    return ShapeFinder().to(device)


def device_named(name: str) -> torch.device:
    """The device that ``--device`` asks for."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no CUDA device\nhint: --device cpu")
    return torch.device(name)


def whole_number(least: int) -> Callable[[str], int]:
    """What options may be that count something."""

    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, found {number}")
        return number

    return parse


step_count = whole_number(20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=step_count, default=150, help="training steps (default: 150)")
    parser.add_argument("--batch", type=whole_number(1), default=8, help="images a step, of all processes (default: 8)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--dtype", choices=list(DTYPES), default="f32", help="bf16 means autocast (default: f32)")
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp", help="of several processes (default: ddp)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=pathlib.Path, metavar="FILE", help="write the trained weights to this file")
    parser.add_argument("--checkpoint", type=pathlib.Path, metavar="FILE", help="go on from this file, and write it")
    parser.add_argument(
        "--checkpoint-every", type=whole_number(1), default=50, metavar="STEPS", help="how often (default: 50)"
    )
    options = parser.parse_args()
    for file in (options.save, options.checkpoint):
        if file:
            # Better now than after the training that there is no place for its result.
            file.parent.mkdir(parents=True, exist_ok=True)

    with joined(device_named(options.device)) as world:
        if options.batch % world.size:
            parser.error(f"--batch: expected a multiple of {world.size} processes, found {options.batch}")
        plan = Plan(
            options.steps,
            options.batch,
            options.seed,
            options.dtype,
            options.strategy,
            options.checkpoint,
            options.checkpoint_every,
        )
        model = fresh_model(options.seed, world.device)
        training = train(model, plan, world)
        losses = progress(training, options.steps) if world.leads else list(training)
        if options.save:
            weights = weights_of(model)
            if world.leads:
                torch.save({"model": weights}, options.save)
        if not world.leads:
            return 0
    # Every step has other images and so another loss, hence a mean; but at first it falls too fast for one.
    first, last = losses[0], statistics.fmean(losses[-10:])
    print(f"loss {first:.3f} -> {last:.3f}")
    if not last < FALLS_BELOW * first:
        print(f"error: expected it to fall below {FALLS_BELOW:.0%} of the first", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
