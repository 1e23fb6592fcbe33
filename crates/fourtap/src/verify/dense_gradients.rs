//! Random backward problems of dense attention, and their expected gradients.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::case::{CaseKind, random_storage};
use super::compare::{Failure, compare};
use super::dense::{DenseCase, dense_storage};
use super::dense_mask::RandomMask;
use super::rule::Pass;
use super::tensor::{Storage, Tensor};
use crate::backend::Backend;
use crate::dense::oracle::{self, Attention};
use crate::dense::{self, ForwardResults, Gradients, Inputs, Options, Problem};
use crate::error::Result;
use crate::oracle::Sum;
use crate::tensor::View;

/// A backward problem with its data.
#[derive(Clone, Debug)]
pub struct DenseBackwardCase {
    /// The problem whose gradients are computed.
    pub forward: DenseCase,
    /// The oracle's, rounded to the type of the queries.
    pub out: Tensor,
    /// The oracle's, rounded.
    pub lse: Tensor,
    /// The gradient of `out`.
    pub grad_out: Tensor,
    /// Layout of the gradients, in the order of [`DenseGradientTensors::named`].
    pub gradients: [Storage; 4],
}

impl DenseBackwardCase {
    /// The backward problem of this one, with the `grad_out` and the layouts of its seed.
    pub fn new(forward: DenseCase) -> Result<Self> {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(forward.seed.wrapping_add(4 << 32));
        let problem = Problem::new(&forward.inputs(), forward.options)?;
        let sizes = problem.sizes();
        let Attention { out, lse } = oracle::forward::<f64>(&forward.inputs(), forward.options)?;
        let tensor = |dtype, shape: &[usize], storage, numbers: Vec<Sum<f64>>| {
            let mut numbers = numbers.into_iter();
            Tensor::from_fn(dtype, shape, &storage, || {
                numbers.next().map_or(f64::NAN, |number| number.total)
            })
        };
        // Not broadcast: then `out` and `lse` would not be those of the problem.
        let of_lse = random_storage(rng, 3, false, CaseKind::Any);
        let out = tensor(
            problem.dtype(),
            &sizes.out(),
            dense_storage(rng, false),
            out,
        );
        let lse = tensor(problem.lse_dtype(), &sizes.lse(), of_lse, lse);
        let storage = dense_storage(rng, true);
        let grad_out = Tensor::from_fn(problem.dtype(), &sizes.out(), &storage, || {
            rng.random_range(-1.0..1.0)
        });
        let bias_rank = match &forward.attn_mask {
            Some(RandomMask::Bias(bias)) => bias.shape().rank(),
            _ => 4,
        };
        let [query, key, value] = [(); 3].map(|()| dense_storage(rng, false));
        let bias = match bias_rank {
            0 => Storage::dense(0),
            rank => random_storage(rng, rank, false, CaseKind::Any),
        };
        Ok(DenseBackwardCase {
            forward,
            out,
            lse,
            grad_out,
            gradients: [query, key, value, bias],
        })
    }

    /// The same where nothing has gaps.
    pub fn whole(forward: DenseCase) -> Result<Self> {
        let mut case = DenseBackwardCase::new(forward)?;
        for tensor in [&mut case.out, &mut case.lse, &mut case.grad_out] {
            let mut numbers = tensor.to_f64().into_iter();
            let shape = tensor.shape();
            let storage = Storage::dense(shape.rank());
            *tensor = Tensor::from_fn(tensor.dtype(), shape.sizes(), &storage, || {
                numbers.next().unwrap_or_default()
            });
        }
        case.gradients[..3].fill(Storage::dense(4));
        Ok(case)
    }

    /// What forward computed.
    pub fn results(&self) -> ForwardResults<'_> {
        ForwardResults {
            out: self.out.view(),
            lse: self.lse.view(),
        }
    }

    /// The gradient of `out`.
    pub fn grad_out(&self) -> View<'_> {
        self.grad_out.view()
    }

    /// The bias, if there is one.
    pub fn bias(&self) -> Option<&Tensor> {
        match &self.forward.attn_mask {
            Some(RandomMask::Bias(bias)) => Some(bias),
            _ => None,
        }
    }
}

/// Which gradients a call computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseGradientSelection {
    /// The gradient of `query`.
    pub query: bool,
    /// The gradient of `key`.
    pub key: bool,
    /// The gradient of `value`.
    pub value: bool,
    /// The gradient of the bias, where there is one.
    pub bias: bool,
}

impl DenseGradientSelection {
    /// All of them.
    pub const ALL: DenseGradientSelection = DenseGradientSelection {
        query: true,
        key: true,
        value: true,
        bias: true,
    };

    /// Every selection of gradients, from none to all.
    pub fn choices() -> impl Iterator<Item = DenseGradientSelection> {
        (0..16).map(|bits| DenseGradientSelection {
            query: bits & 1 != 0,
            key: bits & 2 != 0,
            value: bits & 4 != 0,
            bias: bits & 8 != 0,
        })
    }
}

/// The gradients of a case; `None` for those not selected.
#[derive(Clone, Debug)]
pub struct DenseGradientTensors {
    /// Like `query`.
    pub query: Option<Tensor>,
    /// Like `key`.
    pub key: Option<Tensor>,
    /// Like `value`.
    pub value: Option<Tensor>,
    /// Like the bias.
    pub bias: Option<Tensor>,
}

impl DenseGradientTensors {
    /// NaN everywhere, laid out as the case says.
    pub fn poisoned(case: &DenseBackwardCase, selected: DenseGradientSelection) -> Self {
        let like = |selected: bool, tensor: &Tensor, storage| {
            selected.then(|| Tensor::poisoned(tensor.dtype(), tensor.shape().sizes(), storage))
        };
        let [query, key, value, bias] = &case.gradients;
        DenseGradientTensors {
            query: like(selected.query, &case.forward.query, query),
            key: like(selected.key, &case.forward.key, key),
            value: like(selected.value, &case.forward.value, value),
            bias: (case.bias()).and_then(|tensor| like(selected.bias, tensor, bias)),
        }
    }

    /// The outputs of backward.
    pub fn views(&mut self) -> Gradients<'_> {
        Gradients {
            query: self.query.as_mut().map(Tensor::view_mut),
            key: self.key.as_mut().map(Tensor::view_mut),
            value: self.value.as_mut().map(Tensor::view_mut),
            bias: self.bias.as_mut().map(Tensor::view_mut),
        }
    }

    /// Each with the name it has in errors.
    pub fn named(&self) -> [(&'static str, Option<&Tensor>); 4] {
        [
            ("grad_query", self.query.as_ref()),
            ("grad_key", self.key.as_ref()),
            ("grad_value", self.value.as_ref()),
            ("grad_bias", self.bias.as_ref()),
        ]
    }
}

/// The expected gradients of a case, and their error tolerance.
#[derive(Clone, Debug)]
pub struct ExpectedDenseGradients {
    /// The oracle's.
    pub exact: oracle::Gradients<f64>,
    /// The naive implementation's, whose error sets the error tolerance.
    pub naive: oracle::Gradients<f32>,
}

impl ExpectedDenseGradients {
    /// For a case, whose naive implementation keeps everything in f32 until the end.
    pub fn new(case: &DenseBackwardCase) -> Result<Self> {
        Self::with_naive(case, oracle::backward)
    }

    /// For a case, whose naive implementation stores weights and gradients of logits in the type of the queries, as every
    /// implementation on tensor cores does. Where terms cancel (keys that are all alike) that is what remains.
    pub fn stored(case: &DenseBackwardCase) -> Result<Self> {
        Self::with_naive(case, oracle::backward_stored)
    }

    fn with_naive(
        case: &DenseBackwardCase,
        naive: impl Fn(
            &Inputs<'_>,
            Options,
            &ForwardResults<'_>,
            &View<'_>,
        ) -> Result<oracle::Gradients<f32>>,
    ) -> Result<Self> {
        let (inputs, options) = (case.forward.inputs(), case.forward.options);
        let (results, grad_out) = (case.results(), case.grad_out());
        Ok(ExpectedDenseGradients {
            exact: oracle::backward(&inputs, options, &results, &grad_out)?,
            naive: naive(&inputs, options, &results, &grad_out)?,
        })
    }

    /// Runs the case on `backend` and compares every element of the selected gradients.
    pub fn check(
        &self,
        case: &DenseBackwardCase,
        backend: &Backend,
        selected: DenseGradientSelection,
    ) -> std::result::Result<(), Failure> {
        let mut found = DenseGradientTensors::poisoned(case, selected);
        let (inputs, options) = (case.forward.inputs(), case.forward.options);
        let (results, grad_out) = (case.results(), case.grad_out());
        dense::backward(backend, inputs, options, results, grad_out, found.views())?;
        self.compare(&found)
    }

    /// Checks every element of the computed gradients against the error tolerance, and that the memory around them is unchanged.
    pub fn compare(&self, found: &DenseGradientTensors) -> std::result::Result<(), Failure> {
        let (exact, naive) = (&self.exact, &self.naive);
        let expected = [
            Some((&exact.query, &naive.query)),
            Some((&exact.key, &naive.key)),
            Some((&exact.value, &naive.value)),
            exact.bias.as_ref().zip(naive.bias.as_ref()),
        ];
        for ((name, found), expected) in found.named().into_iter().zip(expected) {
            if let (Some(found), Some((exact, naive))) = (found, expected) {
                compare(name, Pass::Backward, found, exact, naive)?;
            }
        }
        Ok(())
    }
}
