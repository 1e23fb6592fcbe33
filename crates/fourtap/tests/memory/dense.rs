//! Dense attention allocates no more than it says, however long the sequences.

use fourtap::dense::{self, AttnMask, ForwardResults, Gradients, Inputs, Options};
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

#[test]
fn backward_keeps_the_sums_of_a_head_of_keys_per_thread() {
    let _alone = alone();
    let (threads, heads, channels) = (2, 2, 64);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    for length in [256, 2048] {
        let numbers = vec![bf16::from_f64(0.5); heads * length * channels];
        let mut gradients = [0; 3].map(|_| numbers.clone());
        let shape = [1, heads, length, channels];
        let tensor = View::new(&numbers, &shape);
        let lse = vec![8f32; heads * length];
        let results = ForwardResults {
            out: tensor,
            lse: View::new(&lse, &shape[..3]),
        };
        let inputs = Inputs::new(tensor, tensor, tensor);
        let mut attend = || {
            let [query, key, value] = gradients
                .each_mut()
                .map(|it| Some(ViewMut::new(it, &shape)));
            let gradients = Gradients {
                query,
                key,
                value,
                bias: None,
            };
            let (backend, options) = (Backend::default(), Options::default());
            pool.install(|| dense::backward(&backend, inputs, options, results, tensor, gradients))
                .unwrap();
        };
        attend(); // rayon allocates its queues once
        let peak = peak_of(attend);
        // Sums of all keys and values; four blocks of rows, keys and values of a tile, its weights and their gradients; and what
        // AMX tiles multiply of four blocks, packed in two ways, and of a tile, in half as many bytes.
        let numbers = length * 2 * channels + 4 * 64 * 5 * channels + 2 * 64 * (channels + 64);
        let numbers = numbers + 64 * (4 * 4 * channels + 3 * channels) / 2;
        let bound = threads * numbers * size_of::<f32>() + (64 << 10);
        assert!(
            peak <= bound,
            "{length} tokens: {peak} bytes, {bound} allowed"
        );
    }
}

#[test]
fn the_gradient_of_a_bias_needs_no_matrix_of_its_own() {
    let _alone = alone();
    let (threads, length, channels) = (2, 1024, 16);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    let numbers = vec![0.5f32; 2 * length * channels];
    let shape = [1, 2, length, channels];
    let tensor = View::new(&numbers, &shape);
    let lse = vec![8f32; 2 * length];
    let results = ForwardResults {
        out: tensor,
        lse: View::new(&lse, &shape[..3]),
    };
    // One for both heads, and one that is the same for all rows too.
    for shape in [&[length, length][..], &[length]] {
        let bias = vec![0.5f32; shape.iter().product()];
        let mut grad_bias = bias.clone();
        let inputs = Inputs {
            attn_mask: Some(AttnMask::Bias(View::new(&bias, shape))),
            ..Inputs::new(tensor, tensor, tensor)
        };
        let mut attend = || {
            let gradients = Gradients {
                bias: Some(ViewMut::new(&mut grad_bias, shape)),
                ..Gradients::default()
            };
            let (backend, options) = (Backend::default(), Options::default());
            pool.install(|| dense::backward(&backend, inputs, options, results, tensor, gradients))
                .unwrap();
        };
        attend();
        let peak = peak_of(attend);
        // Sixteen sums of 64 rows and all keys at most, and the blocks and tiles of each thread.
        let bound = 16 * 64 * length * size_of::<f32>() + threads * (150 << 10) + (64 << 10);
        assert!(peak <= bound, "{shape:?}: {peak} bytes, {bound} allowed");
    }
}
