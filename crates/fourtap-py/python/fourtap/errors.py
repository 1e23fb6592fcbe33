"""What can go wrong. Every message names the tensor, what was expected and what was found."""

__all__ = ["CudaError", "DTypeError", "Error", "InputError", "OutOfMemoryError", "UnsupportedError"]


class Error(Exception):
    """Base of all exceptions of this package. Whatever was to be computed, nothing was written."""


class InputError(Error, ValueError):
    """Tensors that do not fit each other or the operator: shapes, devices, levels, overlaps."""


class DTypeError(Error, TypeError):
    """Elements of a type that the operator does not take, or not beside the others."""


class UnsupportedError(Error, NotImplementedError):
    """Something sensible that is not there: second derivatives, say."""


class CudaError(Error, RuntimeError):
    """The CUDA driver, or the compilation of a kernel, failed. ``python -m fourtap doctor`` tells more."""


class OutOfMemoryError(Error, MemoryError):
    """Scratch memory could not be had."""
