//! Forward allocates no workspace, and backward no more than it says.

use fourtap::cpu::{Cpu, Tuning};
use fourtap::msda::{self, Gradients, Inputs, Levels};
use fourtap::{Backend, View, ViewMut, f16};

use crate::counting::{alone, peak_of};

#[test]
fn workspaces_stay_within_their_bounds() {
    let _alone = alone();
    let threads = 4;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    let levels = Levels::packed(&[(64, 64), (32, 32)]).unwrap();
    let (q, m, d, p) = (levels.pixels(), 4, 32, 4);
    let value = vec![1.0f32; levels.pixels() * m * d];
    let locations = vec![0.5f32; q * m * 2 * p * 2];
    let weights = vec![0.125f32; q * m * 2 * p];
    let inputs = Inputs {
        value: View::new(&value, &[1, levels.pixels(), m, d]),
        levels: (&levels).into(),
        sampling_locations: View::new(&locations, &[1, q, m, 2, p, 2]),
        attention_weights: View::new(&weights, &[1, q, m, 2, p]),
    };
    let mut out = vec![0f32; q * m * d];
    let mut grad_value = vec![0f32; value.len()];
    let (mut grad_locations, mut grad_weights) = (locations.clone(), weights.clone());
    let mut forward = || {
        let out = ViewMut::new(&mut out, &[1, q, m * d]);
        pool.install(|| msda::forward(&Backend::default(), inputs, out))
            .unwrap();
    };
    forward(); // rayon allocates its queues once
    let peak = peak_of(forward);
    assert!(peak < 64 << 10, "forward allocated {peak} bytes");

    // Levels in passes of their own: f32 sums wait in `out`, those of 16-bit types in a bounded buffer per thread.
    let tuning = Tuning {
        near_bytes: 1 << 10,
        ..Tuning::default()
    };
    let backend = Backend::Cpu(Cpu::new().with_tuning(tuning));
    let peak = peak_of(|| {
        let out = ViewMut::new(&mut out, &[1, q, m * d]);
        pool.install(|| msda::forward(&backend, inputs, out))
            .unwrap();
    });
    assert!(peak < 64 << 10, "forward in passes allocated {peak} bytes");
    let (halves, mut half_out) = (vec![f16::ONE; value.len()], vec![f16::NAN; q * m * d]);
    let half_inputs = Inputs {
        value: View::new(&halves, &[1, levels.pixels(), m, d]),
        ..inputs
    };
    let peak = peak_of(|| {
        let out = ViewMut::new(&mut half_out, &[1, q, m * d]);
        pool.install(|| msda::forward(&backend, half_inputs, out))
            .unwrap();
    });
    let bound = threads * tuning.task_bytes + (64 << 10);
    assert!(
        peak < bound,
        "forward of f16 allocated {peak} bytes, {bound} allowed"
    );

    let grad_out = vec![1f32; q * m * d];
    let peak = peak_of(|| {
        let gradients = Gradients {
            value: Some(ViewMut::new(&mut grad_value, &[1, levels.pixels(), m, d])),
            sampling_locations: Some(ViewMut::new(&mut grad_locations, &[1, q, m, 2, p, 2])),
            attention_weights: Some(ViewMut::new(&mut grad_weights, &[1, q, m, 2, p])),
        };
        let grad_out = View::new(&grad_out, &[1, q, m * d]);
        pool.install(|| msda::backward(&Backend::default(), inputs, grad_out, gradients))
            .unwrap();
    });
    let largest_level = 64 * 64 * d * size_of::<f32>();
    assert!(
        peak < threads * largest_level + (64 << 10),
        "backward allocated {peak} bytes"
    );
}
