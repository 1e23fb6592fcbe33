"""Sessions on a CUDA device give what sessions on the CPU give. Skipped where there is no CUDA."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from conftest import Node, msda_feed, projections_feed

CUDA = "CUDAExecutionProvider"


@pytest.fixture(autouse=True)
def device(library: Path) -> None:
    if CUDA not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDA")
    node = Node(library, "MSDeformAttn", "fourtap", msda_feed(), provider=CUDA)
    if CUDA not in node.session.get_providers():
        pytest.skip("ONNX Runtime found no CUDA device")


@pytest.mark.parametrize(
    ("domain", "name"),
    [
        ("fourtap", "MSDeformAttn"),
        ("mmdeploy", "MMCVMultiScaleDeformableAttention"),
        ("TRT", "MultiscaleDeformableAttnPlugin_TRT"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_nodes(library: Path, domain: str, name: str, dtype: type) -> None:
    feed = msda_feed(q=300, m=4, d=32)
    feed["value"] = feed["value"].astype(dtype)
    found = Node(library, name, domain, feed, provider=CUDA).run()
    expected = Node(library, name, domain, feed).run()
    assert found.shape == expected.shape and found.dtype == dtype
    tolerance = 1e-5 if dtype == np.float32 else 5e-3
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_from_projections(library: Path) -> None:
    feed = projections_feed(q=300, m=4, d=32)
    feed["value_mask"] = np.random.default_rng(1).random((2, 49)) < 0.2
    found = Node(library, "MSDeformAttnFromProjections", "fourtap", feed, provider=CUDA).run()
    expected = Node(library, "MSDeformAttnFromProjections", "fourtap", feed).run()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_threads_share_a_session(library: Path) -> None:
    on_cpu, on_cuda = (
        Node(library, "MSDeformAttn", "fourtap", msda_feed(), provider=provider)
        for provider in ["CPUExecutionProvider", CUDA]
    )

    def work(seed: int) -> None:
        for round in range(20):
            feed = msda_feed(100 * seed + round, q=1 + 50 * seed)
            np.testing.assert_allclose(on_cuda.run(**feed), on_cpu.run(**feed), rtol=1e-5, atol=1e-5)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


def test_errors_have_our_words(library: Path) -> None:
    node = Node(library, "MSDeformAttn", "fourtap", msda_feed(), provider=CUDA)
    with pytest.raises(Exception, match="fourtap: level_start_index: expected shape"):
        node.run(level_start_index=np.array([0]))
