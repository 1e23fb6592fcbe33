"""Where the tests run: on a CUDA device if there is one, else on the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before anything imports transformers: models are made from a configuration, nothing is fetched.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long, so it is left to `cargo xtask test --all`")


@pytest.fixture(scope="session")
def device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    # Where a GPU is what the run is about, a run without one proves nothing.
    assert not os.environ.get("FOURTAP_REQUIRE_CUDA"), "expected a CUDA device, found none"
    return "cpu"


@pytest.fixture(autouse=True)
def same_numbers() -> Iterator[None]:
    torch.manual_seed(0)
    # Comparisons within 1e-4 are about our operator, not about how the matrix products beside it are rounded.
    torch.set_float32_matmul_precision("highest")
    yield
    torch.use_deterministic_algorithms(False)
