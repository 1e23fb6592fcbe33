//! From projections on, forward keeps few samples at a time, and backward no more than it says.

use fourtap::msda::Levels;
use fourtap::msda::projections::{self, Points, ProjectionGradients, Projections};
use fourtap::{Backend, View, ViewMut};

use crate::counting::{alone, peak_of};

#[test]
fn placed_samples_stay_within_their_bounds() {
    let _alone = alone();
    let threads = 4;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    let levels = Levels::packed(&[(64, 64), (32, 32)]).unwrap();
    let (q, m, d, p) = (levels.pixels(), 4, 32, 4);
    let k = 2 * p;
    let value = vec![1.0f32; levels.pixels() * m * d];
    let references = vec![0.5f32; q * 2 * 2];
    let offsets = vec![0.25f32; q * m * k * 2];
    let logits = vec![0.0f32; q * m * k];
    let inputs = Projections {
        mask_is_applied: false,
        value: View::new(&value, &[1, levels.pixels(), m, d]),
        levels: (&levels).into(),
        reference_points: View::new(&references, &[1, q, 2, 2]),
        sampling_offsets: View::new(&offsets, &[1, q, m, k, 2]),
        attention_logits: View::new(&logits, &[1, q, m, k]),
        points: Points::Each(p),
        value_mask: None,
        interpolation: Default::default(),
        box_scale: Default::default(),
    };
    let mut out = vec![0f32; q * m * d];
    let mut forward = || {
        let out = ViewMut::new(&mut out, &[1, q, m * d]);
        pool.install(|| projections::forward(&Backend::default(), inputs, out))
            .unwrap();
    };
    forward(); // rayon allocates its queues once
    // Placed samples and tables of the samples of a head; backward has a gradient for each number of them.
    let bound = threads * (800 << 10) + (64 << 10);
    let peak = peak_of(forward);
    assert!(
        peak < bound,
        "forward allocated {peak} bytes, {bound} allowed"
    );

    let bound = 2 * bound;
    let grad_out = vec![1f32; q * m * d];
    let mut grad_value = value.clone();
    let (mut grad_references, mut grad_offsets, mut grad_logits) =
        (references.clone(), offsets.clone(), logits.clone());
    let mut backward = |of_value: bool| {
        let gradients = ProjectionGradients {
            value: of_value.then(|| ViewMut::new(&mut grad_value, &[1, levels.pixels(), m, d])),
            reference_points: Some(ViewMut::new(&mut grad_references, &[1, q, 2, 2])),
            sampling_offsets: Some(ViewMut::new(&mut grad_offsets, &[1, q, m, k, 2])),
            attention_logits: Some(ViewMut::new(&mut grad_logits, &[1, q, m, k])),
        };
        let grad_out = View::new(&grad_out, &[1, q, m * d]);
        pool.install(|| projections::backward(&Backend::default(), inputs, grad_out, gradients))
            .unwrap();
    };
    let peak = peak_of(|| backward(false));
    assert!(
        peak < bound,
        "backward without the gradient of value allocated {peak} bytes, {bound} allowed"
    );
    // Three numbers of each sample, and the sums of a level for each thread.
    let samples = 3 * q * m * k * size_of::<f32>();
    let bound = bound + samples + threads * 64 * 64 * d * size_of::<f32>();
    let peak = peak_of(|| backward(true));
    assert!(
        peak < bound,
        "backward allocated {peak} bytes, {bound} allowed"
    );
}
