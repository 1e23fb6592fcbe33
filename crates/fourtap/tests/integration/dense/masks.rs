//! Masks and biases that are tensors: what they mean, what they hide, and those that make no sense.

use fourtap::cpu::{Cpu, Simd, Tuning};
use fourtap::dense::{self, Alignment, AttnMask, Inputs, Mask, Options, Outputs};
use fourtap::verify::{DenseCase, RandomMask, Storage, Tensor};
use fourtap::{Backend, BoolView, DType, Layout, View, ViewMut};

const QUERIES: usize = 70;
const KEYS: usize = 150;
const SIZES: dense::Sizes = dense::Sizes {
    batch: 2,
    query_heads: 4,
    key_heads: 2,
    queries: QUERIES,
    keys: KEYS,
    channels: 24,
    value_channels: 40,
};

/// Plain problems of every type that a processor may compute in another way.
fn cases() -> impl Iterator<Item = (DenseCase, Cpu)> {
    let types = [DType::F32, DType::BF16, DType::F16, DType::F64];
    let on = |dtype: DType| {
        let case = DenseCase {
            options: Options::default(),
            ..DenseCase::with_sizes(3, dtype, &SIZES)
        };
        Simd::available().map(move |simd| (case.clone(), Cpu::with_simd(simd).unwrap()))
    };
    types.into_iter().flat_map(on)
}

/// `out` and `lse`.
fn run(case: &DenseCase, mask: Option<AttnMask<'_>>, options: Options, cpu: Cpu) -> [Vec<f64>; 2] {
    let dtype = case.query.dtype();
    let mut out = Tensor::poisoned(dtype, &SIZES.out(), &Storage::dense(4));
    let mut lse = Tensor::poisoned(dense::lse_dtype(dtype), &SIZES.lse(), &Storage::dense(3));
    let inputs = Inputs {
        attn_mask: mask,
        ..case.inputs()
    };
    let outputs = Outputs {
        out: out.view_mut(),
        lse: Some(lse.view_mut()),
    };
    dense::forward(&Backend::Cpu(cpu), inputs, options, outputs).unwrap();
    [out.to_f64(), lse.to_f64()]
}

#[test]
fn booleans_and_minus_infinity_hide_what_a_band_hides() {
    let band = Mask::causal(Alignment::BottomRight).with_window(Some(60), None);
    let seen: Vec<bool> = (0..QUERIES)
        .flat_map(|query| {
            let visible = band.visible(query, QUERIES, KEYS);
            (0..KEYS).map(move |key| visible.contains(&key))
        })
        .collect();
    let bias: Vec<f32> = seen
        .iter()
        .map(|&seen| if seen { 0.0 } else { f32::NEG_INFINITY })
        .collect();
    let by_band = Options {
        mask: band,
        ..Options::default()
    };
    for (case, cpu) in cases() {
        let expected = run(&case, None, by_band, cpu);
        let shape = [QUERIES, KEYS];
        for mask in [
            AttnMask::Seen(BoolView::new(&seen, &shape)),
            AttnMask::Bias(View::new(&bias, &shape)),
        ] {
            let found = run(&case, Some(mask), Options::default(), cpu);
            assert_eq!(found, expected, "{} on {cpu:?}", case.query.dtype());
        }
    }
}

#[test]
fn what_a_mask_hides_may_hold_anything() {
    let hidden = |key: usize| key % 7 == 3 || (60..140).contains(&key);
    let seen: Vec<bool> = (0..KEYS).map(|key| !hidden(key)).collect();
    for (case, cpu) in cases() {
        let mask = || Some(AttnMask::Seen(BoolView::new(&seen, &[KEYS])));
        let [expected, expected_lse] = run(&case, mask(), Options::default(), cpu);
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let spoil = |tensor: &Tensor| {
                let shape = tensor.shape();
                let channels = shape.sizes()[3];
                let numbers = tensor.to_f64();
                let mut index = 0;
                Tensor::from_fn(tensor.dtype(), shape.sizes(), &Storage::dense(4), || {
                    let (key, at) = (index / channels % KEYS, index);
                    index += 1;
                    if hidden(key) { number } else { numbers[at] }
                })
            };
            let dirty = DenseCase {
                key: spoil(&case.key),
                value: spoil(&case.value),
                ..case.clone()
            };
            let [out, lse] = run(&dirty, mask(), Options::default(), cpu);
            let what = format!("{} on {cpu:?}, {number}", case.query.dtype());
            // Rows beside such a number may be added up in another way.
            let near = if case.query.dtype().size() == 2 {
                2e-2
            } else {
                1e-5
            };
            let apart = out.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f64::max) <= near, "{what}");
            assert!(out.iter().all(|number| number.is_finite()), "{what}");
            assert_eq!(lse, expected_lse, "{what}");
        }
    }
}

#[test]
fn a_row_hidden_by_the_lowest_number_sees_all_keys_alike() {
    let lowest = vec![f32::MIN; KEYS];
    for (case, cpu) in cases() {
        let mask = AttnMask::Bias(View::new(&lowest, &[KEYS]));
        let [found, _] = run(&case, Some(mask), Options::default(), cpu);
        let alike = Options {
            scale: Some(0.0),
            ..Options::default()
        };
        let [expected, _] = run(&case, None, alike, cpu);
        let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f64::max) < 1e-2, "{}", case.query.dtype());
    }
}

#[test]
fn masked_results_are_bitwise_equal_for_any_number_of_threads() {
    for seed in 0..8 {
        for dtype in DType::ALL {
            let case = DenseCase::with_sizes(seed, dtype, &SIZES).with_mask();
            let mask = case.attn_mask.as_ref().map(RandomMask::view);
            let cpu = Cpu::default();
            let serial = cpu.with_tuning(Tuning {
                serial_work: usize::MAX,
                ..Tuning::default()
            });
            let one = run(&case, mask, case.options, serial);
            for threads in [2, 5] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
                let many = pool
                    .build()
                    .unwrap()
                    .install(|| run(&case, mask, case.options, cpu));
                let bits = |results: &[Vec<f64>; 2]| {
                    let bits = results.iter().flatten().map(|number| number.to_bits());
                    bits.collect::<Vec<_>>()
                };
                assert_eq!(bits(&one), bits(&many), "seed {seed}, {dtype}, {threads}");
            }
        }
    }
}

/// The error's message for a call with this mask, of one sequence, two heads, 3 queries and 5 keys.
fn refused(dtype: DType, mask: AttnMask<'_>) -> String {
    let tensor = |shape: &[usize]| Tensor::poisoned(dtype, shape, &Storage::dense(4));
    let (query, key) = (tensor(&[1, 2, 3, 4]), tensor(&[1, 2, 5, 4]));
    let mut out = tensor(&[1, 2, 3, 4]);
    let inputs = Inputs {
        attn_mask: Some(mask),
        ..Inputs::new(query.view(), key.view(), key.view())
    };
    let call = dense::forward(
        &Backend::default(),
        inputs,
        Options::default(),
        out.view_mut(),
    );
    call.unwrap_err().to_string()
}

#[test]
fn masks_that_make_no_sense_are_refused() {
    let (numbers, booleans) = ([0f32; 30], [true; 30]);
    let bias =
        |shape: &[usize]| AttnMask::Bias(View::new(&numbers[..shape.iter().product()], shape));
    let whole = "attn_mask: expected shape broadcasting to [1, 2, 3, 5], found";
    for shape in [&[4][..], &[2, 5], &[3, 1, 5], &[1, 1, 1, 1, 5], &[0]] {
        assert_eq!(
            refused(DType::F32, bias(shape)),
            format!("{whole} {}", fourtap::Shape::new(shape))
        );
    }
    let seen = |shape: &[usize]| AttnMask::Seen(BoolView::new(&booleans[..2], shape));
    assert_eq!(refused(DType::F32, seen(&[2])), format!("{whole} [2]"));
    assert_eq!(
        refused(DType::F32, seen(&[5])),
        "attn_mask: expected 5 elements for shape [5], found a slice of 2"
    );
    let doubles = [0f64; 5];
    let doubles = AttnMask::Bias(View::new(&doubles, &[5]));
    assert_eq!(
        refused(DType::F32, doubles),
        "attn_mask: expected element type f32 (that of query), or booleans, found f64"
    );
    assert_eq!(
        refused(DType::BF16, doubles),
        "attn_mask: expected element type bf16 (that of query) or f32, or booleans, found f64"
    );
    let layout = Layout::contiguous(DType::F32, &[5]);
    // SAFETY: the call is refused before anything is read.
    let (null, elsewhere) = unsafe {
        (
            View::from_raw(std::ptr::null(), layout),
            View::on_cuda(0, 4096, layout),
        )
    };
    let of_null = refused(DType::F32, AttnMask::Bias(null));
    assert!(of_null.starts_with("attn_mask: "), "{of_null}");
    let of_device = refused(DType::F32, AttnMask::Bias(elsewhere));
    assert!(
        of_device.starts_with("attn_mask: expected host memory (where query is)"),
        "{of_device}"
    );
}

#[test]
fn a_result_in_the_memory_of_its_mask_is_refused() {
    let mut memory = vec![0f32; 24];
    let numbers = vec![0f32; 40];
    let layout = Layout::contiguous(DType::F32, &[1, 2, 3, 4]);
    // SAFETY: the call is refused before anything is written.
    let out = unsafe { ViewMut::from_raw(memory.as_mut_ptr().cast(), layout) };
    let key = View::new(&numbers, &[1, 2, 5, 4]);
    let inputs = Inputs {
        attn_mask: Some(AttnMask::Bias(View::new(&memory[5..20], &[3, 5]))),
        ..Inputs::new(View::new(&numbers[..24], &[1, 2, 3, 4]), key, key)
    };
    let call = dense::forward(&Backend::default(), inputs, Options::default(), out);
    assert_eq!(
        call.unwrap_err().to_string(),
        "out: expected memory of its own, found it sharing bytes with attn_mask"
    );
}
