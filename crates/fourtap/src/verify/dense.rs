//! Random problems of dense attention from a seed, and their expected results.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::case::{CaseKind, pick, random_storage};
use super::compare::{Failure, compare};
use super::dense_mask::RandomMask;
use super::rule::{Pass, judge};
use super::tensor::{Storage, Tensor};
use crate::backend::Backend;
use crate::dense::oracle::{self, Attention};
use crate::dense::{self, Alignment, Inputs, Mask, Options, Outputs, Problem, Sizes};
use crate::dtype::DType;
use crate::error::Result;
use crate::oracle::Sum;

/// A problem with its data.
#[derive(Clone, Debug)]
pub struct DenseCase {
    /// The seed it was made from.
    pub seed: u64,
    /// `[B, Hq, Sq, D]`.
    pub query: Tensor,
    /// `[B, Hk, Sk, D]`.
    pub key: Tensor,
    /// `[B, Hk, Sk, Dv]`.
    pub value: Tensor,
    /// None, unless it was asked for.
    pub attn_mask: Option<RandomMask>,
    /// Scale and mask.
    pub options: Options,
    /// Layout of the outputs: `out`, then `lse`.
    pub outputs: [Storage; 2],
}

/// Approximate multiply-adds of one random case: small enough that the oracle takes milliseconds.
const WORK: usize = 400_000;

impl DenseCase {
    /// The problem of this seed, the same on every machine.
    pub fn random(seed: u64) -> Self {
        DenseCase::random_of(seed, &DType::ALL)
    }

    /// The same, with one of these element types.
    pub fn random_of(seed: u64, dtypes: &[DType]) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let sizes = random_sizes(rng);
        let dtype = pick(rng, dtypes);
        DenseCase::with_sizes(seed, dtype, &sizes)
    }

    /// A typical problem: channels that fill vectors, tensors without gaps, heads inside or outside the sequence.
    pub fn aligned(seed: u64, dtypes: &[DType]) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_add(2 << 32));
        let mut sizes = random_sizes(rng);
        sizes.channels = pick(rng, &[8, 32, 64, 64, 72, 96, 128, 160, 192, 256]);
        sizes.value_channels = match rng.random_bool(0.2) {
            true => pick(rng, &[16, 32, 64, 128, 256]),
            false => sizes.channels,
        };
        let dtype = pick(rng, dtypes);
        let case = DenseCase::with_sizes(seed, dtype, &sizes);
        let mut moved = |tensor: &Tensor| {
            let mut numbers = tensor.to_f64().into_iter();
            let storage = whole_storage(rng);
            Tensor::from_fn(dtype, tensor.shape().sizes(), &storage, || {
                numbers.next().unwrap_or_default()
            })
        };
        DenseCase {
            query: moved(&case.query),
            key: moved(&case.key),
            value: moved(&case.value),
            outputs: [whole_storage(rng), Storage::dense(3)],
            ..case
        }
    }

    /// The problem of this seed among those of these sizes and this type.
    pub fn with_sizes(seed: u64, dtype: DType, sizes: &Sizes) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_add(1 << 32));
        let options = random_options(rng, sizes);
        // Logits around 1, all alike, peaked, and so large that their last bit matters.
        let spread = pick(rng, &[1.0, 1.0, 1.0, 0.0, 6.0, 60.0]);
        let mut tensor = |shape: &[usize], spread: f64| {
            let storage = dense_storage(rng, true);
            let numbers = &mut Xoshiro256PlusPlus::seed_from_u64(rng.random());
            Tensor::from_fn(dtype, shape, &storage, || {
                spread * numbers.random_range(-1.7..1.7)
            })
        };
        DenseCase {
            seed,
            query: tensor(&sizes.query(), spread),
            key: tensor(&sizes.key(), 1.0),
            value: tensor(&sizes.value(), 1.0),
            attn_mask: None,
            options,
            outputs: [
                dense_storage(rng, false),
                random_storage(rng, 3, false, CaseKind::Any),
            ],
        }
    }

    /// The same problem with the mask or bias of its seed.
    pub fn with_mask(self) -> Self {
        let plain = Problem::new(&self.inputs(), self.options);
        let mask = plain.map(|plain| RandomMask::new(self.seed, plain.sizes(), plain.dtype()));
        DenseCase {
            attn_mask: mask.ok(),
            ..self
        }
    }

    /// The inputs of the operator.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            query: self.query.view(),
            key: self.key.view(),
            value: self.value.view(),
            attn_mask: self.attn_mask.as_ref().map(RandomMask::view),
        }
    }
}

/// The results of the oracle and of the naive implementation for a case.
pub struct ExpectedDenseResults {
    problem: Problem,
    oracle: Attention<f64>,
    naive: Attention<f32>,
}

impl ExpectedDenseResults {
    /// Computes both for a case.
    pub fn new(case: &DenseCase) -> Result<Self> {
        let (inputs, options) = (case.inputs(), case.options);
        let oracle = oracle::forward(&inputs, options)?;
        Ok(ExpectedDenseResults {
            problem: Problem::new(&inputs, options)?,
            naive: oracle::naive(&inputs, options, &oracle)?,
            oracle,
        })
    }

    /// Runs the case on `backend` and compares every element; `lse` only if requested.
    pub fn check(
        &self,
        case: &DenseCase,
        backend: &Backend,
        with_lse: bool,
    ) -> std::result::Result<(), Failure> {
        let sizes = self.problem.sizes();
        let [of_out, of_lse] = &case.outputs;
        let mut out = Tensor::poisoned(self.problem.dtype(), &sizes.out(), of_out);
        let mut lse = Tensor::poisoned(self.problem.lse_dtype(), &sizes.lse(), of_lse);
        let outputs = Outputs {
            out: out.view_mut(),
            lse: with_lse.then(|| lse.view_mut()),
        };
        dense::forward(backend, case.inputs(), case.options, outputs)?;
        self.compare(&out, with_lse.then_some(&lse))
    }

    /// Compares every element of a backend's results.
    pub fn compare(&self, out: &Tensor, lse: Option<&Tensor>) -> std::result::Result<(), Failure> {
        let (oracle, naive) = (&self.oracle.out, &self.naive.out);
        compare("out", Pass::Forward, out, oracle, naive)?;
        lse.map_or(Ok(()), |lse| self.compare_lse(lse))
    }

    /// A query that sees no key has an LSE of minus infinity, for which no error can be computed.
    fn compare_lse(&self, lse: &Tensor) -> std::result::Result<(), Failure> {
        let tensor = "lse";
        let elements = lse.damaged_guards();
        if elements > 0 {
            return Err(Failure::WroteOutside { tensor, elements });
        }
        let mut found = lse.to_f64();
        let (mut oracle, mut naive) = (self.oracle.lse.clone(), self.naive.lse.clone());
        for (index, found) in found.iter_mut().enumerate() {
            if *found == f64::NEG_INFINITY && oracle[index].total == f64::NEG_INFINITY {
                (*found, oracle[index], naive[index]) = (0.0, Sum::default(), Sum::default());
            }
        }
        let judgement = judge(Pass::Forward, lse.dtype(), &found, &oracle, &naive);
        match judgement.passed() {
            true => Ok(()),
            false => Err(Failure::Inaccurate { tensor, judgement }),
        }
    }
}

fn random_sizes(rng: &mut Xoshiro256PlusPlus) -> Sizes {
    const CHANNELS: [usize; 20] = [
        1, 2, 3, 5, 7, 8, 15, 16, 17, 24, 31, 32, 33, 40, 64, 64, 80, 96, 128, 256,
    ];
    const LENGTHS: [usize; 22] = [
        0, 1, 1, 2, 3, 5, 6, 7, 13, 16, 17, 31, 63, 64, 65, 100, 113, 128, 129, 203, 239, 300,
    ];
    loop {
        let channels = pick(rng, &CHANNELS);
        let key_heads = pick(rng, &[0, 1, 1, 1, 2, 2, 3, 5]);
        let sizes = Sizes {
            batch: pick(rng, &[0, 1, 1, 1, 1, 2, 2, 3]),
            query_heads: key_heads * pick(rng, &[1, 1, 1, 2, 3, 4, 8]),
            key_heads,
            queries: pick(rng, &LENGTHS),
            keys: pick(rng, &LENGTHS),
            channels,
            value_channels: match rng.random_bool(0.3) {
                true => pick(rng, &CHANNELS),
                false => channels,
            },
        };
        let rows: usize = sizes.lse().iter().product();
        let work = rows * (sizes.keys + 1) * (sizes.channels + sizes.value_channels);
        // An empty problem is worth a test now and then, not every time a size may be 0.
        let empty = rows == 0 || sizes.keys == 0;
        if work <= WORK && (!empty || rng.random_bool(0.1)) {
            return sizes;
        }
    }
}

fn random_options(rng: &mut Xoshiro256PlusPlus, sizes: &Sizes) -> Options {
    let alignment = pick(rng, &[Alignment::TopLeft, Alignment::BottomRight]);
    let mut bound = || match rng.random_range(0..5) {
        0 => None,
        1 => Some(0),
        2 => Some(rng.random_range(0..4)),
        3 => Some(rng.random_range(0..sizes.keys + 2)),
        _ => Some(64),
    };
    let (left, right) = (bound(), bound());
    let mask = match rng.random_range(0..6) {
        0 | 1 => Mask::default(),
        2 | 3 => Mask::causal(alignment),
        4 => Mask::causal(alignment).with_window(left, right),
        _ => Mask::window(alignment, left, right),
    };
    let scale = match rng.random_range(0..8) {
        0 => Some(rng.random_range(-1.0..1.0)),
        1 => Some(pick(rng, &[0.0, 1.0, 0.125])),
        _ => None,
    };
    Options { scale, mask }
}

/// Any layout, or with the heads inside the sequence.
pub(super) fn dense_storage(rng: &mut Xoshiro256PlusPlus, input: bool) -> Storage {
    if rng.random_bool(0.7) {
        return random_storage(rng, 4, input, CaseKind::Any);
    }
    Storage {
        order: vec![0, 2, 1, 3],
        guard: pick(rng, &[0, 3]),
        ..Storage::dense(4)
    }
}

/// Without gaps, heads inside or outside the sequence.
fn whole_storage(rng: &mut Xoshiro256PlusPlus) -> Storage {
    Storage {
        order: pick(rng, &[[0, 1, 2, 3], [0, 2, 1, 3]]).to_vec(),
        ..Storage::dense(4)
    }
}
