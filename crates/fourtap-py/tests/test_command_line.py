"""The command line that comes with the package."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import fourtap


def run(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fourtap", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


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


def test_cache_and_bake_are_there(tmp_path: Path) -> None:
    environment = {**os.environ, "FOURTAP_CACHE_DIR": str(tmp_path)}
    listed = run("cache", "list", "--json", environment=environment)
    assert listed.returncode == 0, listed.stderr
    assert json.loads(listed.stdout)["count"] == 0
    sizes = ("--channels", "32", "--heads", "8", "--levels", "4", "--points", "4")
    # Refused before a compiler is looked for, so that this needs none.
    refused = run("bake", "--arch", "sm_90a", *sizes, "-o", str(tmp_path))
    assert refused.returncode == 1 and "expected a file, found a folder" in refused.stderr


def test_help_and_mistakes_end_as_on_the_command_line() -> None:
    shown = run("--help").stdout
    assert "Usage: fourtap" in shown
    commands = shown.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in commands] == ["doctor", "cache", "bake", "help"]
    wrong = run("cahce")
    assert wrong.returncode == 2 and "cahce" in wrong.stderr and "'cache'" in wrong.stderr and wrong.stdout == ""


def test_commands_of_the_lab_end_in_a_usage_error_that_says_where_they_are() -> None:
    for command in ("bench", "compare", "check", "run"):
        done = run(command, "--json", "-")
        assert done.returncode == 2 and done.stdout == "", done
        (where,) = [line for line in done.stderr.splitlines() if "the lab's `fourtap` binary" in line]
        assert "cargo install --path crates/fourtap-lab" in where


def test_an_interrupt_ends_it_at_once(tmp_path: Path) -> None:
    # `doctor` waits for what a pack says for as long as somebody may write to it.
    pack = tmp_path / "pack"
    os.mkfifo(pack)
    environment = {**os.environ, "FOURTAP_PACK": str(pack)}
    command = [sys.executable, "-m", "fourtap", "doctor"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    writer = open_once_read(pack)
    try:
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == -signal.SIGINT
    finally:
        os.close(writer)
        process.kill()


def open_once_read(pipe: Path) -> int:
    """Open a named pipe for writing, as soon as another process reads it."""
    end = time.monotonic() + 60
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > end:
                raise
            time.sleep(0.05)


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
