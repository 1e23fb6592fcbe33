"""Nodes in the place of deformable attention that was exported as ONNX's own operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fourtap.onnx.building import Builder
from fourtap.onnx.errors import PatternError
from fourtap.onnx.functions import DOMAIN, FROM_LOCATIONS, FROM_PROJECTIONS, TENSORRT, Call
from fourtap.onnx.pattern import Attention
from fourtap.onnx.placing import Replacement

__all__ = ["TENSORRT_DOMAIN", "replacement_of"]

#: That in which TensorRT's parser of ONNX looks for plugins, as does our library.
TENSORRT_DOMAIN = "TRT"
_FLOAT, _INT32 = 1, 6


def replacement_of(
    attention: Attention, types: Mapping[str, int], prefix: str, *, for_tensorrt: bool, with_projections: bool
) -> Replacement:
    """The nodes that compute one call, by names that begin with a prefix."""
    build = Builder(prefix)
    made = _Replacing(attention, types, build, for_tensorrt=for_tensorrt, with_projections=with_projections)
    return made.replacement()


class _Replacing:
    """The nodes that compute one call."""

    def __init__(
        self,
        attention: Attention,
        types: Mapping[str, int],
        build: Builder,
        *,
        for_tensorrt: bool,
        with_projections: bool,
    ) -> None:
        self._attention, self._types, self._build, self._for_tensorrt = attention, types, build, for_tensorrt
        self._folds = with_projections and attention.logits is not None
        self._node = build.node

    def replacement(self) -> Replacement:
        attention, points = self._attention, self._attention.points
        count = len(attention.sizes)
        shapes, starts = self._levels()
        levels = [attention.value, shapes, starts]
        name = FROM_LOCATIONS
        if self._for_tensorrt:
            if points is not None and len(set(points)) > 1:
                raise PatternError(
                    f"{attention.out}: expected as many points for each level, as TensorRT's node wants, "
                    f'found {points}; to="portable" takes them'
                )
            levels[1:] = [self._node("Cast", one, to=_INT32) for one in (shapes, starts)]
            apart = self._node(TENSORRT, *levels, *self._by_level(), domain=TENSORRT_DOMAIN)
            found = self._node("Reshape", apart, np.array([0, 0, -1]))
        elif self._folds and attention.projections is not None:
            name = FROM_PROJECTIONS
            found = self._from_points(levels, *attention.projections)
        elif self._folds and attention.boxes is not None:
            name = FROM_PROJECTIONS
            found = self._from_boxes(levels, *attention.boxes)
        elif points is not None and len(set(points)) > 1:
            name = FROM_PROJECTIONS
            found = self._from_whole(levels, points)
        else:
            found = self._node(name, *levels, *self._by_level(), domain=DOMAIN)
        if attention.out_is_by_channel:
            found = self._node("Transpose", found, perm=[0, 2, 1])
        # The last node makes what the model goes on with.
        self._build.nodes[-1].output[0] = attention.out
        return Replacement(attention.out, self._build.nodes, self._build.initializers, Call(name, count))

    def _by_level(self) -> tuple[str, str]:
        """Locations and weights with the points of each level on an axis of their own."""
        attention, count = self._attention, len(self._attention.sizes)
        locations, weights = self._as_float(self._locations()), self._as_float(attention.weights)
        if attention.by_points:
            locations = self._node("Reshape", locations, np.array([0, 0, 0, count, -1, 2]))
            weights = self._node("Reshape", weights, np.array([0, 0, 0, count, -1]))
        return locations, weights

    def _from_points(self, levels: Sequence[Any], points: str, offsets: str) -> Any:
        """Without the arithmetic and the softmax before it, which take longer than the node does."""
        points = self._node("Reshape", self._as_float(points), np.array([0, 0, self._attention.references, 2]))
        offsets = self._node("Reshape", self._as_float(offsets), np.array([0, 0, 0, -1, 2]))
        return self._projected([*levels, points, offsets])

    def _from_boxes(self, levels: Sequence[Any], centres: str, extents: str, offsets: str, scale: float) -> Any:
        joined = self._node("Concat", self._as_float(centres), self._as_float(extents), axis=-1)
        boxes = self._node("Reshape", joined, np.array([0, 0, self._attention.references, 4]))
        offsets = self._node("Reshape", self._as_float(offsets), np.array([0, 0, 0, -1, 2]))
        return self._projected([*levels, boxes, offsets], box_scale=[scale] * len(self._attention.sizes))

    def _from_whole(self, levels: Sequence[Any], points: Sequence[int]) -> Any:
        """Of levels with unlike points, which only this node takes: offsets into the whole image are locations."""
        whole = np.array([0, 0, 1, 1], np.float32).reshape(1, 1, 1, 1, 4)
        return self._projected(
            [*levels, whole, self._as_float(self._locations())],
            points_per_level=list(points),
            box_scale=[1.0] * len(points),
        )

    def _projected(self, inputs: Sequence[Any], **attributes: Any) -> Any:
        logits = self._attention.logits
        if logits is None:
            raise PatternError("weights: expected those of a softmax, as levels have unlike points, found others")
        logits = self._as_float(logits)
        return self._node(FROM_PROJECTIONS, *inputs, logits, domain=DOMAIN, sampling="bilinear", **attributes)

    def _locations(self) -> str:
        attention = self._attention
        if attention.locations is not None:
            return attention.locations
        grids = self._as_float(attention.grids)
        moved = self._node("Add", grids, np.float32(1))
        return str(self._node("Mul", moved, np.float32(0.5)))

    def _levels(self) -> tuple[Any, Any]:
        """Sizes and starts: constants, or computed from the shapes that images were given."""
        parts = [
            self._node("Slice", size, np.array([2]), np.array([4])) if isinstance(size, str) else np.array(size)
            for size in self._attention.sizes
        ]
        shapes = self._node("Reshape", self._node("Concat", *parts, axis=0), np.array([-1, 2]))
        heights, widths = (self._node("Gather", shapes, np.int64(side), axis=1) for side in (0, 1))
        return shapes, self._node("CumSum", self._node("Mul", heights, widths), np.int64(0), exclusive=1)

    def _as_float(self, name: str) -> str:
        """Some exports have places in double, which no runtime samples by."""
        return name if self._types.get(name) == _FLOAT else str(self._node("Cast", name, to=_FLOAT))
