"""Nodes run on the threads of their session, also in a forked process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and counts threads in /proc")

HEAD = """
import os, pathlib, signal, time
import numpy as np
from conftest import Node, msda_feed, projections_feed

library = pathlib.Path(os.environ["FOURTAP_ONNX_LIBRARY"])
feeds = {
    "MSDeformAttn": msda_feed(q=2000, m=8, d=32),
    "MSDeformAttnFromProjections": projections_feed(q=2000, m=8, d=32),
}

def node(name, threads):
    config = {"session.intra_op.allow_spinning": "0"}  # only who works takes time of a processor
    return Node(library, name, "fourtap", feeds[name], threads=threads, config=config)
"""


def run(program: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", HEAD + program]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout


def test_a_forked_process_has_sessions() -> None:
    program = """
for name in feeds:
    expected = node(name, 1).run()
    for threads in (1, 2):
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # what hangs ends, and is seen
            os._exit(0 if np.array_equal(node(name, threads).run(), expected) else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(program).split() == ["0"] * 4


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["MSDeformAttn", "MSDeformAttnFromProjections"])
def test_a_session_s_number_of_threads_is_that_of_a_node(name: str, threads: int) -> None:
    program = f"""
def times():
    found = {{}}
    for task in pathlib.Path("/proc/self/task").iterdir():
        user, system = (task / "stat").read_text().rpartition(")")[2].split()[11:13]
        found[task.name] = int(user) + int(system)
    return found

one = node({name!r}, {threads})
before = times()
until = time.monotonic() + 60
while time.monotonic() < until:
    one.run()
    spent = sorted(time - before.get(task, 0) for task, time in times().items())
    # In hundredths of a second.
    if spent[-{threads}] >= 20:
        break
print(len([time for time in spent if time >= 5]), set(times()) == set(before))
"""
    # Nodes start no threads, and all those of the session work.
    assert run(program).split() == [str(threads), "True"]
