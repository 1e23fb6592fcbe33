"""Look-alikes of what drop-ins replace: whatever one computes, it computes after ``patch()``, replaced or not."""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import stand_ins
import torch
from compat_mutants import Mutant, mutants
from compat_originals import Call, Original
from torch import Tensor

pytest.importorskip("transformers")

from compat_originals_stand_ins import STAND_INS
from compat_originals_transformers import of_transformers

import fourtap
from fourtap.compat import transformers as compat

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ORIGINALS = {**{family: of_transformers(family) for family in compat.FAMILIES}, **STAND_INS}
# Relative to the largest number of a tensor, in float64; or of all, as some gradients are nothing but rounding.
SAME, OF_ALL = 1e-9, 1e-4
OF_EACH_KIND = 3
# What tensors there are of a call, or None where it fails.
Computed = dict[str, Tensor] | None
# Where fourtap says what does not fit.
REFUSED: dict[str, Tensor] = {}


@pytest.fixture(scope="module")
def counts(request: pytest.FixtureRequest) -> Iterator[defaultdict[str, Counter[str]]]:
    """Outcomes by kinds of mutants, of all tests together."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    yield found
    lines = [*sorted(found.items()), ("all", sum(found.values(), Counter()))]
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        for kind, outcomes in lines:
            print(f"\n{kind}: {', '.join(f'{count} {what}' for what, count in sorted(outcomes.items()))}", end="")
        print()


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for name in list(sys.modules):
        if name.endswith(".modeling_mutant"):
            del sys.modules[name]


def computed(call: Call) -> Computed:
    """Results and gradients by name."""
    try:
        with torch.no_grad():
            found = named("without gradients", call.run())
        results = named("result", call.run())
        total = sum((tensor * weights_of(tensor)).sum() for tensor in results.values() if tensor.requires_grad)
        gradients: Any = [None] * len(call.inputs)
        if isinstance(total, Tensor):
            gradients = torch.autograd.grad(total, list(call.inputs.values()), allow_unused=True)
    except fourtap.InputError:
        return REFUSED
    # Mutants fail in all ways.
    except Exception:
        return None
    for (name, tensor), gradient in zip(call.inputs.items(), gradients, strict=True):
        found[f"gradient by {name}"] = torch.zeros_like(tensor) if gradient is None else gradient
    return {**found, **{name: tensor.detach() for name, tensor in results.items()}}


def named(words: str, results: Any) -> dict[str, Tensor]:
    every = results if isinstance(results, tuple | list) else [results]
    return {f"{words} {at}": tensor for at, tensor in enumerate(every) if isinstance(tensor, Tensor)}


def weights_of(tensor: Tensor) -> Tensor:
    return (torch.arange(tensor.numel(), dtype=torch.float64) * 0.9).sin().reshape(tensor.shape)


def off(found: Computed, expected: Computed) -> float:
    """The largest difference, relative to the largest number of its tensor; infinite where only one is there."""
    if found is None or expected is None or found.keys() != expected.keys():
        return 0.0 if found is expected else float("inf")
    worst = 0.0
    most = max((size(tensor) for tensor in expected.values()), default=0.0)
    for name, tensor in expected.items():
        other = found[name]
        if other.shape != tensor.shape or not torch.equal(other.isfinite(), tensor.isfinite()):
            return float("inf")
        difference = size(other - tensor)
        worst = max(worst, difference and difference / max(size(tensor), OF_ALL * most))
    return worst


def size(tensor: Tensor) -> float:
    return tensor.nan_to_num(0.0, 0.0, 0.0).abs().max().item()


def changes(after: list[Computed], before: list[Computed]) -> str:
    """What of that which could be computed before is something else now, if anything is."""
    pairs = [(one, other) for one, other in zip(after, before, strict=True) if other is not None]
    changed = [one for one, other in pairs if off(one, other) > SAME]
    if all(one is REFUSED for one in changed):
        return "refused" if changed else ""
    return "changed"


def results(original: Original, modules: Any) -> list[Computed]:
    return [computed(call) for call in original.calls(modules[original.name])]


def outcome(original: Original, mutant: Mutant, expected: list[Computed], every: list[str]) -> str:
    """What became of a mutant."""
    try:
        modules = original.load(mutant.source)
        before = results(original, modules)
    except Exception:
        return "does not run"
    if all(one is None for one in before):
        return "does not run"
    differs = any(off(one, other) > SAME for one, other in zip(before, expected, strict=True))
    try:
        names = original.patch(modules, False)
        after = results(original, modules)
    finally:
        original.unpatch()
    return (
        changes(after, before) or f"{'other' if differs else 'same'}, {'replaced' if names == every else 'left alone'}"
    )


def some_of_each_kind(source: str, count: int) -> list[Mutant]:
    kinds = defaultdict(list)
    for mutant in mutants(source):
        kinds[mutant.kind].append(mutant)
    choices = random.Random(source)
    return [one for those in kinds.values() for one in choices.sample(those, min(count, len(those)))]


def check(name: str, count: int, counts: defaultdict[str, Counter[str]], folder: Path) -> Counter[str]:
    original = ORIGINALS[name]
    with stand_ins.installed(original.files, folder) if original.files else nullcontext():
        modules = original.load(original.source)
        expected = results(original, modules)
        every = original.patch(modules, True)
        patched = results(original, modules)
        original.unpatch()
        assert any(one.startswith(original.name) for one in every) and not changes(patched, expected)
        found: Counter[str] = Counter()
        changed = []
        for mutant in some_of_each_kind(original.source, count):
            what = outcome(original, mutant, expected, every)
            if what == "changed":
                changed.append(f"{mutant.kind}: {mutant.what}")
            found[what] += 1
            counts[mutant.kind][what] += 1
    assert not changed, "\n".join(changed)
    return found


@pytest.mark.parametrize("name", ["rt_detr", "rtdetr"])
def test_a_few_look_alikes_compute_what_they_did(
    name: str, counts: defaultdict[str, Counter[str]], tmp_path: Path
) -> None:
    found = check(name, 1, counts, tmp_path)
    assert found["other, left alone"] >= 4, found


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ORIGINALS))
def test_look_alikes_compute_what_they_did(name: str, counts: defaultdict[str, Counter[str]], tmp_path: Path) -> None:
    found = check(name, OF_EACH_KIND, counts, tmp_path)
    # More than 300 of all projects together.
    assert found.total() - found["does not run"] >= 13 and found["other, left alone"] >= 8, found
