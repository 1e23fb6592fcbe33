//! Calls that must be refused, and which kernels serve what.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Buffer;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{self, CudaLevels, Gradients, Levels, Sizes};
use fourtap::verify::GradientSelection;
use fourtap::{Backend, DType, Error, View, ViewMut};

use super::tensors::BackwardProblem;
use crate::gpu;

fn sizes(levels: &Levels) -> Sizes {
    Sizes {
        images: 1,
        pixels: levels.pixels(),
        heads: 2,
        channels: 32,
        queries: 5,
        levels: levels.len(),
        points: 4,
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn host_and_device_memory_are_not_mixed_up() {
    let cuda = gpu::device();
    let levels = Levels::packed(&[(3, 4)]).unwrap();
    let sizes = sizes(&levels);
    let problem = BackwardProblem::new::<f32>(&cuda, sizes);
    let mut results = problem.results(&cuda);
    let mut host = vec![0.5f32; 10_000];
    for backend in [Backend::Auto, Backend::Cuda(cuda)] {
        let (inputs, grad_out) = problem.inputs(&levels);
        let (shape, elements) = (sizes.out(), sizes.out().iter().product::<usize>());
        let on_host = View::new(&host[..elements], &shape);
        let error = msda::backward(
            &backend,
            inputs,
            on_host,
            results.gradients(GradientSelection::ALL),
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "grad_out: expected memory of cuda:0 (where value is), found host memory"
        );
        let (shape, elements) = (sizes.value(), sizes.value().iter().product::<usize>());
        let gradients = Gradients {
            value: Some(ViewMut::new(&mut host[..elements], &shape)),
            ..results.gradients(GradientSelection::ALL)
        };
        let error = msda::backward(&backend, inputs, grad_out, gradients);
        assert_eq!(
            error.unwrap_err().to_string(),
            "grad_value: expected memory of cuda:0 (where value is), found host memory"
        );
    }
    let cpu = Backend::Cpu(fourtap::cpu::Cpu::new());
    let (inputs, grad_out) = problem.inputs(&levels);
    let error = msda::backward(
        &cpu,
        inputs,
        grad_out,
        results.gradients(GradientSelection::ALL),
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "value: expected host memory, found memory of cuda:0"
    );
    // Nobody wrote anything, and the device is still usable.
    gpu::wait(&cuda);
    let untouched = |bytes: &Vec<u8>| bytes.iter().all(|&byte| byte == 0xff);
    assert!(results.bytes().iter().all(untouched));
    msda::backward(
        &Backend::Auto,
        inputs,
        grad_out,
        results.gradients(GradientSelection::ALL),
    )
    .unwrap();
    gpu::wait(&cuda);
    let found = results.numbers::<f32>();
    assert!(found.iter().flatten().all(|x| !x.is_nan()));
}

#[test]
#[ignore = "needs a CUDA device"]
fn what_the_fast_kernels_cannot_serve_is_refused_if_they_are_demanded() {
    let cuda = gpu::device();
    let levels = Levels::packed(&[(8, 8)]).unwrap();
    let problem = BackwardProblem::new::<f64>(&cuda, sizes(&levels));
    for wanted in [KernelChoice::Gather, KernelChoice::GatherMany] {
        let cuda = cuda.with_msda(wanted);
        let mut results = problem.results(&cuda);
        let error = problem.compute(&cuda, &levels, &mut results, GradientSelection::ALL);
        assert!(
            matches!(error, Err(Error::Unsupported { .. })),
            "{wanted:?}: {error:?}"
        );
        gpu::wait(&cuda);
        let untouched = |bytes: &Vec<u8>| bytes.iter().all(|&byte| byte == 0xff);
        assert!(results.bytes().iter().all(untouched));
    }
}

/// The kernels of a call, without `msda_backward_`, joined.
fn kernels(
    cuda: &Cuda,
    levels: &Levels,
    sizes: Sizes,
    dtype: DType,
    asked: GradientSelection,
) -> String {
    let problem = BackwardProblem::poisoned(cuda, dtype, DType::F32, sizes);
    let mut results = problem.results(cuda);
    let (inputs, grad_out) = problem.inputs(levels);
    let plan = cuda.explain_backward(inputs, grad_out, &results.gradients(asked));
    let mut names: Vec<_> = plan.unwrap().kernels();
    names.sort();
    names.join(" ").replace("msda_backward_", "")
}

#[test]
#[ignore = "needs a CUDA device"]
fn each_problem_gets_the_kernels_made_for_it() {
    let cuda = gpu::device();
    let levels = Levels::packed(&[(8, 8), (4, 4)]).unwrap();
    let sizes = sizes(&levels);
    let exactly = cuda.deterministic(true);
    let explain = |cuda: &Cuda, channels: usize, dtype: DType| {
        let sizes = Sizes { channels, ..sizes };
        kernels(cuda, &levels, sizes, dtype, GradientSelection::ALL)
    };
    for dtype in [DType::F16, DType::BF16] {
        for (channels, expected) in [
            (32, "samples_matrix sort value_matrix"),
            (64, "samples_matrix sort value_matrix"),
            (96, "samples_gather sort value_matrix"),
            (128, "samples_gather sort value_matrix"),
            (8, "samples_gather sort value_channel"),
            (16, "samples_gather sort value_channel"),
            (24, "samples_matrix sort value_channel"),
            (48, "samples_matrix sort value_channel"),
        ] {
            let name = format!("{dtype}, {channels} channels");
            let many = cuda.with_msda(KernelChoice::GatherMany);
            assert_eq!(explain(&many, channels, dtype), expected, "{name}");
            // Few samples need not be sorted.
            let of_samples = expected.split(' ').next().unwrap();
            let bands = format!("{of_samples} value_bands");
            for few in [&cuda, &exactly, &cuda.with_msda(KernelChoice::Gather)] {
                assert_eq!(explain(few, channels, dtype), bands, "{name}");
            }
        }
        assert_eq!(
            explain(&exactly, 31, dtype),
            "samples_channel sort value_channel",
        );
    }
    assert_eq!(
        explain(&exactly, 32, DType::F32),
        "samples_gather value_bands"
    );
    assert_eq!(
        explain(&exactly, 32, DType::F64),
        "samples_channel sort value_channel"
    );
    // Small and f32, in the faster mode: one kernel adds to grad_value too.
    assert_eq!(explain(&cuda, 32, DType::F32), "samples_gather");
    assert_eq!(
        explain(&cuda.with_msda(KernelChoice::GatherMany), 32, DType::F32),
        "samples_gather sort value_channel"
    );
    assert_eq!(
        explain(&cuda.with_msda(KernelChoice::Channel), 32, DType::F16),
        "samples_channel sort value_channel"
    );
}

#[test]
#[ignore = "needs a CUDA device"]
fn levels_in_device_memory_or_too_many_are_searched_if_need_be() {
    let cuda = gpu::device();
    let many = Levels::packed(&[(2, 3); 17]).unwrap();
    let found = kernels(
        &cuda.deterministic(true),
        &many,
        sizes(&many),
        DType::F16,
        GradientSelection::ALL,
    );
    assert!(found.contains("value_search"), "{found}");
    assert!(!found.contains("sort"), "{found}");

    let levels = Levels::packed(&[(8, 8)]).unwrap();
    let problem = BackwardProblem::new::<f32>(&cuda, sizes(&levels));
    let shapes = Buffer::from_slice(cuda.context(), &[8i64, 8]).unwrap();
    // SAFETY: the buffer holds a pair and outlives the calls.
    let on_device = unsafe { CudaLevels::new(0, 1, shapes.as_ptr(), None) };
    let many = cuda.with_msda(KernelChoice::GatherMany);
    let found = problem.kernels(&many, on_device, &mut problem.results(&cuda));
    for kernel in ["msda_backward_sort", "msda_backward_value_search"] {
        assert!(found.contains(&kernel), "{kernel}: {found:?}");
    }
    let few = cuda.deterministic(true);
    let found = problem.kernels(&few, on_device, &mut problem.results(&cuda));
    for kernel in ["msda_backward_value_bands", "msda_backward_value_search"] {
        assert!(found.contains(&kernel), "{kernel}: {found:?}");
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn gradients_nobody_asked_for_are_not_computed() {
    let cuda = gpu::device();
    let cuda = cuda.deterministic(true);
    let levels = Levels::packed(&[(8, 8)]).unwrap();
    for asked in GradientSelection::choices() {
        let found = kernels(&cuda, &levels, sizes(&levels), DType::F16, asked);
        let samples = asked.sampling_locations || asked.attention_weights;
        assert_eq!(found.contains("value"), asked.value, "{asked:?}: {found}");
        assert_eq!(found.contains("samples"), samples, "{asked:?}: {found}");
    }
}
