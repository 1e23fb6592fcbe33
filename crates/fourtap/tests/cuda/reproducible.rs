//! Results are bitwise reproducible from run to run, and equal to the CPU's for integers on pixel centres.

use fourtap::cuda::driver::Buffer;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{self, CudaLevels, LevelTable, Levels, Sizes};
use fourtap::{Backend, DType, View, ViewMut, bf16, f16};

use crate::gpu;
use crate::tensors::{OnDevice, Problem};

#[test]
#[ignore = "needs a CUDA device"]
fn two_hundred_and_fifty_runs_are_bitwise_equal() {
    let cuda = gpu::device();
    let levels = Levels::packed(&[(40, 50), (20, 25), (1, 1)]).unwrap();
    let sizes = Sizes {
        images: 3,
        pixels: levels.pixels(),
        heads: 8,
        channels: 32,
        queries: 2521,
        levels: 3,
        points: 4,
    };
    fn runs<T: fourtap::Element + fourtap::cuda::driver::Plain>(
        cuda: &fourtap::cuda::Cuda,
        levels: LevelTable<'_>,
        sizes: Sizes,
    ) {
        let problem = Problem::new::<T>(cuda, sizes);
        let run = || {
            let mut out = OnDevice::poisoned(cuda, T::DTYPE, &sizes.out());
            msda::forward(
                &Backend::Cuda(*cuda),
                problem.inputs(levels),
                out.view_mut(),
            )
            .unwrap();
            gpu::wait(cuda);
            out.buffer.to_vec::<u8>().unwrap()
        };
        let first = run();
        for number in 1..250 {
            assert!(run() == first, "run {number} of {} differs", T::DTYPE);
        }
    }
    for wanted in [KernelChoice::Best, KernelChoice::Channel] {
        let (cuda, levels) = (cuda.with_msda(wanted), (&levels).into());
        runs::<f16>(&cuda, levels, sizes);
        runs::<bf16>(&cuda, levels, sizes);
        runs::<f32>(&cuda, levels, sizes);
    }
    // On tensor cores, with levels in shared memory.
    let levels = Levels::packed(&[(40, 50), (20, 25), (10, 13), (5, 7)]).unwrap();
    let sizes = Sizes {
        pixels: levels.pixels(),
        heads: 3,
        levels: 4,
        points: 8,
        ..sizes
    };
    let on_matrix = cuda.with_msda(KernelChoice::Matrix);
    // The same of levels in device memory, and of some that do not fit.
    let [shapes, too_large] = [
        [40, 50, 20, 25, 10, 13, 5, 7],
        [5, 7, 10, 13, 20, 25, 40, 50],
    ]
    .map(|shapes: [i64; 8]| Buffer::from_slice(cuda.context(), &shapes).unwrap());
    // SAFETY: both hold four pairs and outlive the calls.
    let [fitting, too_large] = [&shapes, &too_large]
        .map(|shapes| LevelTable::Cuda(unsafe { CudaLevels::new(0, 4, shapes.as_ptr(), None) }));
    for levels in [(&levels).into(), fitting, too_large] {
        runs::<f16>(&on_matrix, levels, sizes);
        runs::<bf16>(&on_matrix, levels, sizes);
    }
    gpu::evidence(
        &cuda,
        "reproducible",
        &gpu::kernels("msda_forward_"),
        "250 of 250 runs equal, f16, bf16, f32",
    );
}

#[test]
#[ignore = "needs a CUDA device"]
fn small_integers_on_pixel_centres_are_the_same_as_on_the_cpu() {
    let cuda = gpu::device();
    let (height, width) = (8, 16);
    let levels = Levels::packed(&[(height, width)]).unwrap();
    let sizes = Sizes {
        images: 1,
        pixels: levels.pixels(),
        heads: 2,
        channels: 16,
        queries: 128,
        levels: 1,
        points: 4,
    };
    let value: Vec<f32> = (0..sizes.value().iter().product())
        .map(|i: usize| (i * 7 % 31) as f32 - 15.0)
        .collect();
    let samples = sizes.queries * sizes.heads * sizes.points;
    let locations: Vec<f32> = (0..samples)
        .flat_map(|i| {
            [
                ((i * 5 % width) as f32 + 0.5) / width as f32,
                ((i * 3 % height) as f32 + 0.5) / height as f32,
            ]
        })
        .collect();
    let weights: Vec<f32> = (0..samples).map(|i| (i % 5) as f32 - 2.0).collect();
    let inputs = msda::Inputs {
        value: View::new(&value, &sizes.value()),
        levels: (&levels).into(),
        sampling_locations: View::new(&locations, &sizes.sampling_locations()),
        attention_weights: View::new(&weights, &sizes.attention_weights()),
    };
    let mut on_cpu = vec![f32::NAN; sizes.out().iter().product()];
    let out = ViewMut::new(&mut on_cpu, &sizes.out());
    msda::forward(&Backend::Auto, inputs, out).unwrap();
    let problem = Problem {
        sizes,
        value: OnDevice::new(&cuda, &value, &sizes.value()),
        locations: OnDevice::new(&cuda, &locations, &sizes.sampling_locations()),
        weights: OnDevice::new(&cuda, &weights, &sizes.attention_weights()),
    };
    for wanted in [KernelChoice::Gather, KernelChoice::Channel] {
        let mut out = OnDevice::poisoned(&cuda, DType::F32, &sizes.out());
        let backend = Backend::Cuda(cuda.with_msda(wanted));
        msda::forward(&backend, problem.inputs(&levels), out.view_mut()).unwrap();
        gpu::wait(&cuda);
        assert_eq!(out.buffer.to_vec::<f32>().unwrap(), on_cpu, "{wanted:?}");
    }
}
