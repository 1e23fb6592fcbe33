"""The command line that comes with the package."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time

import fourtap


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fourtap", *words], capture_output=True, text=True, timeout=300)


def test_doctor_gives_the_same_report_as_the_command() -> None:
    report = json.loads(run("doctor", "--json").stdout)
    assert report["version"] == fourtap.__version__
    assert report["self_check"]["mismatches"] == []
    installed = shutil.which("fourtap", path=sysconfig.get_path("scripts")) or shutil.which("fourtap")
    if installed is None:  # run from a folder, not installed
        return
    done = subprocess.run([installed, "doctor", "--json"], capture_output=True, text=True, check=True, timeout=300)
    other = json.loads(done.stdout)
    changing = ("memory_available_bytes", "self_check")
    assert {key: value for key, value in report.items() if key not in changing} == {
        key: value for key, value in other.items() if key not in changing
    }


def test_probes_run_in_processes_of_their_own() -> None:
    done = run("probe", "fma-f32", "--device", "cpu", "--json", "-")
    assert done.returncode == 0, done.stderr
    (record,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert record["name"] == "fma-f32" and record["outcome"] == "measured" and record["rate"] > 0


def test_help_and_mistakes_end_as_on_the_command_line() -> None:
    assert "Usage: fourtap" in run("--help").stdout
    wrong = run("benhc")
    assert wrong.returncode == 2 and "benhc" in wrong.stderr and wrong.stdout == ""
    missing = run("run", "nowhere.safetensors", "-o", "out.safetensors")
    assert missing.returncode not in (0, 101) and "nowhere.safetensors" in missing.stderr


def test_an_interrupt_ends_it_at_once() -> None:
    command = [sys.executable, "-m", "fourtap", "check", "--cases", "10000000"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == -signal.SIGINT


def test_it_starts_without_importing_pytorch() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fourtap", "--version"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert fourtap.__version__ in done.stdout
    assert "torch" not in done.stderr and "numpy" not in done.stderr
