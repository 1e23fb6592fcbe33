//! Which kernels serve a pass of deformable attention, for a record.

use std::collections::BTreeMap;

use fourtap::cuda::msda::{KernelVariant, Plan, shipped};
use fourtap::cuda::{Cuda, SpecialisedKernel, Step, jit};
use fourtap::msda::projections::{self, ProjectionGradients, Projections};
use fourtap::msda::{Gradients, Inputs};
use fourtap::{Backend, View, ViewMut};
use serde_json::Value;

use crate::error::Result;
use crate::record::KernelUsed;

/// The kernel of forward.
pub fn forward_kernel(cuda: &Cuda, inputs: Inputs<'_>, out: ViewMut<'_>) -> Result<KernelUsed> {
    used_by(cuda, &cuda.explain_forward(inputs, out)?)
}

/// The kernel of forward from projections.
pub fn projected_forward_kernel(
    cuda: &Cuda,
    inputs: Projections<'_>,
    out: ViewMut<'_>,
) -> Result<KernelUsed> {
    used_by(cuda, &cuda.explain_projected_forward(inputs, out)?)
}

/// Those of the kernels of a plan.
fn fingerprints(cuda: &Cuda, steps: &[Step<KernelVariant>]) -> Result<String> {
    let (major, minor) = cuda.device().compute_capability();
    let architecture = jit::architecture_for(major, minor)?;
    let hashes: Vec<String> = steps
        .iter()
        .map(|step| step.kernel.program(architecture).fingerprint().to_string())
        .collect();
    Ok(hashes.join(" "))
}

fn used_by(cuda: &Cuda, plan: &Plan) -> Result<KernelUsed> {
    let fingerprint = fingerprints(cuda, &plan.steps())?;
    Ok(KernelUsed {
        words: plan.to_string(),
        fingerprint: Some(fingerprint),
        parameters: parameters(plan),
        asked: None,
        mode: None,
        reproducible: true,
        workspace_bytes: None,
    })
}

/// The kernels of backward.
pub fn backward_kernels(
    cuda: &Cuda,
    inputs: Inputs<'_>,
    grad_out: View<'_>,
    gradients: &Gradients<'_>,
) -> Result<KernelUsed> {
    let plan = cuda.explain_backward(inputs, grad_out, gradients)?;
    let kernels = plan.kernels();
    let shipped = shipped();
    let used = shipped.iter().filter(|one| kernels.contains(&one.entry));
    let hashes: Vec<&str> = used.map(|one| one.source_hash.as_str()).collect();
    Ok(KernelUsed {
        words: plan.to_string(),
        fingerprint: Some(hashes.join(" ")),
        parameters: BTreeMap::new(),
        asked: None,
        mode: None,
        reproducible: plan.is_deterministic(),
        workspace_bytes: Some(plan.workspace_bytes()),
    })
}

/// The kernels of backward from projections that depend on the problem, and the memory that all of them work in.
pub fn projected_backward_kernels(
    cuda: &Cuda,
    inputs: Projections<'_>,
    grad_out: View<'_>,
    gradients: ProjectionGradients<'_>,
) -> Result<KernelUsed> {
    let plan = cuda.explain_projected_backward(inputs, grad_out, &gradients)?;
    let fingerprint = fingerprints(cuda, &plan.steps())?;
    let call = projections::prepare_backward(&Backend::Cuda(*cuda), inputs, grad_out, gradients)?;
    Ok(KernelUsed {
        words: plan.to_string(),
        fingerprint: Some(fingerprint),
        parameters: BTreeMap::new(),
        asked: None,
        mode: None,
        reproducible: plan.is_deterministic(),
        workspace_bytes: Some(call.workspace_bytes()),
    })
}

/// What forward's kernel was specialised and is launched with.
fn parameters(plan: &Plan) -> BTreeMap<String, Value> {
    let mut named: BTreeMap<&str, Value> = BTreeMap::new();
    named.insert("blocks", plan.step.blocks[0].into());
    named.insert("threads", plan.step.threads.into());
    if let KernelVariant::Gather(gather) | KernelVariant::Matrix(gather) = plan.step.kernel {
        named.insert("samples_per_lane", gather.per_lane.into());
        named.insert("split", gather.split.into());
        named.insert("heads_together", gather.heads_together.into());
        named.insert("phases", gather.phases.into());
        named.insert("dense", gather.dense.into());
        named.insert("alternate", gather.alternate.into());
    }
    let named = named.into_iter();
    named
        .map(|(name, value)| (name.to_string(), value))
        .collect()
}
