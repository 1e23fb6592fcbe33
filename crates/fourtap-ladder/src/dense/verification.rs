//! Results of dense attention against the oracle.

use fourtap::dense::{Inputs, Options, oracle};
use fourtap::msda::oracle::Sum;
use fourtap::verify::{Pass, judge};
use fourtap::{DType, Element, Real, View, bf16, f16};
use fourtap_lab::extension::generate::sample_stream;
use fourtap_lab::extension::{Array, Result, Rule, TensorError, Verification};
use rand::RngExt;
use rayon::prelude::*;

use super::Numbers;

/// Rows compared of a result of which not all are.
const ROWS: usize = 200;

/// What a library is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// All of it.
    Attention,
    /// `Q K^T` alone, not scaled.
    Logits,
}

impl Numbers {
    /// Compares sampled rows of a result, or without a seed every row.
    pub fn verify(&self, out: &Array, seed: Option<u64>, rule: Rule) -> Result<Verification> {
        if let Some(element) = out.find_nan() {
            return Ok(Verification::failed(format!(
                "out: element {element} is NaN, or was never written"
            )));
        }
        let channels = self.sizes.value_channels;
        if let Some(seed) = seed {
            let rows = self.sampled_rows(seed);
            let found = rows
                .iter()
                .flat_map(|row| out.to_f64(row * channels, channels));
            return self.verify_rows(Product::Attention, &rows, &found.collect::<Vec<_>>(), rule);
        }
        let [query, key, value] = self.inputs().map(Array::view);
        let inputs = Inputs {
            query,
            key,
            value,
            attn_mask: None,
        };
        let reference = oracle::forward::<f64>(&inputs, self.options())?;
        let naive = oracle::naive(&inputs, self.options(), &reference)?.out;
        let found = out.to_f64(0, out.element_count());
        Ok(judged(
            out.dtype(),
            channels,
            &found,
            &reference.out,
            &naive,
            rule,
        ))
    }

    /// Rows of the result, counted through all sequences and heads, the first and the last among them.
    pub fn sampled_rows(&self, seed: u64) -> Vec<usize> {
        let all = self.sizes.batch * self.sizes.query_heads * self.sizes.queries;
        if all == 0 {
            return Vec::new();
        }
        let mut rng = sample_stream(seed);
        let any = (0..ROWS).map(|_| rng.random_range(0..all as u64) as usize);
        [0, all - 1].into_iter().chain(any).collect()
    }

    /// Compares some rows of a result, one after another in `found`.
    pub fn verify_rows(
        &self,
        product: Product,
        rows: &[usize],
        found: &[f64],
        rule: Rule,
    ) -> Result<Verification> {
        let width = match product {
            Product::Attention => self.sizes.value_channels,
            Product::Logits => self.sizes.keys,
        };
        if found.len() != rows.len() * width {
            return Ok(Verification::failed(format!(
                "{} numbers where {} rows of {width} were asked for",
                found.len(),
                rows.len()
            )));
        }
        let both = rows.par_iter().map(|&row| {
            let reference: Vec<Sum<f64>> = self.row(product, row)?;
            let naive: Vec<Sum<f32>> = self.row(product, row)?;
            Ok((reference, naive))
        });
        let both = both.collect::<Result<Vec<_>>>()?;
        let (reference, naive): (Vec<_>, Vec<_>) = both.into_iter().unzip();
        let (reference, naive) = (reference.concat(), naive.concat());
        let dtype = self.query.dtype();
        Ok(judged(dtype, width, found, &reference, &naive, rule))
    }

    /// What the oracle says of one row.
    fn row<R: Real>(&self, product: Product, row: usize) -> Result<Vec<Sum<R>>> {
        match self.query.dtype() {
            DType::F16 => self.row_of::<f16, R>(product, row),
            DType::BF16 => self.row_of::<bf16, R>(product, row),
            DType::F32 => self.row_of::<f32, R>(product, row),
            DType::F64 => self.row_of::<f64, R>(product, row),
        }
    }

    fn row_of<T: Element, R: Real>(&self, product: Product, row: usize) -> Result<Vec<Sum<R>>> {
        let (sizes, problem) = (&self.sizes, self.problem()?);
        let channels = sizes.channels;
        let plane = row / sizes.queries * sizes.keys;
        let rows = |array: &Array, first: usize, count: usize| {
            array.elements::<T>()[first * channels..][..count * channels].to_vec()
        };
        let query = rows(&self.query, row, 1);
        if product == Product::Logits {
            let keys = rows(&self.key, plane, sizes.keys);
            let number = |number: &T| R::from_f64(number.to_f64());
            let dot = |key: &[T]| {
                let mut dot: Sum<R> = Sum::default();
                for (q, k) in query.iter().zip(key) {
                    let term = number(q) * number(k);
                    dot.total += term;
                    dot.mass += term.magnitude();
                }
                dot
            };
            return Ok(keys.chunks(channels).map(dot).collect());
        }
        // A row by itself: of the keys it sees, all are seen.
        let seen = problem.visible(row % sizes.queries);
        let key = rows(&self.key, plane + seen.start, seen.len());
        let value = rows(&self.value, plane + seen.start, seen.len());
        let inputs = Inputs {
            query: View::new(&query, &[1, 1, 1, channels]),
            key: View::new(&key, &[1, 1, seen.len(), channels]),
            value: View::new(&value, &[1, 1, seen.len(), channels]),
            attn_mask: None,
        };
        let options = Options {
            scale: Some(problem.scale()),
            ..Options::default()
        };
        Ok(oracle::forward(&inputs, options)?.out)
    }
}

/// Whether rows of so many numbers keep the rule.
fn judged(
    dtype: DType,
    width: usize,
    found: &[f64],
    reference: &[Sum<f64>],
    naive: &[Sum<f32>],
    rule: Rule,
) -> Verification {
    let mut judgement = judge(Pass::Forward, dtype, found, reference, naive);
    if let Rule::Stated(share) = rule {
        let largest = reference.iter().map(|sum| sum.total.abs());
        judgement.relative_allowed = share;
        judgement.max_allowed = 8.0 * share * largest.fold(0.0, f64::max);
    }
    if !judgement.passed() {
        return Verification::failed(format!(
            "out: {:e} where the oracle says {:e}; off by {:.3e}, allowed {:.3e}; in the 2-norm {:.3e}, allowed {:.3e}",
            judgement.found,
            judgement.expected,
            judgement.max_error,
            judgement.max_allowed,
            judgement.relative_error,
            judgement.relative_allowed
        ));
    }
    Verification {
        passed: true,
        found: None,
        rows: found.len() / width.max(1),
        tensors: vec![TensorError {
            tensor: "out".to_string(),
            elements: found.len(),
            max_error: judgement.max_error,
            max_allowed: judgement.max_allowed,
            relative_error: judgement.relative_error,
            relative_allowed: judgement.relative_allowed,
        }],
    }
}
