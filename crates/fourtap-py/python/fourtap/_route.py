"""The ways of a call with PyTorch tensors."""

from __future__ import annotations

import enum

__all__ = ["Route"]


class Route(enum.Enum):
    """What is to be done where the compiled part cannot simply compute a result."""

    REGISTERED = "call the registered operator"
    """A tensor is not plain memory (a fake one, a subclass, one that a transform wraps), or somebody watches operators
    being called: a mode, a tracer, forward-mode differentiation."""

    AUTOCAST = "cast the tensors first"
    """Autocast may want other types."""

    AUTOGRAD = "let autograd remember the call"
    """A tensor needs a gradient."""
