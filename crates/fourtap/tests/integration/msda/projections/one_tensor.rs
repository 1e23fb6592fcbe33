//! Gradients of offsets and logits in one tensor, as the gradient of one linear layer's result is.

use fourtap::msda::projections::{self, ProjectionGradients};
use fourtap::{Backend, DType, Layout, ViewMut};

use super::example::{Example, Size};

const SIZE: Size = Size {
    n: 2,
    q: 3,
    m: 2,
    d: 4,
};
const SAMPLES: usize = 5;
/// Numbers in a row: offsets, then logits.
const ROW: usize = SIZE.m * SAMPLES * 3;

fn example() -> Example<f32> {
    Example::new(
        SIZE,
        &[(6, 5), (3, 2)],
        &[3, 2],
        &[SIZE.n, SIZE.q, 2, 2],
        11,
    )
}

/// Computes both gradients in `numbers`, whose rows are that far apart, logits from that number of a row on.
fn backward(
    example: &Example<f32>,
    numbers: &mut [f32],
    by_query: usize,
    logits_from: usize,
) -> fourtap::Result<()> {
    let Size { n, q, m, .. } = SIZE;
    let (by_image, by_query) = ((q * by_query) as isize, by_query as isize);
    let samples = SAMPLES as isize;
    let first = numbers.as_mut_ptr();
    let part = |from: usize, sizes: &[usize], strides: &[isize]| {
        let strides = [&[by_image, by_query], strides].concat();
        let layout = Layout::strided(DType::F32, sizes, &strides);
        // SAFETY: `numbers` outlives the call and is long enough; that no element is written twice is what is checked.
        unsafe { ViewMut::from_raw(first.add(from).cast(), layout) }
    };
    let gradients = ProjectionGradients {
        sampling_offsets: Some(part(0, &[n, q, m, SAMPLES, 2], &[samples * 2, 2, 1])),
        attention_logits: Some(part(logits_from, &[n, q, m, SAMPLES], &[samples, 1])),
        ..ProjectionGradients::default()
    };
    let backend = Backend::default();
    projections::backward(&backend, example.call(), example.grad_out(), gradients)
}

#[test]
fn both_gradients_may_be_parts_of_one_tensor() {
    let example = example();
    let [_, _, offsets, logits] = example.backward(&Backend::default(), [true; 4]);
    let of_row = |row: usize| {
        let (offsets, logits) = (offsets.chunks(ROW / 3 * 2), logits.chunks(ROW / 3));
        let both = offsets.zip(logits).nth(row).unwrap();
        [both.0, both.1].concat()
    };
    for gap in [0, 3] {
        let by_query = ROW + gap;
        let mut numbers = vec![7.0f32; SIZE.n * SIZE.q * by_query];
        backward(&example, &mut numbers, by_query, ROW / 3 * 2).unwrap();
        for (row, found) in numbers.chunks(by_query).enumerate() {
            assert_eq!(found[..ROW], of_row(row), "row {row}, gap {gap}");
            assert!(found[ROW..].iter().all(|&number| number == 7.0));
        }
    }
}

#[test]
fn parts_with_common_elements_are_refused() {
    let example = example();
    let mut numbers = vec![7.0f32; SIZE.n * SIZE.q * ROW + ROW];
    // The first logits are the last offsets; the last logits are the next row's first offsets.
    for logits_from in [ROW / 3 * 2 - 1, ROW / 3 * 2 + 1] {
        let refused = backward(&example, &mut numbers, ROW, logits_from).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "grad_logits: expected memory of its own, found it sharing bytes with grad_offsets"
        );
        assert!(numbers.iter().all(|&number| number == 7.0));
    }
}
