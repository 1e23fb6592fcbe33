"""FOURTAP_CHECK: set, not set, and set to 0."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import torch

import fourtap
from fourtap import _native

HERE = pathlib.Path(__file__).parent


def environment(value: str) -> dict[str, str]:
    return {**os.environ, "FOURTAP_CHECK": value}


def test_what_is_not_finite_is_refused() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", str(HERE / "finite_cases.py")]
    finished = subprocess.run(command, env=environment("1"), capture_output=True, text=True, timeout=600, check=False)
    assert finished.returncode == 0, finished.stdout


@pytest.mark.parametrize("value", ["", "0"])
def test_it_can_be_off(value: str) -> None:
    asked = "from fourtap import _native; import sys; assert 'fourtap._finite' not in sys.modules"
    subprocess.run([sys.executable, "-c", asked], env=environment(value), timeout=300, check=True)


@pytest.mark.skipif(os.environ.get("FOURTAP_CHECK", "") not in ("", "0"), reason="it is set")
def test_without_it_nothing_is_asked(device: str) -> None:
    # As the compiled part has it: not even a wrapper.
    assert type(_native.torch_forward).__name__ == "builtin_function_or_method"
    value, weights = torch.ones(1, 4, 1, 2, device=device), torch.ones(1, 1, 1, 1, 1, device=device)
    nowhere = torch.full((1, 1, 1, 1, 1, 2), torch.nan, device=device)
    assert not fourtap.ms_deform_attn(value, [(2, 2)], nowhere, weights).any()
