//! Problems too large for the oracle, every element against the kernel of one thread per channel, which the oracle has
//! checked: rows in several turns, in strips, side by side.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Plain;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{self, Levels, Sizes};
use fourtap::{Backend, Element, bf16, f16};

use crate::gpu;
use crate::tensors::{OnDevice, Problem};

/// Largest distance, over the largest magnitude, of two kernels' results.
pub fn distance<T: Element>(fast: &[T], plain: &[T]) -> f64 {
    let numbers = |result: &[T]| result.iter().map(|x| x.to_f64()).collect::<Vec<_>>();
    let (fast, plain) = (numbers(fast), numbers(plain));
    let largest = plain.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    // NaN is the farthest of all.
    let distance = |(a, b): (&f64, &f64)| match (a - b).abs() {
        apart if apart.is_nan() => f64::INFINITY,
        apart => apart,
    };
    fast.iter().zip(&plain).map(distance).fold(0.0, f64::max) / largest
}

/// That of a kernel's results from those of one thread per channel.
fn distance_of<T: Element + Plain>(
    cuda: &Cuda,
    levels: &Levels,
    sizes: Sizes,
    kernel: KernelChoice,
) -> f64 {
    let problem = Problem::new::<T>(cuda, sizes);
    let [fast, plain] = [kernel, KernelChoice::Channel].map(|wanted| {
        let mut out = OnDevice::poisoned(cuda, T::DTYPE, &sizes.out());
        let backend = Backend::Cuda(cuda.with_msda(wanted));
        msda::forward(&backend, problem.inputs(levels), out.view_mut()).unwrap();
        gpu::wait(cuda);
        out.buffer.to_vec::<T>().unwrap()
    });
    distance(&fast, &plain)
}

#[test]
#[ignore = "needs a CUDA device"]
fn large_problems_agree_with_the_baseline_kernel_in_every_element() {
    let cuda = gpu::device();
    let pyramid = Levels::packed(&[(50, 83), (25, 42), (13, 21), (7, 1)]).unwrap();
    let pixels = pyramid.pixels();
    let sizes = Sizes {
        images: 5,
        pixels,
        heads: 8,
        channels: 32,
        queries: pixels,
        levels: 4,
        points: 4,
    };
    let several = [
        ("queries are pixels", sizes),
        (
            "linear",
            Sizes {
                queries: pixels - 1,
                ..sizes
            },
        ),
        (
            "one head",
            Sizes {
                images: 31,
                heads: 1,
                points: 8,
                queries: 7001,
                ..sizes
            },
        ),
        (
            "three heads",
            Sizes {
                images: 7,
                heads: 3,
                points: 2,
                ..sizes
            },
        ),
        (
            "wide",
            Sizes {
                channels: 64,
                points: 8,
                queries: 10_007,
                ..sizes
            },
        ),
        (
            "idle lanes",
            Sizes {
                channels: 48,
                points: 3,
                ..sizes
            },
        ),
        (
            "narrow",
            Sizes {
                channels: 8,
                points: 5,
                ..sizes
            },
        ),
    ];
    for (name, sizes) in several {
        let found = distance_of::<f16>(&cuda, &pyramid, sizes, KernelChoice::Gather);
        assert!(found < 1.5e-3, "{name}, f16: {found:e}");
        let found = distance_of::<f32>(&cuda, &pyramid, sizes, KernelChoice::Gather);
        assert!(found < 2e-6, "{name}, f32: {found:e}");
    }
    // Half of the levels fit into shared memory.
    let steep = Levels::packed(&[(46, 80), (23, 40), (12, 20), (6, 10)]).unwrap();
    for heads in [1, 3] {
        let sizes = Sizes {
            images: 31,
            pixels: steep.pixels(),
            heads,
            points: 8,
            queries: 7001,
            ..sizes
        };
        for kernel in [KernelChoice::Gather, KernelChoice::Matrix] {
            let found = distance_of::<f16>(&cuda, &steep, sizes, kernel);
            assert!(
                found < 1.5e-3,
                "levels kept, {heads} heads, {kernel:?}: {found:e}"
            );
        }
        let found = distance_of::<bf16>(&cuda, &steep, sizes, KernelChoice::Matrix);
        assert!(
            found < 1.2e-2,
            "levels kept, {heads} heads, bf16: {found:e}"
        );
        // Queries in strips, all levels in device memory, one of them a column.
        let sizes = Sizes {
            pixels,
            points: 4,
            queries: pixels,
            ..sizes
        };
        let found = distance_of::<f16>(&cuda, &pyramid, sizes, KernelChoice::Matrix);
        assert!(found < 1.5e-3, "{heads} heads on tensor cores: {found:e}");
    }
    gpu::evidence(
        &cuda,
        "large",
        &["msda_forward_matrix"],
        "6 large problems, every element, f16 and bf16",
    );
    let details = format!(
        "{} large problems, every element, f16 and f32",
        several.len() + 2
    );
    gpu::evidence(&cuda, "large", &["msda_forward_gather"], &details);
}
