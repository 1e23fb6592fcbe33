"""Imports on first use, which no fork interrupts.

A child forked while another thread imports a module would wait for that import forever: the thread is not there. So a
fork waits until such an import is done. Modules imported this way must not use lazy names while they are imported.
"""

from __future__ import annotations

import importlib
import os
import threading
from types import ModuleType

_importing = threading.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
    )


def import_lazily(name: str) -> ModuleType:
    """Import a module, with no fork meanwhile."""
    with _importing:
        return importlib.import_module(name)
