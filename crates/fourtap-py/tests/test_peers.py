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


def records_beside(folder: pathlib.Path, factor: str, points: str = "local") -> tuple[list[dict[str, Any]], str]:
    """Records and printed lines where msda-triton is installed and computes this multiple of the right result."""
    (folder / "msda_triton.py").write_text(f"FACTOR = {factor}\n{STAND_IN}")
    file = folder / "records.jsonl"
    options = ["--only", "fourtap,pytorch,msda-triton,mmcv", "--device", "cpu", "--dtype", "f32", "--rounds", "1"]
    options += ["--points", points]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, str(SCRIPT), "tiny", *options, "--json", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mmcv: not here: ModuleNotFoundError" in done.stdout
    return [json.loads(line) for line in file.read_text().splitlines()], done.stdout


@pytest.mark.parametrize(
    ("factor", "verdict"), [("1", "ok"), ("1.01", "inaccurate"), ("1.5", "wrong"), ("float('nan')", "wrong")]
)
def test_a_rival_is_judged_by_what_it_computes(tmp_path: pathlib.Path, factor: str, verdict: str) -> None:
    records, _ = records_beside(tmp_path, factor)
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


def test_right_results_are_accepted_wherever_points_lie_and_a_table_says_how_long_they_took(
    tmp_path: pathlib.Path,
) -> None:
    records, printed = records_beside(tmp_path, "1", "all")
    assert {record["verdict"] for record in records} == {"ok"}
    points = list(dict.fromkeys(record["distribution"] for record in records))
    assert points[0] == "uniform"
    assert points[-1] == "nan-gradient"
    _, table = printed.split("by where points lie", 1)
    heading, *rows = table.splitlines()[1:]
    assert heading.split("  ")[-2:] == ["pytorch / fourtap", "msda-triton / fourtap"]
    assert [row.split()[2] for row in rows] == points
    assert rows[0].split()[4] == "1.00"
