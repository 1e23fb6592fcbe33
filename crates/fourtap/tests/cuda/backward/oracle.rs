//! Random problems against the oracle, every element of every gradient.

use std::ops::Range;

use fourtap::cuda::Cuda;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda;
use fourtap::verify::{
    Case, CudaCase, ExpectedGradients, Failure, GradientSelection, GradientTensors, LevelsIn,
    Tensor,
};
use fourtap::{DType, Error};
use rayon::prelude::*;

use crate::gpu::{self, Tally};
use crate::oracle::cases;

/// Kernel, mode and levels of a backward call.
#[derive(Clone, Copy, Debug)]
pub struct BackwardSetting {
    pub wanted: KernelChoice,
    pub deterministic: bool,
    pub levels: LevelsIn,
}

impl BackwardSetting {
    /// With these kernels and modes, levels in host and device memory.
    pub fn all(settings: &[(KernelChoice, bool)]) -> Vec<BackwardSetting> {
        let setting = |&(wanted, deterministic): &(KernelChoice, bool)| {
            [LevelsIn::Host, LevelsIn::Device].map(|levels| BackwardSetting {
                wanted,
                deterministic,
                levels,
            })
        };
        settings.iter().flat_map(setting).collect()
    }

    pub fn on(&self, cuda: &Cuda) -> Cuda {
        cuda.with_msda(self.wanted)
            .deterministic(self.deterministic)
    }
}

/// Every kernel in every mode.
pub const SETTINGS: [(KernelChoice, bool); 6] = [
    (KernelChoice::Gather, false),
    (KernelChoice::Gather, true),
    (KernelChoice::GatherMany, false),
    (KernelChoice::GatherMany, true),
    (KernelChoice::Channel, false),
    (KernelChoice::Channel, true),
];

/// Each kernel once, in the mode that takes most of it.
pub const EACH_KERNEL: [(KernelChoice, bool); 3] = [
    (KernelChoice::Gather, false),
    (KernelChoice::GatherMany, true),
    (KernelChoice::Channel, true),
];

/// All gradients of a case, and the kernels that computed them.
pub struct ComputedGradients {
    pub gradients: GradientTensors,
    pub kernels: Vec<&'static str>,
    /// Bytes of memory the call took besides.
    pub workspace: usize,
}

pub fn compute(
    case: &CudaCase<'_>,
    cuda: &Cuda,
    setting: BackwardSetting,
) -> Result<ComputedGradients, Failure> {
    let cuda = setting.on(cuda);
    let (inputs, grad_out) = (case.inputs(setting.levels), case.grad_out());
    let mut gradients = case.gradients(GradientSelection::ALL)?;
    let plan = cuda.explain_backward(inputs, grad_out, &gradients.views())?;
    let call = msda::prepare_backward(&cuda, inputs, grad_out, gradients.views())?;
    let workspace = call.workspace_bytes();
    assert_eq!(workspace, plan.workspace_bytes(), "as explained");
    call.launch()?;
    Ok(ComputedGradients {
        gradients: gradients.read(&cuda)?,
        kernels: plan.kernels(),
        workspace,
    })
}

/// What a workspace may take: twice the inputs and a little, and room to sort the samples of one level of one image and
/// head, which where coordinates are 16-bit and channels few is more.
fn most_workspace(case: &Case) -> usize {
    let bytes = |tensor: &Tensor| tensor.len() * tensor.dtype().size();
    let inputs = [
        &case.value,
        &case.sampling_locations,
        &case.attention_weights,
        &case.grad_out,
    ];
    let shape = case.attention_weights.shape();
    let samples = shape.sizes()[1] * shape.sizes()[4];
    let record = match case.value.dtype() {
        DType::F64 => 32,
        _ => 16,
    };
    2 * inputs.into_iter().map(bytes).sum::<usize>() + samples * record + 4096
}

/// Backward of the cases in every way that can serve them.
pub fn check(
    cuda: &Cuda,
    seeds: Range<u64>,
    case_of: fn(u64) -> Case,
    settings: &[BackwardSetting],
    tally: &Tally,
) {
    // In parallel, because nearly every problem needs a kernel of its own compiled.
    seeds.into_par_iter().for_each(|seed| {
        let case = case_of(seed);
        let expected = ExpectedGradients::new(&case).unwrap();
        let on_device = CudaCase::new(&case, *cuda).unwrap();
        let most = most_workspace(&case);
        for &setting in settings {
            let Some(computed) = compute_and_compare(&on_device, cuda, setting, &expected) else {
                continue;
            };
            assert!(
                computed.workspace <= most,
                "seed {seed}, {setting:?}: a workspace of {} bytes, at most {most} allowed",
                computed.workspace
            );
            // With levels in device memory, kernels are launched for whatever these may turn out to be; with those of the
            // host each one launched is needed.
            if setting.levels == LevelsIn::Host {
                tally.add(computed.kernels);
            }
        }
    });
}

/// Gradients that match, or none if the kernel wanted cannot serve the case.
pub fn compute_and_compare(
    case: &CudaCase<'_>,
    cuda: &Cuda,
    setting: BackwardSetting,
    expected: &ExpectedGradients,
) -> Option<ComputedGradients> {
    let computed = compute(case, cuda, setting);
    match computed.and_then(|found| expected.compare(&found.gradients).map(|()| found)) {
        Ok(computed) => Some(computed),
        Err(Failure::Refused(Error::Unsupported { .. }))
            if setting.wanted != KernelChoice::Channel =>
        {
            None
        }
        Err(failure) => panic!("seed {}, {setting:?}: {failure}", case.case().seed),
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn random_problems_match_the_oracle() {
    let cuda = gpu::device();
    let (tally, cases, settings) = (
        Tally::default(),
        cases(1000),
        BackwardSetting::all(&SETTINGS),
    );
    check(&cuda, 0..cases, Case::random, &settings, &tally);
    check(&cuda, 0..cases, Case::aligned, &settings, &tally);
    check(&cuda, 0..cases / 4, Case::keepable, &settings, &tally);
    assert!(tally.count("msda_backward_samples_gather") > cases);
    assert!(tally.count("msda_backward_samples_matrix") > cases / 4);
    // Levels one after another and no more than 16 leave it nothing but problems without samples; see loose.rs.
    let mut kernels = gpu::kernels("msda_backward_");
    kernels.retain(|&kernel| kernel != "msda_backward_value_search");
    let details = "results, every element, 0 mismatches";
    tally.evidence(&cuda, "oracle", &kernels, details);
}
