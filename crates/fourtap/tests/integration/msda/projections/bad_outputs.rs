//! Malformed outputs: each ends in its typed error, and is left as it was.

use fourtap::msda::projections::{self, ProjectionGradients};
use fourtap::{Backend, View, ViewMut, f16};

use super::bad_calls::legal;

#[test]
fn outputs_that_do_not_fit_are_refused() {
    let example = legal(2);
    let message = |out: ViewMut<'_>| {
        let error = projections::forward(&Backend::default(), example.call(), out).unwrap_err();
        error.to_string()
    };
    let (mut out, mut halves) = (vec![7.0f32; 48], vec![f16::ONE; 48]);
    assert_eq!(
        message(ViewMut::new(&mut out, &[2, 24])),
        "out: expected rank 3 [N, Q, M*D], found rank 2"
    );
    assert_eq!(
        message(ViewMut::new(&mut out, &[2, 4, 6])),
        "out: expected shape [2, 3, 8], found [2, 4, 6]"
    );
    assert_eq!(
        message(ViewMut::new(&mut halves, &[2, 3, 8])),
        "out: expected element type f32 (that of value), found f16"
    );
    assert_eq!(
        message(ViewMut::strided(&mut out, 0, &[2, 3, 8], &[24, 0, 1])),
        "out: expected each element at its own address, found shape [2, 3, 8] with strides [24, 0, 1]"
    );
    let memory = example.inputs[0].as_ptr().cast_mut().cast();
    let layout = fourtap::Layout::contiguous(fourtap::DType::F32, &[2, 3, 8]);
    // SAFETY: the call is refused before anything is written.
    let shared = unsafe { ViewMut::from_raw(memory, layout) };
    assert_eq!(
        message(shared),
        "out: expected memory of its own, found it sharing bytes with value"
    );
}

/// The gradient of one input.
fn only(input: usize, view: ViewMut<'_>) -> ProjectionGradients<'_> {
    let mut gradients = ProjectionGradients::default();
    match input {
        0 => gradients.value = Some(view),
        1 => gradients.reference_points = Some(view),
        2 => gradients.sampling_offsets = Some(view),
        _ => gradients.attention_logits = Some(view),
    }
    gradients
}

#[test]
fn gradients_that_do_not_fit_are_refused() {
    let example = legal(4);
    let refused = |grad_out: View<'_>, gradients: ProjectionGradients<'_>| {
        let call = example.call();
        let error = projections::backward(&Backend::default(), call, grad_out, gradients);
        error.unwrap_err().to_string()
    };
    let none = ProjectionGradients::default;
    let numbers = vec![1.0f32; 48];
    assert_eq!(
        refused(View::new(&numbers, &[2, 24]), none()),
        "grad_out: expected rank 3 [N, Q, M*D], found rank 2"
    );
    assert_eq!(
        refused(View::new(&numbers, &[2, 4, 6]), none()),
        "grad_out: expected shape [2, 3, 8], found [2, 4, 6]"
    );
    let halves = vec![f16::ONE; 48];
    assert_eq!(
        refused(View::new(&halves, &[2, 3, 8]), none()),
        "grad_out: expected element type f32 (that of value), found f16"
    );
    let shapes = example.shapes();
    let names = [
        "grad_value",
        "grad_references",
        "grad_offsets",
        "grad_logits",
    ];
    for (input, name) in names.into_iter().enumerate() {
        let mut numbers = vec![7.0f32; example.inputs[input].len()];
        let flat = [numbers.len()];
        let shape = fourtap::Shape::new(&shapes[input]);
        assert_eq!(
            refused(
                example.grad_out(),
                only(input, ViewMut::new(&mut numbers, &flat))
            ),
            format!("{name}: expected shape {shape}, found [{}]", flat[0])
        );
        assert!(numbers.iter().all(|&number| number == 7.0));
        let mut doubles = vec![7.0f64; numbers.len()];
        let source = super::example::NAMES[input];
        assert_eq!(
            refused(
                example.grad_out(),
                only(input, ViewMut::new(&mut doubles, &shapes[input]))
            ),
            format!("{name}: expected element type f32 (that of {source}), found f64")
        );
        let layout = fourtap::Layout::contiguous(fourtap::DType::F32, &shapes[input]);
        let memory = example.grad_out.as_ptr().cast_mut().cast();
        // SAFETY: the call is refused before anything is written.
        let shared = unsafe { ViewMut::from_raw(memory, layout) };
        // It is longer than `grad_out`: what lies behind that in memory may be named as well.
        let message = refused(example.grad_out(), only(input, shared));
        let expected = format!("{name}: expected memory of its own, found it sharing bytes with");
        assert!(message.starts_with(&expected), "{message}");
    }
}
