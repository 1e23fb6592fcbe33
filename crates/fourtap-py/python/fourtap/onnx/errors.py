"""Why a model was not rewritten."""

from __future__ import annotations

from fourtap.errors import Error

__all__ = ["PatternError", "VerificationError"]


class PatternError(Error, ValueError):
    """A model without deformable attention, or with none that the node can compute. Nothing was written."""


class VerificationError(Error, RuntimeError):
    """A rewritten model that does not compute what the model did, or could not be compared. Nothing was written."""
