//! One pass over one problem of dense attention, ready to be repeated.

use fourtap::cuda::{Cuda, SpecialisedKernel, jit};
use fourtap::dense::{self, AttnMask, Inputs, Options, Outputs, Problem, Traffic};
use fourtap::tuning::Class;
use fourtap::{Backend, BoolView, DType, Prepared, View, ViewMut};

use super::attn_mask::traffic;
use super::verification::verify;
use super::{AttnMaskKind, ProblemSizes};
use crate::array::Array;
use crate::computation::{Computation, CostEstimate, InputViews, TuningKey};
use crate::error::Result;
use crate::record::{DTypes, KernelUsed, ProblemRecord};
use crate::roof::{LANES, MinimumWork, TENSOR_CORES};
use crate::verification::Verification;

/// What to compute, on what, with what.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    backend: Backend,
    inputs: Inputs<'a>,
    problem: Problem,
    mask_kind: Option<AttnMaskKind>,
    with_lse: bool,
}

impl<'a> Trial<'a> {
    /// The attention of `inputs`, if they fit each other.
    pub fn new(backend: Backend, inputs: Inputs<'a>, options: Options) -> fourtap::Result<Self> {
        Ok(Trial {
            backend,
            inputs,
            problem: Problem::new(&inputs, options)?,
            mask_kind: None,
            with_lse: false,
        })
    }

    /// The same, with a mask among the inputs that is known to be of this kind: what it hides is not counted.
    pub fn with_mask_kind(self, mask_kind: Option<AttnMaskKind>) -> Self {
        Trial { mask_kind, ..self }
    }

    /// The same, and the log-sum-exp (LSE).
    pub fn with_lse(self) -> Self {
        Trial {
            with_lse: true,
            ..self
        }
    }

    /// What is read.
    pub fn inputs(&self) -> &Inputs<'a> {
        &self.inputs
    }

    /// What was checked.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Bytes and operations.
    pub fn traffic(&self) -> Traffic {
        traffic(&self.problem, self.mask_kind)
    }

    /// Everything once, and both products. The softmax comes on top, of which no probe tells.
    fn least(&self) -> MinimumWork {
        let traffic = self.traffic();
        let on_cuda = matches!(self.backend, Backend::Cuda(_));
        MinimumWork {
            moved: traffic.compulsory_bytes as f64,
            gathered: 0.0,
            flop: traffic.flop as f64,
            computed_by: match (on_cuda, self.problem.dtype()) {
                (_, DType::F64) => &[],
                (true, DType::F16 | DType::BF16) => TENSOR_CORES,
                // A processor computes all others in f32.
                _ => LANES,
            },
        }
    }
}

impl Computation for Trial<'_> {
    fn backend(&self) -> Backend {
        self.backend
    }

    fn tensors(&self) -> Vec<(&'static str, View<'_>)> {
        let Inputs {
            query,
            key,
            value,
            attn_mask,
        } = self.inputs;
        let mut tensors = vec![("query", query), ("key", key), ("value", value)];
        if let Some(AttnMask::Bias(bias)) = attn_mask {
            tensors.push(("attn_mask", bias));
        }
        tensors
    }

    fn mask(&self) -> Option<BoolView<'_>> {
        match self.inputs.attn_mask {
            Some(AttnMask::Seen(seen)) => Some(seen),
            _ => None,
        }
    }

    fn output_names(&self) -> &'static [&'static str] {
        match self.with_lse {
            true => &["out", "lse"],
            false => &["out"],
        }
    }

    fn outputs(&self) -> Result<Vec<Array>> {
        let (problem, sizes) = (&self.problem, self.problem.sizes());
        let mut outputs = vec![Array::poisoned("out", problem.dtype(), &sizes.out())?];
        if self.with_lse {
            outputs.push(Array::poisoned("lse", problem.lse_dtype(), &sizes.lse())?);
        }
        Ok(outputs)
    }

    fn prepare<'t>(
        &'t self,
        backend: &Backend,
        inputs: &InputViews<'t>,
        outputs: Vec<ViewMut<'t>>,
    ) -> Result<Prepared<'t>> {
        let (inputs, outputs) = arranged(inputs, outputs);
        let options = *self.problem.options();
        Ok(dense::prepare_forward(backend, inputs, options, outputs)?)
    }

    fn recorded(&self) -> (ProblemRecord, DTypes) {
        let problem = &self.problem;
        (
            ProblemSizes::new(problem, self.mask_kind).into(),
            problem.into(),
        )
    }

    fn compulsory_bytes(&self) -> u64 {
        self.traffic().compulsory_bytes
    }

    fn counted(&self) -> CostEstimate {
        CostEstimate {
            traffic: self.traffic().into(),
            in_bounds_fraction: None,
            touched_fraction: None,
            least: Some(self.least()),
        }
    }

    fn verified(&self, outputs: &[Array], seed: u64) -> Result<Verification> {
        verify(self, outputs, seed)
    }

    fn tuned_as(&self) -> TuningKey {
        let problem = &self.problem;
        let class = Class::of_dense(problem.sizes(), &problem.options().mask);
        ("dense-forward", class, problem.dtype())
    }

    /// They say nothing of tensors that mask.
    fn is_tuned_on_cuda(&self) -> bool {
        self.inputs.attn_mask.is_none()
    }

    fn kernel<'t>(
        &'t self,
        cuda: &Cuda,
        inputs: &InputViews<'t>,
        outputs: Vec<ViewMut<'t>>,
    ) -> Result<KernelUsed> {
        let (inputs, outputs) = arranged(inputs, outputs);
        let plan = cuda.explain_dense(inputs, *self.problem.options(), &outputs)?;
        let (major, minor) = cuda.device().compute_capability();
        let kernel = plan.forward.kernel;
        let program = kernel.program(jit::architecture_for(major, minor)?);
        let [blocks, parts] = plan.forward.blocks;
        let numbers = [
            ("blocks", blocks),
            ("parts", parts),
            ("threads", plan.forward.threads),
            ("shared_bytes", plan.forward.shared_bytes),
        ];
        let named = |(name, number): (&str, u32)| (name.to_string(), number.into());
        Ok(KernelUsed {
            words: plan.to_string(),
            fingerprint: Some(program.fingerprint().to_string()),
            parameters: numbers.map(named).into(),
            asked: None,
            mode: None,
            reproducible: true,
            workspace_bytes: Some(plan.workspace_bytes()),
        })
    }
}

/// Views under their names.
fn arranged<'t>(inputs: &InputViews<'t>, outputs: Vec<ViewMut<'t>>) -> (Inputs<'t>, Outputs<'t>) {
    let (query, key, value, bias) = match inputs.tensors[..] {
        [query, key, value] => (query, key, value, None),
        [query, key, value, bias] => (query, key, value, Some(bias)),
        _ => panic!(
            "three tensors and perhaps a bias are read, not {}",
            inputs.tensors.len()
        ),
    };
    let seen = inputs.mask.map(AttnMask::Seen);
    let mut outputs = outputs.into_iter();
    let outputs = Outputs {
        out: outputs.next().expect("there is an output"),
        lse: outputs.next(),
    };
    (
        Inputs {
            query,
            key,
            value,
            attn_mask: seen.or(bias.map(AttnMask::Bias)),
        },
        outputs,
    )
}
