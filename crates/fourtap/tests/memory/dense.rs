//! Dense attention allocates no more than it says, however long the sequences.

use fourtap::dense::{self, Inputs, Options};
use fourtap::{Backend, View, ViewMut};

use crate::counting::{alone, peak_of};

#[test]
fn workspaces_do_not_grow_with_the_sequences() {
    let _alone = alone();
    let (threads, channels) = (2, 64);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    // Queries and sums of four blocks of 64, weights, keys and values of a step of 64, and what rayon needs.
    let bound = threads * 11 * 64 * channels * size_of::<f32>() + (64 << 10);
    for length in [256, 4096] {
        let numbers = vec![0.5f32; length * channels];
        let mut out = vec![f32::NAN; numbers.len()];
        let shape = [1, 1, length, channels];
        let tensor = View::new(&numbers, &shape);
        let inputs = Inputs {
            query: tensor,
            key: tensor,
            value: tensor,
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
            "{length} tokens: {peak} bytes, {bound} allowed"
        );
    }
}
