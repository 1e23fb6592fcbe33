"""Our nodes as functions of ONNX's own operators, which a model carries for runtimes that do not have our library.

ONNX Runtime takes the library's node where that is registered, and the function where it is not; so does every runtime
that knows functions. A function has one body for all its calls in a model, which is written for as many levels as the
call with the most has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fourtap.errors import UnsupportedError
from fourtap.onnx.packages import require

__all__ = [
    "DOMAIN",
    "FORMS",
    "FROM_LOCATIONS",
    "FROM_PROJECTIONS",
    "INPUTS",
    "MMCV",
    "NODES",
    "OLDEST_OPSET",
    "OPTIONAL",
    "TENSORRT",
    "Call",
    "calls_of",
    "functions",
]

#: In which a model can have the operator: as nodes of ours, as TensorRT's, or as operators that every runtime has.
FORMS = ("fourtap", "tensorrt", "portable")
DOMAIN = "fourtap"
FROM_LOCATIONS = "MSDeformAttn"
FROM_PROJECTIONS = "MSDeformAttnFromProjections"
MMCV = "MMCVMultiScaleDeformableAttention"
TENSORRT = "MultiscaleDeformableAttnPlugin_TRT"
#: What no runtime has without our library, unless a file carries it.
NODES = (FROM_LOCATIONS, FROM_PROJECTIONS, MMCV, TENSORRT)
_LEVELS = ("value", "spatial_shapes", "level_start_index")
INPUTS = {
    FROM_LOCATIONS: (*_LEVELS, "sampling_locations", "attention_weights"),
    FROM_PROJECTIONS: (*_LEVELS, "reference_points", "sampling_offsets", "attention_logits", "value_mask"),
}
#: What a node of the library does without; functions do without a mask only.
OPTIONAL = ("level_start_index", "value_mask")
#: The first with GridSample.
OLDEST_OPSET = 16


@dataclass(frozen=True)
class Call:
    """What the body of a function must know about one of its calls."""

    name: str
    levels: int
    nearest: bool = False
    masked: bool = False


def functions(calls: Iterable[Call], opset: int) -> list[Any]:
    """The functions, as ``onnx.FunctionProto``, that these calls need in a model of this opset."""
    parser = require("onnx.parser", "a model with our functions")
    if opset < OLDEST_OPSET:
        raise UnsupportedError(f"opset: expected {OLDEST_OPSET} or later, which has GridSample, found {opset}")
    of_each: dict[str, list[Call]] = {}
    for call in calls:
        of_each.setdefault(call.name, []).append(call)
    return [parser.parse_function(_text(name, those, opset)) for name, those in sorted(of_each.items())]


def calls_of(function: Any) -> list[Call]:
    """Calls that need such a function as a model carries, by its body: one of most levels, and one of fewer if any."""
    levels = [node for node in function.node if node.op_type == "GridSample"]
    modes = {attribute.s for node in levels for attribute in node.attribute if attribute.name == "mode"}
    most = Call(function.name, len(levels), b"nearest" in modes, "value_mask" in function.input)
    has_fewer = any(node.op_type == "Less" for node in function.node)
    return [most, replace(most, levels=1)] if has_fewer else [most]


def _text(name: str, calls: Sequence[Call], opset: int) -> str:
    """The function in ONNX's text format."""
    levels = {call.levels for call in calls}
    nearest, masked = ({getattr(call, field) for call in calls} for field in ("nearest", "masked"))
    if len(nearest) > 1 or len(masked) > 1:
        kind = "way of sampling" if len(nearest) > 1 else "kind, all with a mask or all without"
        raise UnsupportedError(f"{name}: expected calls of one {kind} in a model, found two")
    body = _Body(max(levels), uneven=len(levels) > 1, nearest=nearest.pop(), opset=opset)
    is_masked = masked.pop()
    inputs = [one for one in INPUTS[name] if is_masked or one != "value_mask"]
    attributes = ""
    if name == FROM_LOCATIONS:
        body.from_locations()
    else:
        # The node refuses scales where there are no boxes, so calls without boxes do not have this attribute.
        counts, scales = (", ".join([default] * body.levels) for default in ("-1", "0.0"))
        attributes = f"<sampling, points_per_level: ints = [{counts}], box_scale: floats = [{scales}]>"
        body.from_projections(masked=is_masked)
    lines = "\n".join(f"  {line}" for line in body.lines)
    header = f'<domain: "{DOMAIN}", opset_import: ["": {opset}]>'
    return f"{header}\n{name} {attributes} ({', '.join(inputs)}) => (out)\n{{\n{lines}\n}}"


class _Body:
    """The lines of a function.

    It computes in float, the only type in which every runtime has GridSample.
    """

    def __init__(self, levels: int, *, uneven: bool, nearest: bool, opset: int) -> None:
        self.lines: list[str] = []
        self.levels, self.uneven, self.nearest = levels, uneven, nearest
        # Renamed in opset 20.
        linear = "bilinear" if opset < 20 else "linear"
        self.mode = "nearest" if nearest else linear

    def add(self, text: str) -> None:
        self.lines += [line.strip() for line in text.strip().splitlines()]

    def from_locations(self) -> None:
        self._begin("value")
        self.add("""
            places = Cast <to = 1> (sampling_locations)
            places_by_head = Transpose <perm = [0, 2, 1, 3, 4, 5]> (places)
            shares = Cast <to = 1> (attention_weights)
            shares_by_head = Transpose <perm = [0, 2, 1, 3, 4]> (shares)
        """)
        for level in range(self.levels):
            self._level(level)
            self.add(f"""
                place_{level} = Gather <axis = 3> (places_by_head, at_{level})
                share_{level} = Gather <axis = 3> (shares_by_head, at_{level})
            """)
            self._sample(level)
        self._end("sampling_locations")

    def from_projections(self, *, masked: bool) -> None:
        value = "value"
        if masked:
            value = "masked_value"
            self.add("""
                mask_axes = Constant <value_ints = [2, 3]> ()
                mask = Unsqueeze (value_mask, mask_axes)
                nothing = Constant <value_float = 0.0> ()
                nothing_like = CastLike (nothing, value)
                masked_value = Where (mask, nothing_like, value)
            """)
        self._begin(value)
        # References have the axes [N, Q, L, P, 2 or 4] here; a point gets the size (1, 1), which is not used.
        self.add("""
            listed = Constant <value_ints: ints = @points_per_level> ()
            samples = Shape <start = 3, end = 4> (attention_logits)
            each = Div (samples, count)
            is_listed = GreaterOrEqual (listed, zero)
            points = Where (is_listed, listed, each)
            scales = Constant <value_floats: floats = @box_scale> ()
            all_ends = CumSum (points, first)
            all_begins = Sub (all_ends, points)
            references = Cast <to = 1> (reference_points)
            reference_axes = Shape <start = 0, end = 3> (references)
            coordinates = Shape <start = -1> (references)
            reference_shape = Concat <axis = 0> (reference_axes, rest, coordinates)
            by_points = Reshape (references, reference_shape)
            is_box = Equal (coordinates, four)
            centres = Slice (by_points, zero, two, last)
            zeros = Sub (centres, centres)
            ones = Add (zeros, unit)
            boxes = Concat <axis = -1> (by_points, ones)
            last_reference = Shape <start = 2, end = 3> (boxes)
            turns = Shape <start = 3, end = 4> (boxes)
            last_reference_at = Sub (last_reference, one)
            offsets = Cast <to = 1> (sampling_offsets)
            logits = Cast <to = 1> (attention_logits)
            all_shares = Softmax <axis = -1> (logits)
            shares_by_head = Transpose <perm = [0, 2, 1, 3]> (all_shares)
            by_turns = Concat <axis = 0> (copy, copy, copy, rest, turns, two)
            by_point = Concat <axis = 0> (copy, copy, copy, rest, two)
            turn_axes = Constant <value_ints = [2, 3]> ()
            flipped = Constant <value_ints = [1, 0]> ()
        """)
        for level in range(self.levels):
            self._level(level)
            # Points with fewer references than they are take turns.
            self.add(f"""
                begin_{level} = Gather <axis = 0> (all_begins, at_least_{level})
                end_{level} = Gather <axis = 0> (all_ends, at_least_{level})
                scale_{level} = Gather <axis = 0> (scales, at_least_{level})
                offset_{level} = Slice (offsets, begin_{level}, end_{level}, three)
                turned_{level} = Reshape (offset_{level}, by_turns)
                reference_at_{level} = Min (at_least_{level}, last_reference_at)
                reference_scalar_{level} = Squeeze (reference_at_{level}, zero)
                box_{level} = Gather <axis = 2> (boxes, reference_scalar_{level})
                around_{level} = Unsqueeze (box_{level}, turn_axes)
                centre_{level} = Slice (around_{level}, zero, two, last)
                extent_{level} = Slice (around_{level}, two, four, last)
                pixels_xy_{level} = Gather <axis = 0> (size_{level}, flipped)
                resolution_{level} = Cast <to = 1> (pixels_xy_{level})
                per_pixel_{level} = Div (unit, resolution_{level})
                per_box_{level} = Mul (extent_{level}, scale_{level})
                step_{level} = Where (is_box, per_box_{level}, per_pixel_{level})
                moved_{level} = Mul (turned_{level}, step_{level})
                reached_{level} = Add (centre_{level}, moved_{level})
                point_{level} = Reshape (reached_{level}, by_point)
                {"found" if self.nearest else "place"}_{level} = Transpose <perm = [0, 2, 1, 3, 4]> (point_{level})
                share_{level} = Slice (shares_by_head, begin_{level}, end_{level}, three)
            """)
            if self.nearest:
                # The centre of the nearest pixel, that of the border for places outside.
                self.add(f"""
                    scaled_{level} = Mul (found_{level}, resolution_{level})
                    rounded_{level} = Add (scaled_{level}, half)
                    whole_{level} = Floor (rounded_{level})
                    positive_{level} = Max (whole_{level}, none)
                    border_{level} = Sub (resolution_{level}, unit)
                    inside_{level} = Min (positive_{level}, border_{level})
                    middle_{level} = Add (inside_{level}, half)
                    place_{level} = Div (middle_{level}, resolution_{level})
                """)
            self._sample(level)
        self._end("sampling_offsets")

    def _begin(self, value: str) -> None:
        self.add(f"""
            first = Constant <value_int = 0> ()
            zero = Constant <value_ints = [0]> ()
            one = Constant <value_ints = [1]> ()
            two = Constant <value_ints = [2]> ()
            three = Constant <value_ints = [3]> ()
            four = Constant <value_ints = [4]> ()
            rest = Constant <value_ints = [-1]> ()
            last = Constant <value_ints = [-1]> ()
            copy = Constant <value_ints = [0]> ()
            none = Constant <value_float = 0.0> ()
            half = Constant <value_float = 0.5> ()
            unit = Constant <value_float = 1.0> ()
            double = Constant <value_float = 2.0> ()
            images = Shape <start = 0, end = 1> (value)
            heads = Shape <start = 2, end = 3> (value)
            channels = Shape <start = 3, end = 4> (value)
            flat = Cast <to = 1> ({value})
            merged = Concat <axis = 0> (copy, copy, rest)
            flat_pixels = Reshape (flat, merged)
            pixels = Transpose <perm = [0, 2, 1]> (flat_pixels)
            sizes = Cast <to = 7> (spatial_shapes)
            starts = Cast <to = 7> (level_start_index)
            count = Shape <start = 0, end = 1> (sizes)
            last_level = Sub (count, one)
            images_and_heads = Mul (images, heads)
        """)

    def _level(self, level: int) -> None:
        """Which level it is, where its pixels are, and its image ``[N * M, D, H, W]``."""
        self.add(f"level_{level} = Constant <value_ints = [{level}]> ()")
        if self.uneven:
            # Calls with fewer levels sample their last one again, with no weight.
            self.add(f"""
                at_least_{level} = Min (level_{level}, last_level)
                is_there_{level} = Less (level_{level}, count)
                counts_{level} = Cast <to = 1> (is_there_{level})
            """)
        else:
            self.add(f"at_least_{level} = Identity (level_{level})")
        self.add(f"""
            at_{level} = Squeeze (at_least_{level}, zero)
            size_{level} = Gather <axis = 0> (sizes, at_{level})
            area_{level} = ReduceProd <keepdims = 1> (size_{level})
            pixel_{level} = Gather <axis = 0> (starts, at_least_{level})
            pixel_end_{level} = Add (pixel_{level}, area_{level})
            rows_{level} = Slice (pixels, pixel_{level}, pixel_end_{level}, two)
            image_shape_{level} = Concat <axis = 0> (images_and_heads, channels, size_{level})
            image_{level} = Reshape (rows_{level}, image_shape_{level})
        """)

    def _sample(self, level: int) -> None:
        """The sum over the points of a level, ``[N * M, D, Q]``, added to those of the levels before."""
        self.add(f"""
            place_shape_{level} = Shape <start = 2> (place_{level})
            grid_shape_{level} = Concat <axis = 0> (images_and_heads, place_shape_{level})
            unit_grid_{level} = Reshape (place_{level}, grid_shape_{level})
            double_grid_{level} = Mul (unit_grid_{level}, double)
            grid_{level} = Sub (double_grid_{level}, unit)
            sample_{level} = GridSample <mode = "{self.mode}", padding_mode = "zeros", align_corners = 0>
                (image_{level}, grid_{level})
            share_axes_{level} = Shape <start = 2> (share_{level})
            share_shape_{level} = Concat <axis = 0> (images_and_heads, one, share_axes_{level})
            given_share_{level} = Reshape (share_{level}, share_shape_{level})
        """)
        share = f"given_share_{level}"
        if self.uneven:
            self.add(f"counted_share_{level} = Mul ({share}, counts_{level})")
            share = f"counted_share_{level}"
        self.add(f"""
            weighted_{level} = Mul (sample_{level}, {share})
            part_{level} = ReduceSum <keepdims = 0> (weighted_{level}, last)
            total_{level} = {f"Add (total_{level - 1}, part_{level})" if level else f"Identity (part_{level})"}
        """)

    def _end(self, queries_of: str) -> None:
        self.add(f"""
            queries = Shape <start = 1, end = 2> ({queries_of})
            all_channels = Mul (heads, channels)
            out_shape = Concat <axis = 0> (images, all_channels, queries)
            by_channel = Reshape (total_{self.levels - 1}, out_shape)
            by_query = Transpose <perm = [0, 2, 1]> (by_channel)
            out = CastLike (by_query, value)
        """)
