//! That masks are what is said of them.

use super::*;
use crate::computation::{Computation, TensorSet};
use crate::operators::dense::tensors::Tensors;
use crate::operators::dense::{Trial, Workload};
use crate::operators::{DataSpec, Workload as _};
use fourtap::Backend;

const ALL: [AttnMaskKind; 4] = [
    AttnMaskKind::Groups,
    AttnMaskKind::Bias,
    AttnMaskKind::Any,
    AttnMaskKind::Padding,
];

const SIZES: Sizes = Sizes {
    batch: 3,
    query_heads: 2,
    key_heads: 2,
    queries: 230,
    keys: 250,
    channels: 8,
    value_channels: 8,
};

fn seen(kind: AttnMaskKind, seed: u64) -> Vec<bool> {
    match MaskTensor::random(kind, &SIZES, DType::F32, seed).unwrap() {
        MaskTensor::Seen { seen, shape } => {
            assert_eq!(shape, kind.shape(&SIZES));
            seen
        }
        MaskTensor::Bias(_) => panic!("{kind:?} is of booleans"),
    }
}

fn small(kind: AttnMaskKind, more: &str) -> Workload {
    let kind = serde_json::to_string(&kind).unwrap();
    let text = format!(
        "operator = \"dense\"\nname = \"small\"\ndescription = \"some\"\nbatch = 3\nheads = 2\nqueries = 230\n\
         keys = 250\nchannels = 8\nattn_mask = {kind}\n{more}\n"
    );
    Workload::parse("small", &text).unwrap()
}

fn filling(dtype: DType) -> DataSpec {
    DataSpec {
        dtype,
        coordinates: dtype,
        distribution: crate::cli::Distribution::Uniform,
        backward: false,
        seed: 7,
    }
}

#[test]
fn groups_see_themselves_and_what_is_in_none() {
    let seen = seen(AttnMaskKind::Groups, 0);
    let sees = |query: usize, key: usize| seen[query * SIZES.keys + key];
    for (query, key) in [
        (0, 19),
        (199, 180),
        (25, 39),
        (0, 200),
        (229, 249),
        (210, 200),
    ] {
        assert!(sees(query, key), "{query}, {key}");
    }
    for (query, key) in [(0, 20), (20, 19), (199, 179), (200, 199), (229, 0)] {
        assert!(!sees(query, key), "{query}, {key}");
    }
}

#[test]
fn padding_grows_evenly() {
    let seen = seen(AttnMaskKind::Padding, 0);
    for (sequence, expected) in [250, 200, 150].into_iter().enumerate() {
        let keys = &seen[sequence * SIZES.keys..][..SIZES.keys];
        assert!(keys[..expected].iter().all(|&seen| seen), "{sequence}");
        assert!(!keys[expected..].iter().any(|&seen| seen), "{sequence}");
    }
    let alone = Sizes { batch: 1, ..SIZES };
    assert_eq!(length(&alone, 0), 250);
}

#[test]
fn three_of_ten_are_seen_where_any_may_be() {
    let all = seen(AttnMaskKind::Any, 1);
    let share = all.iter().filter(|&&seen| seen).count() as f64 / all.len() as f64;
    assert!((share - 0.3).abs() < 0.01, "{share}");
    assert_eq!(all, seen(AttnMaskKind::Any, 1));
    assert_ne!(all, seen(AttnMaskKind::Any, 2));
}

#[test]
fn biases_are_normal_and_of_the_type_of_queries() {
    for dtype in DType::ALL {
        let mask = MaskTensor::random(AttnMaskKind::Bias, &SIZES, dtype, 3).unwrap();
        let MaskTensor::Bias(bias) = mask else {
            panic!("booleans");
        };
        assert_eq!(bias.dtype(), dtype);
        let numbers = bias.to_f64(0, 2 * 230 * 250);
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let square = numbers.iter().map(|number| number * number).sum::<f64>() / count;
        assert!(mean.abs() < 0.02 && (square - 1.0).abs() < 0.02, "{dtype}");
    }
}

#[test]
fn plans_are_of_the_tensors_that_are_launched() {
    let swin = Workload::parse(
        "swin",
        include_str!("../../../../workloads/dense/dense-swin7.toml"),
    );
    let mut one_sequence = small(AttnMaskKind::Any, "");
    one_sequence.batch = 1;
    let workloads = ALL.map(|kind| small(kind, "")).into_iter();
    for workload in workloads.chain([one_sequence, swin.unwrap()]) {
        for dtype in [DType::F16, DType::F64] {
            let tensors = Tensors::random(&workload, &filling(dtype)).unwrap();
            let problem = Problem::new(&tensors.inputs(), workload.options()).unwrap();
            assert_eq!(
                workload.on_cuda(dtype).attn_mask.as_ref(),
                problem.attn_mask()
            );
        }
    }
}

#[test]
fn what_is_seen_is_counted() {
    for more in ["", "causal = \"bottom-right\"", "window = { left = 30 }"] {
        for kind in ALL {
            let workload = small(kind, more);
            let problem = Workload::problem(&workload, DType::F32).unwrap();
            let tensor = MaskTensor::random(kind, &SIZES, DType::F32, 0).unwrap();
            let strides = kind.described(&SIZES, DType::F32).strides;
            let mut pairs = 0;
            let mut seen_keys = vec![false; SIZES.batch * SIZES.keys];
            for b in 0..SIZES.batch {
                for q in 0..SIZES.queries {
                    for k in problem.visible(q) {
                        let heads = (0..SIZES.query_heads).filter(|&h| match &tensor {
                            MaskTensor::Bias(_) => true,
                            MaskTensor::Seen { seen, .. } => {
                                let index = [b, h, q, k].into_iter().zip(strides);
                                seen[index.map(|(at, step)| at * step as usize).sum::<usize>()]
                            }
                        });
                        let heads = heads.count();
                        pairs += heads as u64;
                        seen_keys[b * SIZES.keys + k] |= heads > 0;
                    }
                }
            }
            let traffic = traffic(&problem, Some(kind));
            let case = format!("{kind:?} {more}: {} of {pairs}", traffic.pairs);
            let off = traffic.pairs.abs_diff(pairs) as f64 / pairs as f64;
            assert!(
                off == 0.0 || kind == AttnMaskKind::Any && off < 0.02,
                "{case}"
            );
            assert_eq!(traffic.flop, 4 * 8 * traffic.pairs, "{case}");
            if kind == AttnMaskKind::Padding {
                let keys = seen_keys.iter().filter(|&&seen| seen).count() as u64;
                let numbers = 2 * 3 * 2 * 230 * 8 + keys * 2 * 2 * 8;
                assert_eq!(traffic.compulsory_bytes, 4 * numbers + 3 * 250, "{case}");
            }
        }
    }
}

/// Checked against the oracle, and not by luck: without the mask it is wrong.
#[test]
fn masked_workloads_verify() {
    for more in ["", "causal = \"bottom-right\""] {
        for (kind, dtype) in ALL.into_iter().zip(DType::ALL) {
            let workload = small(kind, more);
            let tensors = Tensors::random(&workload, &filling(dtype)).unwrap();
            let trial = tensors.trial(Backend::Auto, crate::cli::Direction::Forward);
            let trial = trial.unwrap();
            let mut outputs = trial.outputs().unwrap();
            trial.compute(&mut outputs).unwrap();
            let verified = trial.verified(&outputs, 0).unwrap();
            assert!(verified.passed, "{kind:?} {more}: {verified:?}");
            let (recorded, _) = trial.recorded();
            assert_eq!(
                recorded,
                crate::operators::Workload::problem(&workload, dtype).unwrap()
            );

            let inputs = fourtap::dense::Inputs {
                attn_mask: None,
                ..tensors.inputs()
            };
            let without = Trial::new(Backend::Auto, inputs, workload.options()).unwrap();
            without.compute(&mut outputs).unwrap();
            let verified = trial.verified(&outputs, 0).unwrap();
            assert!(!verified.passed, "{kind:?} {more}");
        }
    }
}

#[test]
fn memory_is_counted_with_the_mask() {
    for (kind, expected) in
        ALL.into_iter()
            .zip([230 * 250, 2 * 2 * 230 * 250, 3 * 2 * 230 * 250, 3 * 250])
    {
        let masked = small(kind, "");
        let mut plain = masked.clone();
        plain.attn_mask = None;
        let filling = filling(DType::F16);
        let more = masked.bytes(&filling).unwrap() - plain.bytes(&filling).unwrap();
        assert_eq!(more, 2 * expected, "{kind:?}");
    }
}

#[test]
fn masks_that_do_not_fit_in_memory_are_refused() {
    for shape in [&[1 << 50][..], &[usize::MAX, 3]] {
        let error = all_hidden(shape).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }), "{error}");
    }
}
