//! Tensors that are missing or do not fit each other: each ends in an error that names the tensor.

use crate::common::{
    self, Bad, Entry, encode, entry, f32s, i64s, refuses, renamed, with, with_header, without,
};

fn tensors(what: &'static str, entries: Vec<Entry>, expected: &'static str) -> Bad {
    (what, encode(&entries), expected)
}

/// One tensor of another element type, of zeros.
fn typed(
    tensor: &'static str,
    dtype: &'static str,
    size: u64,
    shape: &[u64],
    expected: &'static str,
) -> Bad {
    let bytes = size * shape.iter().product::<u64>();
    let changed = entry(tensor, dtype, shape, vec![0; bytes as usize]);
    tensors(dtype, with(changed), expected)
}

/// One tensor of another shape.
fn shaped(tensor: &'static str, shape: &[u64], expected: &'static str) -> Bad {
    tensors(tensor, with(f32s(tensor, shape)), expected)
}

fn levels(shapes: [i64; 4], expected: &'static str) -> Bad {
    let what = "spatial_shapes";
    tensors(what, with(i64s(what, &[2, 2], &shapes)), expected)
}

fn starts(starts: [i64; 2], expected: &'static str) -> Bad {
    let what = "level_start_index";
    tensors(what, with(i64s(what, &[2], &starts)), expected)
}

#[test]
fn refuses_files_without_a_tensor_it_needs() {
    let empty = (
        "no tensors",
        with_header(b"{}", &[]),
        "expected a tensor spatial_shapes, found no tensors",
    );
    let only = "expected a tensor value, found only attention_weights, grad_out, level_start_index";
    let slip = "hint: is it the one called attention_weight? Rename it to attention_weights";
    let weights = "attention_weights";
    refuses(
        &[
            empty,
            tensors("no value", without("value"), only),
            tensors(
                "no levels",
                without("spatial_shapes"),
                "expected a tensor spatial_shapes",
            ),
            tensors(
                "no locations",
                without("sampling_locations"),
                "expected a tensor sampling_locations",
            ),
            tensors(
                "no weights",
                without(weights),
                "expected a tensor attention_weights",
            ),
            tensors("a slip", renamed(weights, "attention_weight"), slip),
            tensors(
                "another slip",
                renamed("value", "Value"),
                "hint: is it the one called Value?",
            ),
        ],
        &[],
    );
}

#[test]
fn refuses_element_types_that_mean_nothing() {
    let (value, locations, weights) = ([1, 8, 2, 2], [1, 3, 2, 2, 2, 2], [1, 3, 2, 2, 2]);
    let floats = ": expected element type F16, BF16, F32 or F64, found ";
    let integers = ": expected element type I64 or I32, found ";
    let leak = |tensor: &str, expected: &str, found: &str| -> &'static str {
        format!("{tensor}{expected}{found}").leak()
    };
    let mut bad = Vec::new();
    for (dtype, size) in [
        ("I8", 1),
        ("U8", 1),
        ("BOOL", 1),
        ("I16", 2),
        ("I32", 4),
        ("U64", 8),
    ] {
        bad.push(typed(
            "value",
            dtype,
            size,
            &value,
            leak("value", floats, dtype),
        ));
    }
    for (dtype, size) in [("I32", 4), ("F8_E4M3", 1), ("I64", 8)] {
        let expected = leak("sampling_locations", floats, dtype);
        bad.push(typed(
            "sampling_locations",
            dtype,
            size,
            &locations,
            expected,
        ));
        let expected = leak("attention_weights", floats, dtype);
        bad.push(typed("attention_weights", dtype, size, &weights, expected));
    }
    for (dtype, size) in [("F32", 4), ("U32", 4), ("I16", 2), ("F64", 8)] {
        let expected = leak("spatial_shapes", integers, dtype);
        bad.push(typed("spatial_shapes", dtype, size, &[2, 2], expected));
        let expected = leak("level_start_index", integers, dtype);
        bad.push(typed("level_start_index", dtype, size, &[2], expected));
    }
    let (l, w) = ("sampling_locations", "attention_weights");
    bad.push(typed(
        l,
        "F64",
        8,
        &locations,
        "sampling_locations: expected element type f32, found f64",
    ));
    bad.push(typed(
        w,
        "BF16",
        2,
        &weights,
        "attention_weights: expected element type f32, found bf16",
    ));
    refuses(&bad, &[]);
}

#[test]
fn refuses_shapes_that_do_not_fit() {
    let (value, locations, weights) = ("value", "sampling_locations", "attention_weights");
    let location_shape = "sampling_locations: expected shape [1, Q, 2, 2, P, 2]";
    let weight_shape = "attention_weights: expected shape [1, 3, 2, 2, 2]";
    refuses(
        &[
            shaped(
                value,
                &[1, 8, 4],
                "value: expected rank 4 [N, S, M, D], found rank 3",
            ),
            shaped(
                value,
                &[],
                "value: expected rank 4 [N, S, M, D], found rank 0",
            ),
            shaped(
                value,
                &[1, 1, 1, 1, 1, 1, 1, 1, 32],
                "value: expected rank 4 [N, S, M, D], found rank 9",
            ),
            shaped(value, &[1, 8, 2, 0], "value: expected at least 1 channel"),
            shaped(value, &[1, 7, 2, 2], "value: expected 8 pixels (axis S)"),
            shaped(
                locations,
                &[1, 3, 2, 4, 4],
                "sampling_locations: expected rank 6",
            ),
            shaped(locations, &[2, 3, 2, 2, 2, 2], location_shape),
            shaped(locations, &[1, 3, 1, 2, 2, 2], location_shape),
            shaped(locations, &[1, 3, 2, 3, 2, 2], location_shape),
            shaped(locations, &[1, 3, 2, 2, 2, 3], location_shape),
            shaped(weights, &[1, 3, 2, 4], "attention_weights: expected rank 5"),
            shaped(weights, &[1, 4, 2, 2, 2], weight_shape),
            shaped(weights, &[1, 3, 2, 2, 1], weight_shape),
            shaped(weights, &[1, 3, 2, 2, 0], weight_shape),
        ],
        &[],
    );
}

#[test]
fn refuses_levels_that_do_not_fit() {
    let size = "expected height and width from 0 to 2147483647";
    let (shapes, index) = ("spatial_shapes", "level_start_index");
    let far = i32::MAX as i64;
    let mut unplaced = with(i64s(shapes, &[2, 2], &[2, 2, 1, 2]));
    unplaced.retain(|entry| entry.name != index);
    refuses(
        &[
            tensors(
                shapes,
                with(i64s(shapes, &[4], &[2, 3, 1, 2])),
                "spatial_shapes: expected rank 2 [L, 2]",
            ),
            tensors(
                shapes,
                with(i64s(shapes, &[1, 3], &[2, 3, 1])),
                "spatial_shapes: expected shape [L, 2]",
            ),
            tensors(
                index,
                with(i64s(index, &[1, 2], &[0, 6])),
                "level_start_index: expected rank 1 [L]",
            ),
            tensors(
                index,
                with(i64s(index, &[1], &[0])),
                "level_start_index: expected 2 entries",
            ),
            levels([-2, 3, 1, 2], size),
            levels(
                [2, 3, 1, -1],
                "spatial_shapes[1]: expected height and width from 0",
            ),
            levels(
                [2, 3, 1 << 31, 2],
                "spatial_shapes[1]: expected height and width from 0",
            ),
            levels(
                [i64::MAX, 3, 1, 2],
                "spatial_shapes[0]: expected height and width from 0",
            ),
            levels(
                [i64::MIN, 3, 1, 2],
                "spatial_shapes[0]: expected height and width from 0",
            ),
            levels(
                [far, far, far, far],
                "level_start_index[1]: expected 4611686014132420609 or more",
            ),
            levels([3, 3, 1, 2], "level_start_index[1]: expected 9 or more"),
            tensors("unequal", unplaced, "value: expected 6 pixels (axis S)"),
            starts(
                [-1, 6],
                "level_start_index[0]: expected a start from 0 to 2",
            ),
            starts([0, 7], "level_start_index[1]: expected a start from 0 to 6"),
            starts(
                [0, i64::MAX],
                "level_start_index[1]: expected a start from 0 to 6",
            ),
            starts(
                [0, i64::MIN],
                "level_start_index[1]: expected a start from 0 to 6",
            ),
            starts([0, 5], "level_start_index[1]: expected 6 or more"),
            starts([0, 0], "level_start_index"),
        ],
        &[],
    );
}

#[test]
fn refuses_more_queries_than_memory_without_a_byte_of_them() {
    let queries = |queries: u64| {
        let mut locations = f32s("sampling_locations", &[1, 0, 2, 2, 0, 2]);
        let mut weights = f32s("attention_weights", &[1, 0, 2, 2, 0]);
        locations.shape[1] = queries;
        weights.shape[1] = queries;
        let mut entries = without("grad_out");
        entries[3] = locations;
        entries[4] = weights;
        entries
    };
    let folder = common::folder_with(&encode(&queries(1 << 40)));
    let outcome = common::fourtap(
        folder.path(),
        ["run", "in.safetensors", "-o", "out.safetensors"],
    );
    common::fails(
        "2^40 queries",
        &outcome,
        "out [1, 1099511627776, 4] f32: expected 16384.0 GiB of free memory",
    );
    assert_eq!(common::names(folder.path()).len(), 1);
    refuses(
        &[tensors("2^64 - 1 queries", queries(u64::MAX), "overflows")],
        &[],
    );
}

#[test]
fn refuses_gradients_that_do_not_fit() {
    let slip = "hint: is it the one called grad_output?";
    refuses(
        &[
            tensors(
                "none",
                without("grad_out"),
                "hint: --grad starts from the gradient of out",
            ),
            tensors("a slip", renamed("grad_out", "grad_output"), slip),
            shaped("grad_out", &[1, 3, 2], "grad_out: expected shape [1, 3, 4]"),
            shaped("grad_out", &[1, 3, 2, 2], "grad_out: expected rank 3"),
            typed(
                "grad_out",
                "F64",
                8,
                &[1, 3, 4],
                "grad_out: expected element type f32",
            ),
            typed(
                "grad_out",
                "I64",
                8,
                &[1, 3, 4],
                "grad_out: expected element type F16, BF16",
            ),
        ],
        &["--grad"],
    );
}
