//! Dense attention allocates no more than it says, however long the sequences.

use fourtap::dense::{self, Inputs, Options};
use fourtap::{Backend, Element, View, ViewMut, bf16};

use crate::counting::{alone, peak_of};

#[test]
fn workspaces_do_not_grow_with_the_sequences() {
    let _alone = alone();
    // Queries and sums of four blocks of 64, weights, keys and values of a step of 64.
    peak_is_within::<f32>(11 * 64 * 64 * size_of::<f32>());
    // Queries and sums of sixteen blocks of 32, logits, weights, keys and values of a step of 256.
    peak_is_within::<bf16>(310 << 10);
}

/// For each thread, and what rayon needs.
fn peak_is_within<E: Element>(bytes: usize) {
    let (threads, channels) = (2, 64);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    let bound = threads * bytes + (64 << 10);
    for length in [256, 4096] {
        let numbers = vec![E::from_f64(0.5); length * channels];
        let mut out = vec![E::default(); numbers.len()];
        let shape = [1, 1, length, channels];
        let tensor = View::new(&numbers, &shape);
        let inputs = Inputs {
            query: tensor,
            key: tensor,
            value: tensor,
            attn_mask: None,
        };
        let mut attend = || {
            let out = ViewMut::new(&mut out, &shape);
            pool.install(|| dense::forward(&Backend::default(), inputs, Options::default(), out))
                .unwrap();
        };
        attend(); // rayon allocates its queues once
        let peak = peak_of(attend);
        assert!(
            peak <= bound,
            "{length} tokens of {}: {peak} bytes, {bound} allowed",
            E::DTYPE
        );
    }
}
