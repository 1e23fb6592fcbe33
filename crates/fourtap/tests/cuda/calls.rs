//! Calls that must be refused, calls with nothing to do, and which kernel serves what.

use fourtap::cuda::Cuda;
use fourtap::cuda::msda::{KernelChoice, KernelVariant};
use fourtap::msda::{self, Inputs, Levels, Sizes};
use fourtap::{Backend, DType, Error, Layout, View, ViewMut};

use crate::gpu;
use crate::tensors::{OnDevice, Problem};

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
    let problem = Problem::new::<f32>(&cuda, sizes);
    let host = vec![0.5f32; 10_000];
    let on_host = |shape: &[usize]| View::new(&host[..shape.iter().product()], shape);
    let mut out = OnDevice::poisoned(&cuda, DType::F32, &sizes.out());
    let inputs = problem.inputs(&levels);
    let mixed = [
        (
            "value",
            Inputs {
                value: on_host(&sizes.value()),
                ..inputs
            },
        ),
        (
            "sampling_locations",
            Inputs {
                sampling_locations: on_host(&sizes.sampling_locations()),
                ..inputs
            },
        ),
        (
            "attention_weights",
            Inputs {
                attention_weights: on_host(&sizes.attention_weights()),
                ..inputs
            },
        ),
    ];
    for backend in [Backend::Auto, Backend::Cuda(cuda)] {
        for (tensor, inputs) in &mixed {
            let error = msda::forward(&backend, *inputs, out.view_mut()).unwrap_err();
            assert!(matches!(error, Error::Place { .. }), "{tensor}: {error}");
        }
        let mut result = vec![0.0f32; sizes.out().iter().product()];
        let result = ViewMut::new(&mut result, &sizes.out());
        let error = msda::forward(&backend, inputs, result).unwrap_err();
        assert_eq!(
            error.to_string(),
            "out: expected memory of cuda:0 (where value is), found host memory"
        );
    }
    let cpu = Backend::Cpu(fourtap::cpu::Cpu::new());
    let error = msda::forward(&cpu, inputs, out.view_mut()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "value: expected host memory, found memory of cuda:0"
    );
    assert!(msda::oracle::forward::<f64>(&inputs).is_err());
    // And the device is still usable.
    msda::forward(&Backend::Auto, inputs, out.view_mut()).unwrap();
    gpu::wait(&cuda);
    assert!(
        out.buffer
            .to_vec::<f32>()
            .unwrap()
            .iter()
            .all(|x| !x.is_nan())
    );
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_device_that_is_not_there_is_named() {
    let _cuda = gpu::device();
    let error = Cuda::new(1000).unwrap_err();
    assert!(error.to_string().contains("1000"), "{error}");
}

#[test]
#[ignore = "needs a CUDA device"]
fn nothing_to_do_is_no_error_and_no_samples_give_zeros() {
    let cuda = gpu::device();
    let levels = Levels::packed(&[(3, 4)]).unwrap();
    let whole = sizes(&levels);
    for (empty, zeros) in [
        (Sizes { images: 0, ..whole }, false),
        (
            Sizes {
                queries: 0,
                ..whole
            },
            false,
        ),
        (Sizes { heads: 0, ..whole }, false),
        (Sizes { points: 0, ..whole }, true),
    ] {
        let some = OnDevice::new(&cuda, &[1.0f32; 4096], &[4096]);
        let view = |shape: &[usize]| {
            // SAFETY: the buffer is larger than any of these tensors.
            unsafe {
                View::on_cuda(
                    0,
                    some.buffer.as_ptr(),
                    Layout::contiguous(DType::F32, shape),
                )
            }
        };
        let inputs = Inputs {
            value: view(&empty.value()),
            levels: (&levels).into(),
            sampling_locations: view(&empty.sampling_locations()),
            attention_weights: view(&empty.attention_weights()),
        };
        let mut out = OnDevice::poisoned(&cuda, DType::F32, &[whole.out().iter().product()]);
        // SAFETY: no larger than the buffer.
        let result = unsafe {
            ViewMut::on_cuda(
                0,
                out.buffer.as_ptr(),
                Layout::contiguous(DType::F32, &empty.out()),
            )
        };
        msda::forward(&Backend::Auto, inputs, result).unwrap();
        gpu::wait(&cuda);
        let found = out.buffer.to_vec::<f32>().unwrap();
        match zeros {
            true => assert!(found.iter().all(|&x| x == 0.0)),
            false => assert!(found.iter().all(|x| x.is_nan())),
        }
        let _ = out.view_mut();
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_fast_kernel_serves_what_it_is_made_for() {
    let cuda = gpu::device();
    let levels = Levels::packed(&[(8, 8), (4, 4)]).unwrap();
    let plan = |sizes: Sizes, dtype: DType, cuda: Cuda| {
        let bytes = 1 << 20;
        let some = OnDevice::poisoned(&cuda, DType::F32, &[bytes / 4]);
        let view = |dtype: DType, shape: &[usize]| {
            // SAFETY: only looked at, and smaller than the buffer.
            unsafe { View::on_cuda(0, some.buffer.as_ptr(), Layout::contiguous(dtype, shape)) }
        };
        let inputs = Inputs {
            value: view(dtype, &sizes.value()),
            levels: (&levels).into(),
            sampling_locations: view(DType::F32, &sizes.sampling_locations()),
            attention_weights: view(DType::F32, &sizes.attention_weights()),
        };
        let mut out = OnDevice::poisoned(&cuda, dtype, &sizes.out());
        cuda.explain_forward(inputs, out.view_mut())
    };
    let sizes = Sizes {
        levels: 2,
        ..sizes(&levels)
    };
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for channels in [8, 16, 32, 48, 64, 96, 128] {
            let plan = plan(Sizes { channels, ..sizes }, dtype, cuda).unwrap();
            assert!(
                matches!(plan.step.kernel, KernelVariant::Gather(_)),
                "{dtype}, {channels} channels: {plan}"
            );
        }
        let plan = plan(
            Sizes {
                channels: 31,
                ..sizes
            },
            dtype,
            cuda,
        )
        .unwrap();
        assert!(plan.to_string().contains("31 channels"), "{plan}");
    }
    let exact = plan(sizes, DType::F64, cuda).unwrap();
    assert!(exact.to_string().contains("value is f64"), "{exact}");
    let refused = plan(sizes, DType::F64, cuda.with_msda(KernelChoice::Gather)).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
}
