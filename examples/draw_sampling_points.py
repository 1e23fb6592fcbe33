"""Draws where one query looks: its sampling points over the image, one colour a head, larger for more weight.

    python examples/train_encoder.py --save encoder.pt
    python examples/draw_sampling_points.py --checkpoint encoder.pt --output sampling-points.png

Without a checkpoint it trains a model first, for a minute or so.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw, ImageFont
from shapes import CLASSES, IMAGE_SIZE, LEVELS, Batch, ShapeFinder, make_batch, reference_points
from torch import Tensor
from train_encoder import Plan, World, fresh_model, progress, step_count, train

SCALE = 4
# Pillow draws without anti-aliasing, so everything is drawn larger by this and shrunk in the end.
FINER = 3
LEGEND_WIDTH = 176
MARGIN = 16
# Okabe and Ito's colours, which colour-blind readers can tell apart.
HEAD_COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#999999")
INK, PAPER = "#202020", "#ffffff"


@dataclass
class Looked:
    """What one query did in one layer, and what came of it."""

    position: tuple[float, float]  # all positions in pixels of the image
    locations: Tensor  # [heads, levels * points, 2]
    weights: Tensor  # [heads, levels * points], of a head together 1
    found: str
    box: tuple[float, float, float, float] | None  # left, top, right, bottom; none around background


@torch.no_grad()
def look(model: ShapeFinder, image: Tensor, query: int, layer: int) -> Looked:
    """Runs the model and notes what the attention of that layer computes from the query on the way."""
    attention = model.layers[layer].attention
    noted: dict[str, Tensor] = {}
    hooks = [
        getattr(attention, name).register_forward_hook(lambda _, __, result, name=name: noted.update({name: result}))
        for name in ("sampling_offsets", "attention_weights")
    ]
    model.eval()
    logits, distances = model(image[None])
    for hook in hooks:
        hook.remove()

    heads, levels, points = attention.n_heads, attention.n_levels, attention.n_points
    offsets = noted["sampling_offsets"][0, query].view(heads, levels, points, 2)
    weights = noted["attention_weights"][0, query].view(heads, levels * points).softmax(-1)
    # Offsets are in pixels of their level, (x, y).
    sizes = torch.tensor([(width, height) for height, width in LEVELS], device=image.device)[:, None]
    centre = reference_points(LEVELS, image.device)[query, 0]
    locations = (centre + offsets / sizes).flatten(1, 2) * IMAGE_SIZE
    x, y = (centre * IMAGE_SIZE).tolist()
    left, top, right, bottom = (distances[0, query] * IMAGE_SIZE).tolist()
    found = int(logits[0, query].argmax())
    return Looked(
        position=(x, y),
        locations=locations.cpu(),
        weights=weights.cpu(),
        found=CLASSES[found],
        box=(x - left, y - top, x + right, y + bottom) if found > 0 else None,
    )


def query_at(x: float, y: float) -> int:
    """The query of the finest level whose pixel holds this position of the image."""
    height, width = LEVELS[0]
    column = min(max(int(x / IMAGE_SIZE * width), 0), width - 1)
    row = min(max(int(y / IMAGE_SIZE * height), 0), height - 1)
    return row * width + column


def query_in_largest_shape(batch: Batch) -> int:
    """Off its middle, halfway to a corner: from there a query must look in different distances."""
    extents = batch.distances[0, :, :2] + batch.distances[0, :, 2:]
    largest = (batch.classes[0] > 0) & (extents[:, 0] == extents[:, 0].max())
    part = batch.distances[0, :, :2] / extents.clamp(min=1e-6)
    misses = (part - torch.tensor([0.38, 0.62], device=part.device)).abs().sum(-1)
    return int(torch.where(largest, misses, torch.inf).argmin())


def radius_of(weight: float) -> float:
    """A circle's area tells its weight, but for the rest that keeps the smallest visible."""
    return 2.0 + 17.0 * weight**0.5


class Canvas:
    """Draws in units of the final picture."""

    def __init__(self, width: int, height: int) -> None:
        self.image = Image.new("RGB", (width * FINER, height * FINER), PAPER)
        self._draw = ImageDraw.Draw(self.image, "RGBA")

    def circle(self, x: float, y: float, radius: float, fill: str | None, outline: str, line: float = 1.0) -> None:
        box = [(at * FINER) for at in (x - radius, y - radius, x + radius, y + radius)]
        self._draw.ellipse(box, fill=fill, outline=outline, width=round(line * FINER))

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: str, width: float) -> None:
        self._draw.line([at * FINER for at in (x0, y0, x1, y1)], fill=colour, width=round(width * FINER))

    def cross(self, x: float, y: float, reach: float) -> None:
        for colour, extra in ((INK, 1.5), (PAPER, 0.0)):
            self.line(x - reach - extra, y, x + reach + extra, y, colour, 2.5 + 2 * extra)
            self.line(x, y - reach - extra, x, y + reach + extra, colour, 2.5 + 2 * extra)

    def dashes(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """A dashed line, along x or y."""
        length = max(abs(x1 - x0), abs(y1 - y0), 1e-6)
        step_x, step_y = (x1 - x0) / length, (y1 - y0) / length
        at = 0.0
        while at < length:
            end = min(at + 7, length)
            for colour, rim in ((INK, 1.0), (PAPER, 0.0)):
                first, last = at - rim, end + rim
                ends = (x0 + step_x * first, y0 + step_y * first, x0 + step_x * last, y0 + step_y * last)
                self.line(*ends, colour, 2 + 2 * rim)
            at += 12

    def rectangle(self, x0: float, y0: float, x1: float, y1: float, colour: str) -> None:
        self._draw.rectangle([at * FINER for at in (x0, y0, x1, y1)], fill=colour)

    def text(self, x: float, y: float, text: str, size: int = 14) -> None:
        """Written to the right of ``x``, its middle at the height ``y``."""
        self._draw.text((x * FINER, y * FINER), text, INK, ImageFont.load_default(size * FINER), anchor="lm")

    def finished(self) -> Image.Image:
        return self.image.reduce(FINER)


def draw(image: Tensor, looked: Looked, layer: int) -> Image.Image:
    """The image with the query's points over it, and the legend beside it."""
    side = IMAGE_SIZE * SCALE
    canvas = Canvas(side + LEGEND_WIDTH, side)
    pixels = (image.permute(1, 2, 0) * 255).round().byte().cpu().numpy()
    canvas.image.paste(Image.fromarray(pixels).resize((side * FINER, side * FINER), Image.Resampling.NEAREST))

    if looked.box:
        left, top, right, bottom = (at * SCALE for at in looked.box)
        for y in (top, bottom):
            canvas.dashes(left, y, right, y)
        for x in (left, right):
            canvas.dashes(x, top, x, bottom)

    circles = [
        (weight, x * SCALE, y * SCALE, HEAD_COLOURS[head % len(HEAD_COLOURS)])
        for head, (locations, weights) in enumerate(
            zip(looked.locations.tolist(), looked.weights.tolist(), strict=True)
        )
        for (x, y), weight in zip(locations, weights, strict=True)
    ]
    # The largest first, so that none hides another.
    for weight, x, y, colour in sorted(circles, reverse=True):
        canvas.circle(x, y, radius_of(weight) + 1.5, None, PAPER, 1.5)
        canvas.circle(x, y, radius_of(weight), colour, INK)
    canvas.cross(looked.position[0] * SCALE, looked.position[1] * SCALE, 9)
    draw_legend(canvas, side, looked, layer)
    return canvas.finished()


def draw_legend(canvas: Canvas, left: int, looked: Looked, layer: int) -> None:
    """What the signs mean, from ``left`` on."""
    # Over the points that lie outside the image.
    canvas.rectangle(left, 0, left + LEGEND_WIDTH, IMAGE_SIZE * SCALE, PAPER)
    sign, word = left + MARGIN + 12, left + MARGIN + 34
    rows = iter(range(24, IMAGE_SIZE * SCALE, 26))
    canvas.text(left + MARGIN, next(rows), f"encoder layer {layer + 1}", 16)
    next(rows)
    row = next(rows)
    canvas.cross(sign, row, 8)
    canvas.text(word, row, "the query")
    row = next(rows)
    if looked.box:
        canvas.dashes(sign - 12, row, sign + 12, row)
    canvas.text(word, row, f"found: {looked.found}")
    next(rows)
    canvas.text(left + MARGIN, next(rows), "it samples at")
    for head in range(len(looked.weights)):
        row = next(rows)
        canvas.circle(sign, row, 7, HEAD_COLOURS[head % len(HEAD_COLOURS)], INK)
        canvas.text(word, row, f"head {head + 1}")
    levels = len(LEVELS)
    canvas.text(left + MARGIN, next(rows), f"{looked.weights.shape[1] // levels} points on each of {levels} levels", 12)
    next(rows)
    canvas.text(left + MARGIN, next(rows), "with weight")
    for weight in (0.02, 0.1, 0.3):
        row = next(rows)
        canvas.circle(sign, row, radius_of(weight), "#d0d0d0", INK)
        canvas.text(word, row, f"{weight:g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=pathlib.Path, metavar="FILE", help="what train_encoder.py --save wrote")
    parser.add_argument(
        "--steps", type=step_count, default=150, help="training steps without a checkpoint (default: 150)"
    )
    parser.add_argument("--layer", type=int, default=3, help="encoder layer to show, from 1 (default: 3, the last)")
    parser.add_argument("--query", type=float, nargs=2, metavar=("X", "Y"), help="its position in pixels of the image")
    parser.add_argument("--seed", type=int, default=0, help="another seed shows another image (default: 0)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("sampling-points.png"), metavar="FILE")
    options = parser.parse_args()

    device = torch.device("cpu")
    model = fresh_model(options.seed, device)
    if not 1 <= options.layer <= len(model.layers):
        parser.error(f"--layer: expected 1 to {len(model.layers)}, found {options.layer}")
    if options.checkpoint:
        model.load_state_dict(torch.load(options.checkpoint, map_location=device, weights_only=True)["model"])
    else:
        progress(train(model, Plan(options.steps, seed=options.seed), World(device)), options.steps)

    # Not the training's seed: the model shall not have seen the image.
    batch = make_batch(1, torch.Generator(device).manual_seed(options.seed + 1_000_000))
    query = query_at(*options.query) if options.query else query_in_largest_shape(batch)
    looked = look(model, batch.images[0], query, options.layer - 1)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(batch.images[0], looked, options.layer - 1).save(options.output, optimize=True)
    print(f"{options.output}: query at {looked.position[0]:g}, {looked.position[1]:g}, found: {looked.found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
