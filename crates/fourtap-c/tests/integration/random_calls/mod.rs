//! Random problems through the C ABI agree with the f64 oracle: every operator, element type and layout, with the gradients of a
//! random selection.

mod descriptors;

use std::ptr::null;

use fourtap::dense::{self, Alignment};
use fourtap::msda;
use fourtap::msda::projections::{Interpolation, ProjectedProblem};
use fourtap::verify::{
    Case, DenseBackwardCase, DenseCase, DenseGradientSelection, DenseGradientTensors,
    ExpectedDenseGradients, ExpectedDenseResults, ExpectedProjectedResults, ExpectedResults,
    Failure, GradientSelection, GradientTensors, ProjectedCase, ProjectedGradientSelection,
    ProjectedGradientTensors, Tensor,
};
use fourtap_c::*;

use crate::tensors::{message, no_dense_inputs, no_msda_inputs, no_options, no_projections_inputs};
use descriptors::{Describer, Descriptor, pointer};

/// Problems of each kind in the ordinary run.
const CASES: u64 = 60;

/// Problems of each kind in the long one; set `FOURTAP_CASES` for more.
const MANY: u64 = 5_000;

/// What is wrong with the problem of a seed.
type Check = fn(seed: u64) -> Result<(), String>;

const CHECKS: [(&str, Check); 4] = [
    ("msda", check_msda),
    ("projections", check_projections),
    ("zero_pixels", check_zero_pixels),
    ("dense", check_dense),
];

#[test]
fn some_problems_agree_with_the_oracle() {
    expect_agreement(CASES);
}

#[test]
#[ignore = "long: thousands of problems"]
fn many_problems_agree_with_the_oracle() {
    let cases = std::env::var("FOURTAP_CASES").ok();
    let cases = cases.and_then(|cases| cases.parse().ok());
    expect_agreement(cases.unwrap_or(MANY));
}

fn expect_agreement(cases: u64) {
    let mut failures = Vec::new();
    for (name, check) in CHECKS {
        let found = (0..cases).filter_map(|seed| {
            let words = check(seed).err()?;
            Some(format!("{name}, seed {seed}: {words}"))
        });
        failures.extend(found);
    }
    let shown = failures.len().min(20);
    assert!(
        failures.is_empty(),
        "{} mismatches:\n{}",
        failures.len(),
        failures[..shown].join("\n")
    );
}

/// A call must succeed.
fn expect_done(status: Status) -> Result<(), String> {
    match status {
        Status::Ok => Ok(()),
        failed => Err(format!("{failed:?}: {}", message())),
    }
}

/// As on the CPU.
fn expect_no_workspace(bytes: usize) -> Result<(), String> {
    match bytes {
        0 => Ok(()),
        bytes => Err(format!("a workspace of {bytes} bytes")),
    }
}

fn in_words(failure: Failure) -> String {
    failure.to_string()
}

fn check_msda(seed: u64) -> Result<(), String> {
    let case = Case::random(seed);
    let expected = ExpectedResults::new(&case).map_err(|error| error.to_string())?;
    let describer = &mut Describer::new(seed);
    let views = case.inputs();
    let [shapes, starts] = describer.levels(&case.levels);
    let tensors = [
        views.value,
        views.sampling_locations,
        views.attention_weights,
    ]
    .map(|view| describer.view(&view));
    let [value, locations, weights] = tensors.each_ref().map(Descriptor::pointer);
    let inputs = MsdaInputs {
        value,
        spatial_shapes: pointer(&shapes),
        level_start_index: pointer(&starts),
        sampling_locations: locations,
        attention_weights: weights,
        ..no_msda_inputs()
    };
    let options = no_options();
    let options = if describer.one_in(2) {
        null()
    } else {
        &raw const options
    };

    let problem = msda::Problem::new(&views).map_err(|error| error.to_string())?;
    let mut out = Tensor::poisoned(case.value.dtype(), &problem.sizes().out(), &case.outputs[0]);
    let to_write = describer.view_mut(&out.view_mut());
    let mut bytes = usize::MAX;
    // SAFETY: descriptors of tensors that live until the end.
    unsafe {
        expect_done(fourtap_msda_forward_workspace_size(
            &inputs,
            to_write.pointer(),
            options,
            &mut bytes,
        ))?;
        expect_done(fourtap_msda_forward(&inputs, to_write.pointer(), options))?;
    }
    expect_no_workspace(bytes)?;
    expected.compare_forward(&out).map_err(in_words)?;

    let selected = GradientSelection::choices().nth((seed % 8) as usize);
    let mut found = GradientTensors::poisoned(&case, selected.expect("one of eight"));
    let views = found.views();
    let [of_value, of_locations, of_weights] = [
        &views.value,
        &views.sampling_locations,
        &views.attention_weights,
    ]
    .map(|view| describer.optional(view));
    let gradients = MsdaGradients {
        struct_size: size_of::<MsdaGradients>() as u32,
        value: pointer(&of_value),
        sampling_locations: pointer(&of_locations),
        attention_weights: pointer(&of_weights),
    };
    let of_out = describer.view(&case.grad_out());
    let of_out = of_out.pointer();
    let mut bytes = usize::MAX;
    // SAFETY: descriptors of tensors that live until the end.
    unsafe {
        expect_done(fourtap_msda_backward_workspace_size(
            &inputs, of_out, &gradients, options, &mut bytes,
        ))?;
        expect_done(fourtap_msda_backward(&inputs, of_out, &gradients, options))?;
    }
    expect_no_workspace(bytes)?;
    expected.compare_backward(&found).map_err(in_words)
}

fn check_projections(seed: u64) -> Result<(), String> {
    let case = ProjectedCase::random(seed);
    let expected = ExpectedProjectedResults::new(&case).map_err(|error| error.to_string())?;
    let describer = &mut Describer::new(seed);
    let views = case.inputs();
    let [shapes, starts] = describer.levels(&case.levels);
    let tensors = [
        views.value,
        views.reference_points,
        views.sampling_offsets,
        views.attention_logits,
    ]
    .map(|view| describer.view(&view));
    let [value, references, offsets, logits] = tensors.each_ref().map(Descriptor::pointer);
    let mask = views.value_mask.map(|mask| describer.bool_view(&mask));
    let points: Vec<i64> = match case.points_are_listed || case.points.is_empty() {
        // Without levels there is nothing to list, which C has no list for.
        _ if case.points.is_empty() => vec![3],
        true => case.points.iter().map(|&points| points as i64).collect(),
        false => vec![case.points[0] as i64],
    };
    let box_scale = case.box_scale.clone().unwrap_or_default();
    let inputs = ProjectionsInputs {
        interpolation: match case.interpolation {
            Interpolation::Bilinear => 0,
            Interpolation::Nearest => 1,
        },
        value,
        spatial_shapes: pointer(&shapes),
        level_start_index: pointer(&starts),
        reference_points: references,
        sampling_offsets: offsets,
        attention_logits: logits,
        value_mask: pointer(&mask),
        points_per_level: points.as_ptr(),
        box_scale: match box_scale.is_empty() {
            true => null(),
            false => box_scale.as_ptr(),
        },
        points_per_level_count: points.len() as u32,
        box_scale_count: box_scale.len() as u32,
        ..no_projections_inputs()
    };

    let problem = ProjectedProblem::new(&views).map_err(|error| error.to_string())?;
    let mut out = Tensor::poisoned(case.value.dtype(), &problem.sizes().out(), &case.outputs[0]);
    let to_write = describer.view_mut(&out.view_mut());
    let mut bytes = usize::MAX;
    // SAFETY: descriptors of tensors that live until the end.
    unsafe {
        expect_done(fourtap_projections_forward_workspace_size(
            &inputs,
            to_write.pointer(),
            null(),
            &mut bytes,
        ))?;
        expect_done(fourtap_projections_forward(
            &inputs,
            to_write.pointer(),
            null(),
        ))?;
    }
    expect_no_workspace(bytes)?;
    expected.compare_forward(&out).map_err(in_words)?;

    let selected = ProjectedGradientSelection::choices().nth((seed % 16) as usize);
    let mut found = ProjectedGradientTensors::poisoned(&case, selected.expect("one of sixteen"));
    let views = found.views();
    let tensors = [
        &views.value,
        &views.reference_points,
        &views.sampling_offsets,
        &views.attention_logits,
    ]
    .map(|view| describer.optional(view));
    let [value, references, offsets, logits] = tensors.each_ref().map(pointer);
    let gradients = ProjectionsGradients {
        struct_size: size_of::<ProjectionsGradients>() as u32,
        value,
        reference_points: references,
        sampling_offsets: offsets,
        attention_logits: logits,
    };
    let of_out = describer.view(&case.grad_out());
    let of_out = of_out.pointer();
    let mut bytes = usize::MAX;
    // SAFETY: descriptors of tensors that live until the end.
    unsafe {
        expect_done(fourtap_projections_backward_workspace_size(
            &inputs,
            of_out,
            &gradients,
            null(),
            &mut bytes,
        ))?;
        expect_done(fourtap_projections_backward(
            &inputs,
            of_out,
            &gradients,
            null(),
        ))?;
    }
    expect_no_workspace(bytes)?;
    expected.compare_backward(&found).map_err(in_words)
}

/// Not one bit but those of masked pixels changes.
fn check_zero_pixels(seed: u64) -> Result<(), String> {
    let case = ProjectedCase::random(seed);
    let Some(mask) = &case.value_mask else {
        return Ok(());
    };
    let describer = &mut Describer::new(seed);
    let mut numbers = case.value.to_f64();
    let shape = case.value.shape();
    let mut next = numbers.iter().copied();
    let mut value = Tensor::from_fn(case.value.dtype(), shape.sizes(), &case.outputs[1], || {
        next.next().unwrap_or_default()
    });
    let (described, of_mask) = (
        describer.view_mut(&value.view_mut()),
        describer.bool_view(&mask.view()),
    );
    // SAFETY: descriptors of tensors that live until the end.
    expect_done(unsafe { fourtap_zero_pixels(described.pointer(), of_mask.pointer(), null()) })?;
    let &[_, pixels, heads, channels] = shape.sizes() else {
        return Err(format!("value of shape {shape}"));
    };
    for (index, number) in numbers.iter_mut().enumerate() {
        let pixel = index / (heads * channels);
        if mask.get(pixel / pixels, pixel % pixels) {
            *number = 0.0;
        }
    }
    let bits = |numbers: &[f64]| numbers.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
    match bits(&value.to_f64()) == bits(&numbers) && value.damaged_guards() == 0 {
        true => Ok(()),
        false => Err("other elements than those of masked pixels are zero".to_string()),
    }
}

fn check_dense(seed: u64) -> Result<(), String> {
    let case = DenseCase::random(seed);
    let case = if seed.is_multiple_of(3) {
        case
    } else {
        case.with_mask()
    };
    let expected = ExpectedDenseResults::new(&case).map_err(|error| error.to_string())?;
    let describer = &mut Describer::new(seed);
    let views = case.inputs();
    let tensors = [views.query, views.key, views.value].map(|view| describer.view(&view));
    let [query, key, value] = tensors.each_ref().map(Descriptor::pointer);
    let attn_mask = views.attn_mask.map(|mask| describer.attn_mask(&mask));
    let mask = case.options.mask;
    let bound = |bound: Option<usize>| bound.map(|keys| keys as i64);
    let is_causal = mask.right == Some(0) && describer.one_in(2);
    let left = bound(mask.left);
    let right = if is_causal { None } else { bound(mask.right) };
    let inputs = DenseInputs {
        alignment: match mask.alignment {
            Alignment::BottomRight => 0,
            Alignment::TopLeft => 1,
        },
        query,
        key,
        value,
        attn_mask: pointer(&attn_mask),
        scale: optional(&case.options.scale),
        window_left: optional(&left),
        window_right: optional(&right),
        is_causal: u32::from(is_causal),
        ..no_dense_inputs()
    };

    let problem = dense::Problem::new(&views, case.options).map_err(|error| error.to_string())?;
    let [of_out, of_lse] = &case.outputs;
    let mut out = Tensor::poisoned(problem.dtype(), &problem.sizes().out(), of_out);
    let mut lse = Tensor::poisoned(problem.lse_dtype(), &problem.sizes().lse(), of_lse);
    let with_lse = describer.one_in(2);
    let out_tensor = describer.view_mut(&out.view_mut());
    let lse_tensor = with_lse.then(|| describer.view_mut(&lse.view_mut()));
    let outputs = DenseOutputs {
        struct_size: size_of::<DenseOutputs>() as u32,
        out: out_tensor.pointer(),
        lse: pointer(&lse_tensor),
    };
    let mut bytes = usize::MAX;
    // SAFETY: descriptors of tensors that live until the end.
    unsafe {
        expect_done(fourtap_dense_forward_workspace_size(
            &inputs,
            &outputs,
            null(),
            &mut bytes,
        ))?;
        expect_done(fourtap_dense_forward(&inputs, &outputs, null()))?;
    }
    expect_no_workspace(bytes)?;
    let compared = expected.compare(&out, with_lse.then_some(&lse));
    compared.map_err(in_words)?;

    let case = DenseBackwardCase::new(case.clone()).map_err(|error| error.to_string())?;
    let expected = ExpectedDenseGradients::new(&case).map_err(|error| error.to_string())?;
    let selected = DenseGradientSelection::choices().nth((seed % 16) as usize);
    let mut found = DenseGradientTensors::poisoned(&case, selected.expect("one of sixteen"));
    let views = found.views();
    let tensors =
        [&views.query, &views.key, &views.value, &views.bias].map(|view| describer.optional(view));
    let [query, key, value, bias] = tensors.each_ref().map(pointer);
    let gradients = DenseGradients {
        struct_size: size_of::<DenseGradients>() as u32,
        query,
        key,
        value,
        bias,
    };
    let results = case.results();
    let (out, lse) = (describer.view(&results.out), describer.view(&results.lse));
    let results = DenseOutputs {
        struct_size: size_of::<DenseOutputs>() as u32,
        out: out.pointer(),
        lse: lse.pointer(),
    };
    let of_out = describer.view(&case.grad_out());
    let of_out = of_out.pointer();
    let mut bytes = usize::MAX;
    // SAFETY: descriptors of tensors that live until the end.
    unsafe {
        expect_done(fourtap_dense_backward_workspace_size(
            &inputs,
            &results,
            of_out,
            &gradients,
            null(),
            &mut bytes,
        ))?;
        expect_done(fourtap_dense_backward(
            &inputs,
            &results,
            of_out,
            &gradients,
            null(),
        ))?;
    }
    expect_no_workspace(bytes)?;
    expected.compare(&found).map_err(in_words)
}

/// A number, or NULL.
fn optional<T>(number: &Option<T>) -> *const T {
    number.as_ref().map_or(null(), |number| &raw const *number)
}
