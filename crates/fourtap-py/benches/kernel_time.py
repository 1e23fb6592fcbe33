"""How long the GPU itself is busy with a step, by PyTorch's profiler: the wall time of small models is the host's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

# Of deformable attention's kernels: ours begin with the first; the stock models sample by PyTorch's grid_sample.
OURS, STOCK_SAMPLING = "msda_", "grid_sampler"


@dataclass(frozen=True)
class KernelTime:
    """Microseconds of kernels, copies and fills of one step."""

    total: float
    sampling: float

    @classmethod
    def of(cls, kernels: Iterable[tuple[str, float]]) -> KernelTime:
        """From names and microseconds."""
        listed = list(kernels)
        sampling = [spent for name, spent in listed if name.startswith(OURS) or STOCK_SAMPLING in name]
        return cls(sum(spent for _, spent in listed), sum(sampling))

    def fields(self) -> dict[str, float]:
        """The fields of a record."""
        return {"kernels_us": self.total, "sampling_kernels_us": self.sampling}

    def words(self) -> str:
        """Milliseconds, as printed."""
        return f"{self.total / 1e3:.2f} ({self.sampling / 1e3:.2f})"


def of_events(events: Iterable[FunctionEvent]) -> Iterator[tuple[str, float]]:
    """Names and microseconds of what ran on the GPU; ranges that somebody marked are no work of their own."""
    for event in events:
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            yield event.name, event.self_device_time_total


def kernel_time(step: Callable[[], object], steps: int) -> KernelTime:
    """Of a step on the GPU, the mean of so many; it has run before."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    return KernelTime.of((name, spent / steps) for name, spent in of_events(found.events()))
