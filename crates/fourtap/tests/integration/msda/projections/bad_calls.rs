//! Malformed calls: each ends in its typed error, names what is wrong, and leaves the outputs as they were.

use fourtap::msda::Levels;
use fourtap::msda::projections::{self, BoxScale, Points, ProjectedProblem, Projections};
use fourtap::{Backend, BoolView, View, ViewMut, f16};

use super::example::{Example, Size};

const SIZE: Size = Size {
    n: 2,
    q: 3,
    m: 2,
    d: 4,
};
const POINTS: [usize; 2] = [3, 3];

pub fn legal(coordinates: usize) -> Example<f32> {
    Example::new(SIZE, &[(3, 4), (1, 2)], &POINTS, &[2, 3, 2, coordinates], 1)
}

/// The message of a forward call that is refused; nothing may be written.
fn refused(call: Projections<'_>) -> String {
    let mut out = [7.0f32; 48];
    let view = ViewMut::new(&mut out, &[2, 3, 8]);
    let error = projections::forward(&Backend::default(), call, view).unwrap_err();
    assert!(out.iter().all(|&number| number == 7.0), "wrote: {error}");
    error.to_string()
}

#[test]
fn the_calls_they_are_spoiled_from_are_legal() {
    for coordinates in [2, 4] {
        let results = legal(coordinates).run(&Backend::default());
        assert!(results.out.iter().all(|number| number.is_finite()));
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let (example, numbers) = (legal(2), vec![0.5f32; 100_000]);
    let call = example.call();
    let view = |shape: &[usize]| View::new(&numbers[..shape.iter().product()], shape);
    for (spoiled, expected) in [
        (
            Projections {
                value: view(&[2, 14, 8]),
                ..call
            },
            "value: expected rank 4 [N, S, M, D], found rank 3",
        ),
        (
            Projections {
                value: view(&[2, 14, 2, 0]),
                ..call
            },
            "value: expected at least 1 channel per head (axis D), found shape [2, 14, 2, 0]",
        ),
        (
            Projections {
                value: view(&[2, 13, 2, 4]),
                ..call
            },
            "value: expected 14 pixels (axis S), the sum over spatial_shapes, found 13",
        ),
        (
            Projections {
                sampling_offsets: view(&[2, 3, 2, 2, 3, 2]),
                ..call
            },
            "sampling_offsets: expected rank 5 [N, Q, M, K, 2], found rank 6",
        ),
        (
            Projections {
                sampling_offsets: view(&[2, 3, 2, 5, 2]),
                ..call
            },
            "sampling_offsets: expected shape [2, Q, 2, 6, 2], found [2, 3, 2, 5, 2]",
        ),
        (
            Projections {
                sampling_offsets: view(&[2, 3, 2, 6, 3]),
                ..call
            },
            "sampling_offsets: expected shape [2, Q, 2, 6, 2], found [2, 3, 2, 6, 3]",
        ),
        (
            Projections {
                attention_logits: view(&[2, 3, 2, 2, 3]),
                ..call
            },
            "attention_logits: expected rank 4 [N, Q, M, K], found rank 5",
        ),
        (
            Projections {
                attention_logits: view(&[2, 3, 2, 7]),
                ..call
            },
            "attention_logits: expected shape [2, 3, 2, 6], found [2, 3, 2, 7]",
        ),
        (
            Projections {
                attention_logits: view(&[2, 4, 2, 6]),
                ..call
            },
            "attention_logits: expected shape [2, 3, 2, 6], found [2, 4, 2, 6]",
        ),
    ] {
        assert_eq!(refused(spoiled), expected);
    }
}

#[test]
fn reference_points_that_do_not_broadcast_are_refused() {
    let (example, numbers) = (legal(2), vec![0.5f32; 1000]);
    let call = example.call();
    for shape in [vec![3, 2], vec![2, 3, 2], vec![1, 2, 3, 2, 3, 2]] {
        let reference_points = View::new(&numbers[..shape.iter().product()], &shape);
        assert_eq!(
            refused(Projections {
                reference_points,
                ..call
            }),
            format!(
                "reference_points: expected rank 5 [N, Q, L, P, 2 or 4], or without axis P, found rank {}",
                shape.len()
            )
        );
    }
    for shape in [
        vec![3, 3, 2, 2],
        vec![2, 2, 2, 2],
        vec![2, 3, 3, 2],
        vec![2, 3, 2, 1],
        vec![2, 3, 2, 3],
        vec![2, 3, 2, 5],
    ] {
        let reference_points = View::new(&numbers[..shape.iter().product()], &shape);
        assert_eq!(
            refused(Projections {
                reference_points,
                ..call
            }),
            format!(
                "reference_points: expected shape [2, 3, 2, 2 or 4] (1 stands for every size), found {}",
                reference_points.shape()
            )
        );
    }
    // Two references do not take turns on three points, nor any number where levels differ.
    let shape = [2, 3, 2, 2, 2];
    let reference_points = View::new(&numbers[..48], &shape);
    assert_eq!(
        refused(Projections {
            reference_points,
            ..call
        }),
        "reference_points: expected shape [2, 3, 2, 3, 2 or 4] (1 stands for every size), found [2, 3, 2, 2, 2]"
    );
    let uneven = Projections {
        reference_points,
        points: Points::Listed(&[4, 2]),
        ..call
    };
    assert_eq!(
        refused(uneven),
        "reference_points: expected shape [2, 3, 2, 1, 2 or 4] (1 stands for every size), found [2, 3, 2, 2, 2]"
    );
    let reference_points = View::strided(&numbers, 0, &[2, 3, 2, 2], &[12, 4, 2]);
    assert_eq!(
        refused(Projections {
            reference_points,
            ..call
        }),
        "reference_points: expected 4 strides, one per axis, found 3"
    );
}

#[test]
fn points_and_box_scales_that_do_not_fit_are_refused() {
    let (example, boxes) = (legal(2), legal(4));
    let (call, with_boxes) = (example.call(), boxes.call());
    let many = usize::MAX / 2 + 1;
    for (spoiled, expected) in [
        (
            Projections {
                points: Points::Listed(&[3, 3, 3]),
                ..call
            },
            "points_per_level: expected 2 numbers, one per level, found 3".to_string(),
        ),
        (
            Projections {
                points: Points::Listed(&[]),
                ..call
            },
            "points_per_level: expected 2 numbers, one per level, found 0".to_string(),
        ),
        (
            Projections {
                points: Points::Each(many),
                ..call
            },
            format!(
                "sampling_offsets: expected at most {} bytes, found a sum of points_per_level that overflows",
                isize::MAX
            ),
        ),
        (
            Projections {
                points: Points::Each(4),
                ..call
            },
            "sampling_offsets: expected shape [2, Q, 2, 8, 2], found [2, 3, 2, 6, 2]".to_string(),
        ),
        (
            Projections {
                box_scale: BoxScale::Each(0.5),
                ..call
            },
            "box_scale: expected none, as reference_points are points, found some".to_string(),
        ),
        (
            Projections {
                box_scale: BoxScale::Listed(&[0.5]),
                ..with_boxes
            },
            "box_scale: expected 2 numbers, one per level, found 1".to_string(),
        ),
        (
            Projections {
                box_scale: BoxScale::Each(f64::NAN),
                ..with_boxes
            },
            "box_scale: expected finite numbers, found NaN".to_string(),
        ),
        (
            Projections {
                box_scale: BoxScale::Listed(&[0.5, f64::INFINITY]),
                ..with_boxes
            },
            "box_scale: expected finite numbers, found inf".to_string(),
        ),
    ] {
        assert_eq!(refused(spoiled), expected);
    }
}

#[test]
fn types_that_do_not_fit_are_refused() {
    let example = legal(2);
    let call = example.call();
    let halves = vec![f16::ONE; 1000];
    let doubles = vec![1.0f64; 1000];
    let half = |shape: &[usize]| View::new(&halves[..shape.iter().product()], shape);
    let double = |shape: &[usize]| View::new(&doubles[..shape.iter().product()], shape);
    let only_f32 =
        |tensor: &str, found: &str| format!("{tensor}: expected element type f32, found {found}");
    for (spoiled, expected) in [
        (
            Projections {
                reference_points: half(&[2, 3, 2, 2]),
                ..call
            },
            only_f32("reference_points", "f16"),
        ),
        (
            Projections {
                sampling_offsets: double(&[2, 3, 2, 6, 2]),
                ..call
            },
            only_f32("sampling_offsets", "f64"),
        ),
        (
            Projections {
                attention_logits: half(&[2, 3, 2, 6]),
                ..call
            },
            only_f32("attention_logits", "f16"),
        ),
        (
            Projections {
                value: half(&[2, 14, 2, 4]),
                attention_logits: double(&[2, 3, 2, 6]),
                ..call
            },
            "attention_logits: expected element type f32 or f16 (that of value), found f64"
                .to_string(),
        ),
    ] {
        assert_eq!(refused(spoiled), expected);
    }
}

#[test]
fn masks_that_do_not_fit_are_refused() {
    let example = legal(2);
    let mask = [true; 28];
    for (mask, expected) in [
        (
            BoolView::new(&mask, &[28]),
            "value_mask: expected rank 2 [N, S], found rank 1",
        ),
        (
            BoolView::new(&mask, &[14, 2]),
            "value_mask: expected shape [2, 14], found [14, 2]",
        ),
        (
            BoolView::new(&mask[..27], &[2, 14]),
            "value_mask: expected 28 elements for shape [2, 14], found a slice of 27",
        ),
        (
            // SAFETY: a null pointer is refused before anything is read.
            unsafe { BoolView::from_raw(std::ptr::null(), &[2, 14], &[14, 1]) },
            "value_mask: expected memory for shape [2, 14], found a null pointer",
        ),
    ] {
        let call = Projections {
            value_mask: Some(mask),
            ..example.call()
        };
        assert_eq!(refused(call), expected);
    }
}

#[test]
fn memory_that_does_not_fit_is_refused() {
    let (example, numbers) = (legal(2), vec![0.5f32; 1000]);
    let call = example.call();
    for (spoiled, expected) in [
        (
            Projections {
                value: View::new(&numbers, &[2, 14, 2, 4]),
                ..call
            },
            "value: expected 224 elements for shape [2, 14, 2, 4], found a slice of 1000",
        ),
        (
            Projections {
                sampling_offsets: View::strided(
                    &numbers,
                    0,
                    &[2, 3, 2, 6, 2],
                    &[1000, 24, 12, 2, 1],
                ),
                ..call
            },
            "sampling_offsets: expected strides that stay in the slice of 1000 elements, found offsets 0 to 1071",
        ),
        (
            Projections {
                attention_logits: View::strided(&numbers, 0, &[2, 3, 2, 6], &[36, 12, 6]),
                ..call
            },
            "attention_logits: expected 4 strides, one per axis, found 3",
        ),
    ] {
        assert_eq!(refused(spoiled), expected);
    }
    let elsewhere = fourtap::Layout::contiguous(fourtap::DType::F32, &[2, 3, 2, 6]);
    // SAFETY: the call is refused before anything is read.
    let attention_logits = unsafe { View::on_cuda(0, 4096, elsewhere) };
    assert_eq!(
        refused(Projections {
            attention_logits,
            ..call
        }),
        "attention_logits: expected host memory (where value is), found memory of cuda:0"
    );
}

#[test]
fn sizes_without_number_are_refused() {
    let many = usize::MAX / 16;
    let levels = Levels::default();
    let empty: [f32; 0] = [];
    let view = |shape: &[usize]| View::new(&empty, shape);
    let call = Projections {
        mask_is_applied: false,
        value: view(&[0, 0, many, 1]),
        levels: (&levels).into(),
        reference_points: view(&[0, many, 0, 2]),
        sampling_offsets: view(&[0, many, many, 0, 2]),
        attention_logits: view(&[0, many, many, 0]),
        points: Points::Each(4),
        value_mask: None,
        interpolation: Default::default(),
        box_scale: Default::default(),
    };
    let error = ProjectedProblem::new(&call).unwrap_err().to_string();
    assert!(
        error.starts_with("sampling_offsets: expected at most")
            && error.ends_with("that overflows"),
        "{error}"
    );
}
