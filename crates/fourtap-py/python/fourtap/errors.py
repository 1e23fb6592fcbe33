"""Exceptions. Every message names the tensor, what was expected and what was found."""

__all__ = ["CudaError", "DTypeError", "Error", "InputError", "OutOfMemoryError", "UnsupportedError"]


class Error(Exception):
    """Base of all exceptions of this package. No output was written."""


class InputError(Error, ValueError):
    """Tensors that do not fit each other or the operator: shapes, devices, levels, overlaps."""


class DTypeError(Error, TypeError):
    """A dtype that the operator does not support, or not together with the others."""


class UnsupportedError(Error, NotImplementedError):
    """Something that is not supported, such as second derivatives."""


class CudaError(Error, RuntimeError):
    """The CUDA driver or the compilation of a kernel failed. ``python -m fourtap doctor`` shows more."""


class OutOfMemoryError(Error, MemoryError):
    """Scratch memory could not be allocated."""
