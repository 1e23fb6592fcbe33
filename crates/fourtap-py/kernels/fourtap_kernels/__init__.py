"""Compiled CUDA kernels of fourtap, which finds them by itself: there is nothing to import."""
