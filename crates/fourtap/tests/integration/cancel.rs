//! Calls that are given up before they are done.

use std::sync::atomic::{AtomicBool, Ordering};

use fourtap::cpu::Cpu;
use fourtap::dense;
use fourtap::msda::projections::{self, Points, ProjectionGradients, Projections};
use fourtap::msda::{self, Gradients, Inputs, Levels};
use fourtap::{Error, Result, View, ViewMut};

static SET: AtomicBool = AtomicBool::new(true);
static NOT_SET: AtomicBool = AtomicBool::new(false);

/// Large enough to be cut into tasks.
const QUERIES: usize = 4000;
const CHANNELS: usize = 32;

fn forward(cpu: Cpu) -> (Result<()>, Vec<f32>) {
    let (value, weights) = (vec![1.0f32; 64 * CHANNELS], vec![1.0f32; QUERIES * 4]);
    let (locations, levels) = (
        vec![0.5f32; QUERIES * 8],
        Levels::packed(&[(8, 8)]).unwrap(),
    );
    let mut out = vec![f32::NAN; QUERIES * CHANNELS];
    let inputs = Inputs {
        value: View::new(&value, &[1, 64, 1, CHANNELS]),
        levels: (&levels).into(),
        sampling_locations: View::new(&locations, &[1, QUERIES, 1, 1, 4, 2]),
        attention_weights: View::new(&weights, &[1, QUERIES, 1, 1, 4]),
    };
    let shape = [1, QUERIES, CHANNELS];
    let done = msda::forward(&cpu, inputs, ViewMut::new(&mut out, &shape));
    (done, out)
}

fn backward(cpu: Cpu, of_value: bool) -> Result<()> {
    let (value, weights) = (vec![1.0f32; 64 * CHANNELS], vec![1.0f32; QUERIES * 4]);
    let (locations, levels) = (
        vec![0.5f32; QUERIES * 8],
        Levels::packed(&[(8, 8)]).unwrap(),
    );
    let grad_out = vec![1.0f32; QUERIES * CHANNELS];
    let (mut grad_value, mut grad_weights) = (value.clone(), weights.clone());
    let value_shape = [1, 64, 1, CHANNELS];
    let weights_shape = [1, QUERIES, 1, 1, 4];
    let inputs = Inputs {
        value: View::new(&value, &value_shape),
        levels: (&levels).into(),
        sampling_locations: View::new(&locations, &[1, QUERIES, 1, 1, 4, 2]),
        attention_weights: View::new(&weights, &weights_shape),
    };
    let gradients = Gradients {
        value: of_value.then(|| ViewMut::new(&mut grad_value, &value_shape)),
        sampling_locations: None,
        attention_weights: (!of_value).then(|| ViewMut::new(&mut grad_weights, &weights_shape)),
    };
    let grad_out = View::new(&grad_out, &[1, QUERIES, CHANNELS]);
    msda::backward(&cpu, inputs, grad_out, gradients)
}

fn from_projections(cpu: Cpu, backward: bool, of_value: bool) -> Result<()> {
    let (value, logits) = (vec![1.0f32; 64 * CHANNELS], vec![1.0f32; QUERIES * 4]);
    let (offsets, levels) = (
        vec![0.5f32; QUERIES * 8],
        Levels::packed(&[(8, 8)]).unwrap(),
    );
    let value_shape = [1, 64, 1, CHANNELS];
    let logits_shape = [1, QUERIES, 1, 4];
    let inputs = Projections {
        value: View::new(&value, &value_shape),
        levels: (&levels).into(),
        reference_points: View::new(&[0.5f32, 0.5], &[1, 1, 1, 2]),
        sampling_offsets: View::new(&offsets, &[1, QUERIES, 1, 4, 2]),
        attention_logits: View::new(&logits, &logits_shape),
        points: Points::Each(4),
        value_mask: None,
        mask_is_applied: false,
        interpolation: Default::default(),
        box_scale: Default::default(),
    };
    let mut out = vec![f32::NAN; QUERIES * CHANNELS];
    let out_shape = [1, QUERIES, CHANNELS];
    if !backward {
        return projections::forward(&cpu, inputs, ViewMut::new(&mut out, &out_shape));
    }
    let (mut grad_value, mut grad_logits) = (value.clone(), logits.clone());
    let gradients = ProjectionGradients {
        value: of_value.then(|| ViewMut::new(&mut grad_value, &value_shape)),
        attention_logits: (!of_value).then(|| ViewMut::new(&mut grad_logits, &logits_shape)),
        ..ProjectionGradients::default()
    };
    projections::backward(&cpu, inputs, View::new(&out, &out_shape), gradients)
}

/// Forward, and backward with and without the gradient of value.
fn all_from_projections(cpu: Cpu) -> [Result<()>; 3] {
    [(false, false), (true, true), (true, false)]
        .map(|(backward, of_value)| from_projections(cpu, backward, of_value))
}

fn attend(cpu: Cpu) -> Result<()> {
    let shape = [1, 2, 200, 64];
    let numbers = vec![1.0f32; shape.iter().product()];
    let mut out = numbers.clone();
    let inputs = dense::Inputs {
        query: View::new(&numbers, &shape),
        key: View::new(&numbers, &shape),
        value: View::new(&numbers, &shape),
        attn_mask: None,
    };
    let outputs = ViewMut::new(&mut out, &shape);
    dense::forward(&cpu, inputs, dense::Options::default(), outputs)
}

/// Gradients of queries, keys and values, or of a bias.
fn attend_backward(cpu: Cpu, of_bias: bool) -> Result<()> {
    let shape = [1, 2, 200, 64];
    let numbers = vec![1.0f32; shape.iter().product()];
    let (lse, bias) = (vec![8.0f32; 400], vec![0.0f32; 200]);
    let mut gradients = [0; 3].map(|_| numbers.clone());
    let mut grad_bias = bias.clone();
    let tensor = View::new(&numbers, &shape);
    let inputs = dense::Inputs {
        attn_mask: Some(dense::AttnMask::Bias(View::new(&bias, &[200]))),
        ..dense::Inputs::new(tensor, tensor, tensor)
    };
    let results = dense::ForwardResults {
        out: tensor,
        lse: View::new(&lse, &shape[..3]),
    };
    let [query, key, value] =
        (gradients.each_mut()).map(|gradient| (!of_bias).then(|| ViewMut::new(gradient, &shape)));
    let gradients = dense::Gradients {
        query,
        key,
        value,
        bias: of_bias.then(|| ViewMut::new(&mut grad_bias, &[200])),
    };
    let options = dense::Options::default();
    dense::backward(&cpu, inputs, options, results, tensor, gradients)
}

#[test]
fn a_cancelled_call_says_so() {
    let cpu = Cpu::new().cancelled_by(&SET);
    let (done, out) = forward(cpu);
    assert_eq!(done, Err(Error::Cancelled));
    assert!(out.iter().all(|number| number.is_nan()));
    assert_eq!(backward(cpu, true), Err(Error::Cancelled));
    assert_eq!(backward(cpu, false), Err(Error::Cancelled));
    assert_eq!(
        all_from_projections(cpu),
        [0; 3].map(|_| Err(Error::Cancelled))
    );
    assert_eq!(attend(cpu), Err(Error::Cancelled));
    assert_eq!(attend_backward(cpu, false), Err(Error::Cancelled));
    assert_eq!(attend_backward(cpu, true), Err(Error::Cancelled));
}

#[test]
fn a_flag_that_is_not_set_changes_nothing() {
    let cpu = Cpu::new().cancelled_by(&NOT_SET);
    let (done, out) = forward(cpu);
    assert_eq!(done, Ok(()));
    assert_eq!(out, forward(Cpu::new()).1);
    assert_eq!(backward(cpu, true), Ok(()));
    assert_eq!(backward(cpu, false), Ok(()));
    assert_eq!(all_from_projections(cpu), [Ok(()), Ok(()), Ok(())]);
    assert_eq!(attend(cpu), Ok(()));
    assert_eq!(attend_backward(cpu, false), Ok(()));
    assert_eq!(attend_backward(cpu, true), Ok(()));
    assert!(!NOT_SET.load(Ordering::Relaxed));
}

#[test]
fn backends_differ_by_their_flags() {
    assert_ne!(Cpu::new().cancelled_by(&SET), Cpu::new());
    assert_ne!(
        Cpu::new().cancelled_by(&SET),
        Cpu::new().cancelled_by(&NOT_SET)
    );
    assert_eq!(Cpu::new().cancelled_by(&SET), Cpu::new().cancelled_by(&SET));
}
