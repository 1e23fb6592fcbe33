"""Sessions of ONNX Runtime, with and without our library, and what ran in them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import fourtap.onnx  # noqa: E402

OURS = ("MSDeformAttn", "MSDeformAttnFromProjections", "MultiscaleDeformableAttnPlugin_TRT")


class Session:
    """A session on the CPU, which notes the nodes that run."""

    def __init__(self, file: Path, *, with_library: bool) -> None:
        options = onnxruntime.SessionOptions()
        # What goes wrong is raised; nothing is to be printed too.
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(file.with_suffix(""))
        if with_library:
            options.register_custom_ops_library(fourtap.onnx.library_path())
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(self, *operands: Tensor) -> list[Tensor]:
        names = [given.name for given in self._session.get_inputs()]
        found = self._session.run(None, dict(zip(names, (one.detach().numpy() for one in operands), strict=True)))
        return [torch.from_numpy(one) for one in found]

    def named(self, **operands: Tensor) -> list[Tensor]:
        """As :meth:`run`; what the model has no use for is left out, as exporters do."""
        return self.run(*(operands[given.name] for given in self._session.get_inputs()))

    def nodes(self) -> Counter[str]:
        """How often a node of each kind has run. Ends the session's notes."""
        events = json.loads(Path(self._session.end_profiling()).read_text())
        nodes = (event["args"]["op_name"] for event in events if "op_name" in event.get("args", {}))
        return Counter(nodes)


def ours(session: Session) -> int:
    """How often our nodes have run; GridSample must not have, or the other way round."""
    nodes = session.nodes()
    count = sum(nodes[name] for name in OURS)
    assert bool(count) != bool(nodes["GridSample"]), nodes
    return count


class Outputs(nn.Module):
    """A model of transformers that takes tensors in an order and returns the tensors that detection is about."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        found: Any = self.model(**dict(zip(self.names, given, strict=True)))
        wanted = ("logits", "boxes", "queries")
        return tuple(
            tensor for name, tensor in found.items() if any(word in name for word in wanted) and _is_real(tensor)
        )


def assert_same_queries(found: list[Tensor], expected: Any, tolerance: float = 1e-4) -> None:
    """As :func:`assert_close`, in any order: rounded otherwise, queries that score alike come in another one."""
    axes = expected[0].shape[:-1]
    rows, others = (torch.cat([one for one in outputs if one.shape[:-1] == axes], -1) for outputs in (found, expected))
    off = (rows.unsqueeze(2) - others.unsqueeze(1)).abs().amax(-1)
    scale = others.abs().max().item()
    for worst in (off.amin(1).max().item(), off.amin(2).max().item()):
        assert worst <= tolerance * scale, f"off by {worst}, scale {scale}"


def _is_real(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_floating_point()


def assert_close(found: list[Tensor], expected: Any, tolerance: float = 1e-4) -> None:
    """Every output, relative to the largest number in it; infinite where the other is."""
    assert len(found) == len(expected)
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        infinite = other.isinf()
        assert torch.equal(one.isinf(), infinite), at
        off = (one.masked_fill(infinite, 0) - other.masked_fill(infinite, 0)).abs().max().item()
        scale = max(other.masked_fill(infinite, 0).abs().max().item(), 1e-3)
        assert off <= tolerance * scale, f"output {at}: off by {off}, scale {scale}"
