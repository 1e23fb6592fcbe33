"""Trains a small deformable encoder to find shapes in noise: a minute on two CPU cores, seconds on a GPU.

    python examples/train_encoder.py --save encoder.pt

Ends with "loss FIRST -> LAST", and with exit code 1 if the last loss is not below a fifth of the first.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator

import torch
from shapes import Batch, ShapeFinder, loss_of, make_batch

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


def train(model: ShapeFinder, steps: int, batch_size: int, generator: torch.Generator, dtype: str) -> Iterator[float]:
    """The loss of every step, each on images never seen before."""
    device = generator.device
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.15)
    for _ in range(steps):
        batch: Batch = make_batch(batch_size, generator)
        # Sampling locations stay in float32 under autocast; the operator's values are taken in bfloat16.
        with torch.autocast(device.type, dtype=DTYPES[dtype], enabled=DTYPES[dtype] is not None):
            loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()


def fresh_model(seed: int, device: torch.device) -> tuple[ShapeFinder, torch.Generator]:
    """An untrained model, and the source of its images."""
    torch.manual_seed(seed)
    return ShapeFinder().to(device), torch.Generator(device).manual_seed(seed)


def device_named(name: str) -> torch.device:
    """The device that ``--device`` asks for."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no CUDA device\nhint: --device cpu")
    return torch.device(name)


def step_count(text: str) -> int:
    """What ``--steps`` may be."""
    steps = int(text)
    if steps < 20:
        raise argparse.ArgumentTypeError(f"expected at least 20, found {steps}")
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=step_count, default=150, help="training steps (default: 150)")
    parser.add_argument("--batch", type=int, default=8, help="images a step (default: 8)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--dtype", choices=list(DTYPES), default="f32", help="bf16 means autocast (default: f32)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=pathlib.Path, metavar="FILE", help="write the trained weights to this file")
    options = parser.parse_args()
    if options.save:
        # Better now than after the training that there is no place for its result.
        options.save.parent.mkdir(parents=True, exist_ok=True)

    device = device_named(options.device)
    model, generator = fresh_model(options.seed, device)
    losses = progress(train(model, options.steps, options.batch, generator, options.dtype), options.steps)
    if options.save:
        torch.save({"model": model.state_dict()}, options.save)
    # Every step has other images and so another loss, hence a mean; but at first it falls too fast for one.
    first, last = losses[0], statistics.fmean(losses[-10:])
    print(f"loss {first:.3f} -> {last:.3f}")
    if not last < FALLS_BELOW * first:
        print(f"error: expected it to fall below {FALLS_BELOW:.0%} of the first", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
