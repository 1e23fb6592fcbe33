"""What the comparison of whole models says of the time of kernels."""

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "benches"))

from kernel_time import KernelTime, of_events  # noqa: E402

# As PyTorch's profiler calls them.
STOCK = {
    "void at::native::(anonymous namespace)::grid_sampler_2d_kernel<c10::Half, int>(...)": 30.0,
    "void at::native::(anonymous namespace)::grid_sampler_2d_backward_kernel<float>(...)": 500.0,
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>>(...)": 20.0,
    "Memset (Device)": 2.0,
}
OURS = {
    "msda_forward_gather": 8.0,
    "msda_projected_statistics": 3.0,
    "msda_backward_value_matrix": 48.0,
    "dense_forward_mma": 9.0,
    "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n": 11.0,
}


@pytest.mark.parametrize(("kernels", "total", "sampling"), [(STOCK, 552.0, 530.0), (OURS, 79.0, 59.0), ({}, 0.0, 0.0)])
def test_kernels_of_sampling_are_told_from_others(kernels: dict[str, float], total: float, sampling: float) -> None:
    found = KernelTime.of(kernels.items())
    assert found == KernelTime(total, sampling)
    assert found.fields() == {"kernels_us": total, "sampling_kernels_us": sampling}
    assert found.words() == f"{total / 1e3:.2f} ({sampling / 1e3:.2f})"


def test_what_runs_on_the_host_is_not_counted() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        torch.nn.functional.grid_sample(torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 1, 2), align_corners=False)
    events = found.events()
    assert any("grid_sampler" in event.name for event in events)
    assert list(of_events(events)) == []
