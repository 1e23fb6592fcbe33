//! NaN, infinities and numbers near the end of the range: no fault, and nothing spreads where it should not.

use fourtap::Backend;
use fourtap::cpu::{Cpu, Simd};
use fourtap::msda::projections::Interpolation;

use super::example::{Example, NAMES, Size};

const NOWHERE: [f32; 5] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38, -1e38];

fn backends() -> impl Iterator<Item = Backend> {
    Simd::available().map(|simd| Backend::Cpu(Cpu::with_simd(simd).unwrap()))
}

/// One point of each query on one pixel of NaN: whoever reads it shows it.
fn one_pixel_of_nan(queries: usize, coordinates: usize) -> Example<f32> {
    let size = Size {
        n: 1,
        q: queries,
        m: 1,
        d: 33,
    };
    let references = [1, queries, 1, coordinates];
    let mut example = Example::new(size, &[(1, 1)], &[1], &references, 1);
    example.inputs[0].fill(f32::NAN);
    example.inputs[1].fill(0.5);
    example.inputs[2].fill(0.0);
    example
}

#[test]
fn a_point_that_takes_no_part_gets_and_gives_nothing() {
    for coordinates in [2, 4] {
        // In x and y of the offset, and in each coordinate of the reference point.
        for hostile in 0..2 + coordinates {
            let mut example = one_pixel_of_nan(NOWHERE.len(), coordinates);
            for (query, &number) in NOWHERE.iter().enumerate() {
                match hostile {
                    0 | 1 => example.inputs[2][2 * query + hostile] = number,
                    _ => {
                        example.inputs[1][query * coordinates + hostile - 2] = number;
                        // Any offset but 0, so that the size of the box matters.
                        example.inputs[2][2 * query..][..2].fill(0.25);
                    }
                }
            }
            for backend in backends() {
                let results = example.run(&backend);
                let what = format!("{backend:?}, {coordinates} coordinates, hostile {hostile}");
                assert!(results.out.iter().all(|&x| x == 0.0), "{what}");
                for (name, gradient) in NAMES.iter().zip(&results.gradients) {
                    assert!(
                        gradient.iter().all(|&x| x == 0.0),
                        "{what}: gradient of {name} is {gradient:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_nearest_pixel_is_read_and_no_other() {
    // Columns of a level of 5 x 3, read by a point that an infinite or large offset moves to the border.
    let size = Size {
        n: 1,
        q: 6,
        m: 1,
        d: 17,
    };
    let mut example = Example::<f32>::new(size, &[(3, 5)], &[1], &[1, 1, 1, 2], 2);
    example.interpolation = Interpolation::Nearest;
    example.inputs[1].fill(0.5);
    let moves = [
        (f32::INFINITY, Some(4)),
        (f32::NEG_INFINITY, Some(0)),
        (1e38, Some(4)),
        (f32::NAN, None),
        // From 2.5 + 0.5: cut off to the pixel itself, and to its neighbour.
        (0.99, Some(3)),
        (-1.01, Some(1)),
    ];
    for (query, (offset, column)) in moves.into_iter().enumerate() {
        example.inputs[0].fill(f32::NAN);
        if let Some(column) = column {
            // Row 2: int(1.5 + 0.5).
            example.inputs[0][(2 * 5 + column) * size.d..][..size.d].fill(7.0);
        }
        example.inputs[2][2 * query] = offset;
        example.inputs[2][2 * query + 1] = 0.0;
        for backend in backends() {
            let out = example.forward(&backend);
            let expected = if column.is_some() { 7.0 } else { 0.0 };
            let out = &out[query * size.d..][..size.d];
            assert!(
                out.iter().all(|&x| x == expected),
                "{backend:?}, moved by {offset}: {out:?}"
            );
            let [_, references, offsets, logits] = example.backward(&backend, [true; 4]);
            assert!(references.iter().chain(&offsets).all(|&x| x == 0.0));
            assert_eq!(logits[query], 0.0);
        }
    }
}

#[test]
fn masked_pixels_count_as_zero_whatever_they_hold() {
    let size = Size {
        n: 2,
        q: 50,
        m: 2,
        d: 20,
    };
    for interpolation in [Interpolation::Bilinear, Interpolation::Nearest] {
        let mut zeros = Example::<f32>::new(size, &[(4, 6), (2, 3)], &[3, 2], &[2, 50, 2, 4], 3);
        zeros.interpolation = interpolation;
        let is_masked = |pixel: usize| pixel % 5 < 2;
        let pixels = size.n * zeros.levels.pixels();
        let mut masked = zeros.clone();
        masked.mask = Some((0..pixels).map(is_masked).collect());
        for (index, (zero, hostile)) in
            (zeros.inputs[0].iter_mut().zip(&mut masked.inputs[0])).enumerate()
        {
            if is_masked(index / size.m / size.d) {
                *zero = 0.0;
                *hostile = NOWHERE[index % NOWHERE.len()];
            }
        }
        for backend in backends() {
            let (expected, found) = (zeros.run(&backend), masked.run(&backend));
            assert_eq!(found.out, expected.out, "{backend:?}");
            for (index, (found, expected)) in
                (found.gradients[0].iter().zip(&expected.gradients[0])).enumerate()
            {
                let expected = match is_masked(index / size.m / size.d) {
                    true => 0.0,
                    false => *expected,
                };
                assert_eq!(*found, expected, "{backend:?}: gradient of value[{index}]");
            }
            for input in 1..4 {
                let (found, expected) = (&found.gradients[input], &expected.gradients[input]);
                assert_eq!(found, expected, "{backend:?}: gradient of {}", NAMES[input]);
            }
        }
    }
}

#[test]
fn logits_of_a_head_spoil_that_head_alone() {
    let size = Size {
        n: 1,
        q: 4,
        m: 3,
        d: 8,
    };
    let mut example = Example::<f32>::new(size, &[(8, 9)], &[19], &[1, 1, 1, 2], 4);
    // All points inside, so that every weight is used.
    for offset in &mut example.inputs[2] {
        *offset = offset.clamp(-2.0, 2.0);
    }
    let sound = example.clone();
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    // Query by query, in head 1: a NaN, plus infinity, minus infinity for all, and for all but one.
    let row = |query: usize| (query * size.m + 1) * 19;
    example.inputs[3][row(0) + 7] = nan;
    example.inputs[3][row(1) + 18] = infinity;
    example.inputs[3][row(2)..][..19].fill(-infinity);
    example.inputs[3][row(3)..][..18].fill(-infinity);
    for backend in backends() {
        let (found, expected) = (example.run(&backend), sound.run(&backend));
        for (index, (found, expected)) in found.out.iter().zip(&expected.out).enumerate() {
            let (query, head) = (index / size.d / size.m, index / size.d % size.m);
            match (head, query) {
                (1, 0..3) => assert!(found.is_nan(), "{backend:?}: out[{index}] is {found}"),
                (1, _) => assert!(found.is_finite(), "{backend:?}: out[{index}] is {found}"),
                _ => assert_eq!(found, expected, "{backend:?}: out[{index}]"),
            }
        }
        let by_logit = &found.gradients[3];
        assert!(by_logit[row(0)..][..19].iter().all(|x| x.is_nan()));
        // One weight of 1 cannot be moved, nor can those of 0.
        assert!(by_logit[row(3)..][..19].iter().all(|&x| x == 0.0));
    }
}
