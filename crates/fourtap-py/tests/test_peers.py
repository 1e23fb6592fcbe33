"""The comparison with other implementations, with stand-ins for two of them."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")
SCRIPT = pathlib.Path(__file__).parents[1] / "benches" / "peers.py"
# PyTorch's composition under a rival's name; FACTOR is 1 where the rival computes the right thing.
STAND_IN = """
from measuring import grid_sample_attention

def multiscale_deformable_attention(img, img_shapes, sampling_points, attention_weights, padding_mode, align_corners):
    levels = [tuple(shape) for shape in img_shapes.tolist()]
    out = grid_sample_attention(img, levels, sampling_points, attention_weights) * FACTOR
    return out.unflatten(-1, (img.shape[2], -1))
"""


def records_beside(folder: pathlib.Path, factor: str) -> list[dict[str, Any]]:
    """What the script finds where msda-triton is installed and computes this multiple of the right result."""
    (folder / "msda_triton.py").write_text(f"FACTOR = {factor}\n{STAND_IN}")
    file = folder / "records.jsonl"
    options = ["--only", "fourtap,pytorch,msda-triton,mmcv", "--device", "cpu", "--dtype", "f32", "--rounds", "1"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, str(SCRIPT), "tiny", *options, "--json", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mmcv: not here: ModuleNotFoundError" in done.stdout
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("factor", "verdict"), [("1", "ok"), ("1.01", "inaccurate"), ("1.5", "wrong"), ("float('nan')", "wrong")]
)
def test_a_rival_is_judged_by_what_it_computes(tmp_path: pathlib.Path, factor: str, verdict: str) -> None:
    records = records_beside(tmp_path, factor)
    verdicts = {(record["implementation"], record["direction"]): record["verdict"] for record in records}
    assert verdicts == {
        ("fourtap", "forward"): "ok",
        ("fourtap", "backward"): "ok",
        ("pytorch", "forward"): "ok",
        ("pytorch", "backward"): "ok",
        ("msda-triton", "forward"): verdict,
        ("msda-triton", "backward"): verdict,
    }
    assert all(record["milliseconds"] > 0 for record in records)
