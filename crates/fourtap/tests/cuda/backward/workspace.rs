//! The memory backward works in: its size, and that it is nobody's but the call's.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, Plain};
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{CudaLevels, Levels, Sizes};
use fourtap::verify::GradientSelection;
use fourtap::{DType, Element, Error, bf16, f16};

use super::oracle::SETTINGS;
use super::tensors::BackwardProblem;
use crate::gpu::{self, DeviceWithWorkspace};

fn levels() -> Levels {
    Levels::packed(&[(20, 30), (10, 15)]).unwrap()
}

fn sizes(levels: &Levels) -> Sizes {
    Sizes {
        images: 2,
        pixels: levels.pixels(),
        heads: 4,
        channels: 32,
        queries: 301,
        levels: levels.len(),
        points: 4,
    }
}

/// With a workspace in this memory.
fn given(cuda: &Cuda, memory: &Buffer, bytes: usize) -> DeviceWithWorkspace {
    assert!(bytes <= memory.len());
    // SAFETY: the memory holds so many bytes, outlives the calls' work, and is used by one call after another.
    unsafe { DeviceWithWorkspace::new(cuda, memory.as_ptr(), bytes) }
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_workspace_of_the_size_asked_for_is_enough_and_what_is_in_it_does_not_matter() {
    let cuda = gpu::device();
    fn of_type<T: Element + Plain>(cuda: &Cuda) {
        let levels = levels();
        let problem = BackwardProblem::new::<T>(cuda, sizes(&levels));
        let sorting = match T::DTYPE {
            DType::F64 => KernelChoice::Best,
            _ => KernelChoice::GatherMany,
        };
        for wanted in [sorting, KernelChoice::Channel] {
            let cuda = cuda.with_msda(wanted).deterministic(true);
            let mut results = problem.results(&cuda);
            let bytes = problem.workspace(&cuda, &levels, &mut results);
            assert!(bytes > 0, "{}, {wanted:?}", T::DTYPE);
            problem
                .compute(&cuda, &levels, &mut results, GradientSelection::ALL)
                .unwrap();
            gpu::wait(&cuda);
            let from_pool = results.bytes();
            const BEYOND: usize = 4096;
            for byte in [0x00, 0x7f, 0xff] {
                let mut memory = Buffer::alloc(cuda.context(), bytes + BEYOND).unwrap();
                memory.fill(byte, cuda.stream()).unwrap();
                results.poison(cuda.stream());
                problem
                    .compute(
                        given(&cuda, &memory, bytes),
                        &levels,
                        &mut results,
                        GradientSelection::ALL,
                    )
                    .unwrap();
                gpu::wait(&cuda);
                assert!(
                    results.bytes() == from_pool,
                    "{}, {wanted:?}: another result in memory of {byte:#x}",
                    T::DTYPE
                );
                let after = memory.to_vec::<u8>().unwrap();
                assert!(
                    after[bytes..].iter().all(|&found| found == byte),
                    "{}, {wanted:?}: wrote beyond {bytes} bytes",
                    T::DTYPE
                );
            }
        }
    }
    of_type::<f16>(&cuda);
    of_type::<bf16>(&cuda);
    of_type::<f32>(&cuda);
    of_type::<f64>(&cuda);
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_workspace_too_small_or_misaligned_is_refused_before_anything_is_written() {
    let cuda = gpu::device().with_msda(KernelChoice::GatherMany);
    let levels = levels();
    let problem = BackwardProblem::new::<f16>(&cuda, sizes(&levels));
    let mut results = problem.results(&cuda);
    let bytes = problem.workspace(&cuda, &levels, &mut results);
    assert!(bytes > 0);
    let memory = Buffer::alloc(cuda.context(), bytes).unwrap();
    for found in [0, 1, bytes / 2, bytes - 1] {
        let cuda = given(&cuda, &memory, found);
        let error = problem
            .compute(cuda, &levels, &mut results, GradientSelection::ALL)
            .unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let text = error.to_string();
        for number in [bytes, found] {
            assert!(text.contains(&number.to_string()), "{number}: {text}");
        }
    }
    let roomy = Buffer::alloc(cuda.context(), bytes + 256).unwrap();
    for beside in [1, 16, 128, 255] {
        // SAFETY: the memory is the device's, and what is wrong with it is refused before it is used.
        let cuda = unsafe { DeviceWithWorkspace::new(&cuda, roomy.as_ptr() + beside, bytes) };
        let error = problem
            .compute(cuda, &levels, &mut results, GradientSelection::ALL)
            .unwrap_err();
        assert!(matches!(error, Error::Misaligned { .. }), "{error}");
        assert!(
            error
                .to_string()
                .starts_with("workspace: expected an address that is a multiple of 256")
        );
    }
    gpu::wait(&cuda);
    let untouched = |bytes: &Vec<u8>| bytes.iter().all(|&byte| byte == 0xff);
    assert!(results.bytes().iter().all(untouched));
}

#[test]
#[ignore = "needs a CUDA device"]
fn workspaces_of_the_workloads_take_at_most_twice_the_inputs() {
    let cuda = gpu::device();
    // As in fourtap-lab's workloads.
    let detr: &[_] = &[(100, 167), (50, 84), (25, 42), (13, 21)];
    let rtdetr: &[_] = &[(80, 80), (40, 40), (20, 20)];
    let bev: &[_] = &[(116, 200), (58, 100), (29, 50), (15, 25)];
    let seed: &[_] = &[(92, 160), (46, 80), (23, 40), (12, 20)];
    let [encoder, decoder] = [22_223, 900].map(|queries| Sizes {
        images: 4,
        pixels: 22_223,
        heads: 8,
        channels: 32,
        queries,
        levels: 4,
        points: 4,
    });
    let workloads = [
        ("detr-encoder", detr, encoder),
        ("dino-decoder", detr, decoder),
        (
            "rtdetr-decoder",
            rtdetr,
            Sizes {
                images: 1,
                pixels: 8_400,
                queries: 300,
                levels: 3,
                ..decoder
            },
        ),
        (
            "bev-d64",
            bev,
            Sizes {
                images: 6,
                pixels: 30_825,
                channels: 64,
                queries: 10_000,
                points: 8,
                ..decoder
            },
        ),
        (
            "seed-full",
            seed,
            Sizes {
                images: 48,
                pixels: 19_560,
                heads: 1,
                queries: 15_422,
                points: 8,
                ..decoder
            },
        ),
    ];
    for (name, shapes, sizes) in workloads {
        let levels = Levels::packed(shapes).unwrap();
        let table = Buffer::zeroed(cuda.context(), 16 * levels.len()).unwrap();
        // SAFETY: the buffer holds so many pairs and outlives the calls, which do not even look.
        let on_device = unsafe { CudaLevels::new(0, levels.len(), table.as_ptr(), None) };
        for (dtype, coordinates) in [
            (DType::F16, DType::F32),
            (DType::F16, DType::F16),
            (DType::BF16, DType::F32),
            (DType::F32, DType::F32),
            (DType::F64, DType::F32),
            (DType::F64, DType::F64),
        ] {
            let problem = BackwardProblem::poisoned(&cuda, dtype, coordinates, sizes);
            let inputs = &problem.inputs;
            let tensors = [
                &inputs.value,
                &inputs.locations,
                &inputs.weights,
                &problem.grad_out,
            ];
            let most = 2 * tensors
                .map(|tensor| tensor.buffer.len())
                .iter()
                .sum::<usize>()
                + 4096;
            let mut results = problem.results(&cuda);
            for (wanted, deterministic) in SETTINGS {
                if dtype == DType::F64 && wanted != KernelChoice::Channel {
                    continue;
                }
                let cuda = cuda.with_msda(wanted).deterministic(deterministic);
                for bytes in [
                    problem.workspace(&cuda, &levels, &mut results),
                    problem.workspace(&cuda, on_device, &mut results),
                ] {
                    assert!(
                        bytes <= most,
                        "{name}, {dtype}, {coordinates}, {wanted:?}: {bytes} bytes, at most {most} allowed"
                    );
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn many_calls_leave_memory_as_it_was() {
    let cuda = gpu::device().with_msda(KernelChoice::GatherMany);
    let levels = levels();
    let problem = BackwardProblem::new::<f16>(&cuda, sizes(&levels));
    let mut results = problem.results(&cuda);
    let mut calls = |count: usize| {
        for _ in 0..count {
            problem
                .compute(&cuda, &levels, &mut results, GradientSelection::ALL)
                .unwrap();
        }
        gpu::wait(&cuda);
        cuda.context().memory_info().unwrap().free
    };
    // Other tests allocate at the same time, so that one measurement may be theirs; not all of them.
    let mut leaked = || {
        let free = calls(10);
        free.saturating_sub(calls(20_000))
    };
    // What a pool keeps of memory given back to it is not lost.
    let found: Vec<usize> = (0..5)
        .map(|_| leaked())
        .take_while(|&bytes| bytes >= 64 << 20)
        .collect();
    assert!(found.len() < 5, "{found:?} bytes are gone");
}
