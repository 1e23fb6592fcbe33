"""The routes of a call with PyTorch tensors."""

from __future__ import annotations

import enum

__all__ = ["Route"]


class Route(enum.Enum):
    """How to proceed where the compiled part cannot compute the result directly."""

    REGISTERED = "call the registered operator"
    """A tensor is not plain memory (a fake one, a subclass, one that a transform wraps), or something intercepts
    operator calls: a mode, a tracer, forward-mode differentiation."""

    AUTOCAST = "cast the tensors first"
    """Autocast may change dtypes."""

    AUTOGRAD = "let autograd record the call"
    """A tensor needs a gradient."""

    BROADCAST = "broadcast the tensors first"
    """Of dense attention: their leading axes differ, or cannot be seen as one."""
