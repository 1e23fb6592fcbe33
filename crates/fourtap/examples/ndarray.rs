//! Deformable attention and its gradients on arrays of `ndarray`, with heads first in memory and no copy of them:
//! `cargo run -p fourtap --features ndarray --example ndarray`.

use fourtap::msda::{self, Gradients, Inputs, Levels};
use fourtap::{Backend, View, ViewMut};
use ndarray::{Array, Array3, Array4, Array6};

fn main() -> fourtap::Result<()> {
    let levels = Levels::packed(&[(6, 8), (3, 4)])?;
    let (n, s, m, d, q, l, p) = (1, levels.pixels(), 2, 4, 5, 2, 3);

    // Stored as [N, M, S, D]; the operator wants [N, S, M, D], so two axes are exchanged.
    let stored = Array::from_shape_fn((n, m, s, d), |(_, head, pixel, channel)| {
        (head * 100 + pixel + channel) as f32
    });
    let value = stored.view().permuted_axes([0, 2, 1, 3]);
    let locations = Array6::from_elem((n, q, m, l, p, 2), 0.5f32);
    // One weight for all, broadcast: its strides are 0.
    let weight = Array::from_elem((1, 1, 1, 1, 1), 1.0 / (l * p) as f32);
    let weights = weight
        .broadcast((n, q, m, l, p))
        .expect("one element broadcasts to any shape");

    let inputs = Inputs {
        value: View::from(value),
        levels: (&levels).into(),
        sampling_locations: View::from(&locations),
        attention_weights: View::from(weights),
    };
    let backend = Backend::default();
    let mut out = Array3::<f32>::zeros((n, q, m * d));
    msda::forward(&backend, inputs, ViewMut::from(&mut out))?;
    println!(
        "out of the first query: {}",
        out.slice(ndarray::s![0, 0, ..])
    );

    let grad_out = Array3::from_elem(out.raw_dim(), 1.0f32);
    let mut grad_stored = Array4::<f32>::zeros(stored.raw_dim());
    let grad_value = grad_stored.view_mut().permuted_axes([0, 2, 1, 3]);
    let gradients = Gradients {
        value: Some(ViewMut::from(grad_value)),
        ..Gradients::default()
    };
    msda::backward(&backend, inputs, View::from(&grad_out), gradients)?;
    // Every sample is in the middle, and the weights of a query sum to 1: so each query gives each channel a gradient of 1.
    println!("sum of grad_value: {}", grad_stored.sum());
    Ok(())
}
