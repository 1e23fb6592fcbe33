"""Sessions of random nodes give what a formula in float64 gives: every node, element type and layout of levels, inputs
and attributes that are there or not, initialisers, masks of any bytes, and sizes that change from run to run.

FOURTAP_CASES says how many. What fails is named by the seed of `random_case`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx.helper as helper
import onnx.numpy_helper as numpy_helper
from conftest import MSDA, PROJECTIONS, TYPES, session
from numpy_reference import attend, given_places, projected_places
from onnx import TensorProto

CASES = 100

# Domains and names, and whether heads are an axis of the result.
GIVEN = [
    ("mmdeploy", "MMCVMultiScaleDeformableAttention", False),
    ("mmcv", "MMCVMultiScaleDeformableAttention", False),
    ("TRT", "MultiscaleDeformableAttnPlugin_TRT", True),
    ("nvidia", "MultiscaleDeformableAttnPlugin_TRT", True),
    ("", "MultiscaleDeformableAttnPlugin_TRT", True),
    ("fourtap", "MSDeformAttn", False),
]
# Of a rounded result, and of sums of which the greatest term is 1.
ROUNDING = {"float16": (2**-10, 5e-6), "bfloat16": (2**-7, 5e-6), "float32": (2**-22, 5e-6), "float64": (2**-50, 1e-13)}
# How near to the border between two pixels a place must not be, where the nearest one is read.
BORDER = 1e-3


def cases() -> int:
    return int(os.environ.get("FOURTAP_CASES", CASES))


@dataclass
class Case:
    """A node, with one feed for each of its runs and what these must give."""

    domain: str
    name: str
    dtype: str
    attributes: dict
    absent: set[str]
    dtypes: dict[str, str]
    feeds: list[dict[str, np.ndarray]] = field(default_factory=list)
    expected: list[tuple[np.ndarray, float]] = field(default_factory=list)


def rounded(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """As float32 where NumPy has no such type."""
    if dtype == "bfloat16":
        bits = numbers.astype(np.float32).view(np.uint32)
        return (bits & 0xFFFF0000).view(np.float32)
    return numbers.astype(dtype)


def random_levels(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Heights and widths, starts, and whether these are the usual ones."""
    shapes = random.integers(1, 13, (count, 2))
    shapes[random.random(count) < 0.05, 0] = 0
    order = random.permutation(count) if random.random() < 0.3 else np.arange(count)
    sizes = shapes.prod(1)
    starts = np.zeros(count, np.int64)
    starts[order] = sizes[order].cumsum() - sizes[order]
    return shapes, starts, bool((starts == sizes.cumsum() - sizes).all())


def random_sizes(random: np.random.Generator) -> tuple[int, int, int, int]:
    # An empty call is worth a test now and then, not every time a size may be 0.
    n, q = (int(random.choice(choices)) for choices in ([1, 1, 2, 3], [1, 1, 2, 5, 17, 64, 300]))
    if random.random() < 0.05:
        n, q = (0, q) if random.random() < 0.5 else (n, 0)
    m = int(random.choice([1, 1, 2, 3, 8]))
    d = int(random.choice([1, 2, 3, 4, 7, 8, 16, 17, 32, 33, 64]))
    return n, q, m, min(d, 16) if q > 64 else d


def random_case(seed: int) -> Case:
    random = np.random.default_rng(seed)
    is_projected = random.random() < 0.5
    domain, name, apart = GIVEN[random.integers(len(GIVEN))]
    if is_projected:
        domain, name, apart = "fourtap", "MSDeformAttnFromProjections", False
    dtype = str(random.choice(list(ROUNDING)))
    names = PROJECTIONS if is_projected else MSDA
    dtypes = {one: str(random.choice(["float32", dtype])) for one in names[3:]}
    dtypes |= {one: str(random.choice(["int32", "int64"])) for one in names[1:3]}
    dtypes |= {"value": dtype, "value_mask": "bool"}
    count = 0 if random.random() < 0.05 else int(random.integers(1, 6))
    absent = set()
    if domain == "fourtap" and random.random() < 0.5:
        absent.add("level_start_index")
    case = Case(domain, name, dtype, {}, absent, dtypes)
    make = projected(random, case, count) if is_projected else given(random, case)
    for _ in range(random.integers(1, 4)):
        shapes, starts, are_usual = random_levels(random, count)
        while "level_start_index" in absent and not are_usual:
            shapes, starts, are_usual = random_levels(random, count)
        n, q, m, d = random_sizes(random)
        value = rounded(random.uniform(-1, 1, (n, int(shapes.prod(1).sum()), m, d)), dtype)
        feed = {"value": value, "spatial_shapes": shapes, "level_start_index": starts}
        out, most = make(feed, n, q, m)
        case.feeds.append({one: feed[one] for one in names if one in feed and one not in absent})
        case.expected.append((out if apart else out.reshape(n, q, m * d), most))
    return case


def given(random: np.random.Generator, case: Case):
    if random.random() < 0.5:
        case.attributes["im2col_step"] = 64

    def make(feed: dict[str, np.ndarray], n: int, q: int, m: int) -> tuple[np.ndarray, float]:
        value, shapes = feed["value"], feed["spatial_shapes"]
        p = 0 if random.random() < 0.05 else int(random.choice([1, 2, 3, 4, 8, 17]))
        locations = random.uniform(-0.3, 1.3, (n, q, m, len(shapes), p, 2))
        locations[random.random(locations.shape) < 0.02] = np.nan
        feed["sampling_locations"] = rounded(locations, case.dtypes["sampling_locations"])
        weights = random.uniform(-1, 1, (n, q, m, len(shapes), p))
        feed["attention_weights"] = rounded(weights, case.dtypes["attention_weights"])
        numbers = [feed[one].astype(np.float64) for one in ("sampling_locations", "attention_weights")]
        # One that is not a number takes no part.
        numbers[0] = np.where(np.isnan(numbers[0]).any(-1, keepdims=True), -9, numbers[0])
        places = given_places(*numbers, shapes)
        out = attend(value.astype(np.float64), shapes, feed["level_start_index"], places, q)
        return out, max((abs(weights).sum(3).max(initial=0) for *_, weights in places), default=0) * len(shapes)

    return make


def projected(random: np.random.Generator, case: Case, count: int):
    nearest, boxes, masked = (random.random() < part for part in (0.3, 0.5, 0.5))
    if nearest or random.random() < 0.3:
        case.attributes["sampling"] = "nearest" if nearest else "bilinear"
    points = [int(random.integers(0, 9))] * count
    if random.random() < 0.4 and count:
        points = random.integers(0, 9, count).tolist()
        case.attributes["points_per_level"] = points
    elif random.random() < 0.3 and count:
        case.attributes["points_per_level"] = points[:1]
    box_scale = None
    if boxes and count and random.random() < 0.5:
        listed = random.random() < 0.5
        scales = random.uniform(-0.3, 0.3, count if listed else 1).astype(np.float32).tolist()
        case.attributes["box_scale"] = scales
        box_scale = scales if listed else scales * count
    if not masked:
        case.absent.add("value_mask")

    def make(feed: dict[str, np.ndarray], n: int, q: int, m: int) -> tuple[np.ndarray, float]:
        value, shapes = feed["value"], feed["spatial_shapes"]
        k = sum(points)
        axes = [1 if random.random() < 0.3 else size for size in (n, q, count)]
        if random.random() < 0.5:
            most = points[0] if len(set(points)) == 1 else 1
            axes.append(int(random.choice([turns for turns in range(1, most + 1) if most % turns == 0] or [1])))
        references = random.uniform(-0.1, 1.1, (*axes, 4 if boxes else 2))
        feed["reference_points"] = rounded(references, case.dtypes["reference_points"])
        offsets = random.uniform(-3, 3, (n, q, m, k, 2))
        feed["sampling_offsets"] = rounded(offsets, case.dtypes["sampling_offsets"])
        logits = random.uniform(-4, 4, (n, q, m, k))
        feed["attention_logits"] = rounded(logits, case.dtypes["attention_logits"])

        def places() -> list[tuple]:
            numbers = [
                feed[one].astype(np.float64) for one in ("reference_points", "sampling_offsets", "attention_logits")
            ]
            return projected_places(*numbers, shapes, points, box_scale)

        if nearest and k:
            # In other arithmetic the nearest pixel might be another one: such samples get no weight.
            near = [(abs(x - np.round(x)) < BORDER) | (abs(y - np.round(y)) < BORDER) for x, y, _ in places()]
            feed["attention_logits"][np.concatenate(near, -1)] = -1e4
            # Without another sample the softmax gives all of it to one of these.
            feed["attention_logits"][(feed["attention_logits"] == -1e4).all(-1)] = np.nan
        numbers = value.astype(np.float64)
        if masked:
            # Any byte but 0 is true.
            mask = random.integers(1, 256, value.shape[:2])
            mask[random.random(mask.shape) < random.random()] = 0
            feed["value_mask"] = mask.astype(np.uint8).view(bool)
            numbers[mask != 0] = 0
        found = places()
        return attend(numbers, shapes, feed["level_start_index"], found, q, nearest=nearest), 1.0

    return make


def graph_of(random: np.random.Generator, library: Path, case: Case):
    """A session of one node. What is the same in all runs may be an initialiser."""
    order = PROJECTIONS if "FromProjections" in case.name else MSDA
    names = ["" if one in case.absent else one for one in order]
    while not names[-1]:
        # An input at the end may be left out as an empty name, or not be named at all.
        if random.random() < 0.5:
            break
        names.pop()
    inputs, nodes, initialisers = [], [], []
    for place, one in enumerate(names):
        if not one:
            continue
        array = case.feeds[0][one]
        dtype = case.dtypes[one]
        if dtype == "bfloat16":
            nodes.append(helper.make_node("Cast", [one], [f"{one}_cast"], to=TensorProto.BFLOAT16))
            names[place] = f"{one}_cast"
        array_type = TYPES["float32" if dtype == "bfloat16" else dtype]
        if len(case.feeds) == 1 and array.size and one != "value" and random.random() < 0.2:
            whole = array != 0 if dtype == "bool" else array.astype("float32" if dtype == "bfloat16" else dtype)
            initialisers.append(numpy_helper.from_array(whole, one))
        else:
            inputs.append(helper.make_tensor_value_info(one, array_type, None))
    result = "narrow" if case.dtype == "bfloat16" else "out"
    nodes.append(helper.make_node(case.name, names, [result], domain=case.domain, **case.attributes))
    if case.dtype == "bfloat16":
        nodes.append(helper.make_node("Cast", ["narrow"], ["out"], to=TensorProto.FLOAT))
    out = helper.make_tensor_value_info("out", TYPES["float32" if case.dtype == "bfloat16" else case.dtype], None)
    # ONNX Runtime 1.17 infers no type of a result where an optional input is left out.
    between = [helper.make_tensor_value_info("narrow", TensorProto.BFLOAT16, None)] if result == "narrow" else []
    threads = int(random.integers(0, 4))
    made = session(
        library, nodes, inputs, [out], case.domain, threads=threads, initializer=initialisers, value_info=between
    )
    return made, {one.name for one in inputs}


def check(library: Path, seed: int) -> None:
    case = random_case(seed)
    made, names = graph_of(np.random.default_rng(seed + 2**32), library, case)
    for feed, (expected, most) in zip(case.feeds, case.expected, strict=True):
        given = {
            one: array if case.dtypes[one] in ("bfloat16", "bool") else array.astype(case.dtypes[one])
            for one, array in feed.items()
            if one in names
        }
        (found,) = made.run(None, given)
        assert found.shape == expected.shape
        rounding, of_sums = ROUNDING[case.dtype]
        greatest = abs(expected[np.isfinite(expected)]).max(initial=0)
        allowed = rounding * greatest + of_sums * max(most, 1)
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=allowed)


def test_random_nodes_agree_with_the_formula(library: Path) -> None:
    failures = []
    for seed in range(cases()):
        try:
            check(library, seed)
        except Exception as error:
            case = random_case(seed)
            failures.append(f"seed {seed}: {case.name} {case.attributes}, {case.dtypes}: {error}")
    assert not failures, f"{len(failures)} mismatches:\n" + "\n".join(failures[:20])
