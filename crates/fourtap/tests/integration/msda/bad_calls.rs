//! Malformed calls: each ends in its typed error, names the tensor, and leaves the outputs as they were.

use std::collections::BTreeMap;

use fourtap::cpu::{Cpu, Simd};
use fourtap::msda::{self, Gradients, Inputs, Levels};
use fourtap::{Backend, DType, Error, Layout, View, ViewMut};

const SHAPES: [(usize, usize); 2] = [(3, 4), (1, 2)];
const NAMES: [&str; 8] = [
    "value",
    "sampling_locations",
    "attention_weights",
    "out",
    "grad_out",
    "grad_value",
    "grad_locations",
    "grad_weights",
];
const OUTPUTS: [usize; 4] = [3, 5, 6, 7];

/// What a tensor of the call claims to be.
#[derive(Clone)]
struct TensorClaim {
    dtype: DType,
    shape: Vec<usize>,
    /// Of the slice, in elements.
    length: usize,
    /// Offset and strides; dense over the whole slice if there are none.
    strides: Option<(usize, Vec<isize>)>,
    /// An address in place of the slice.
    address: Option<usize>,
}

/// `view` or `view_mut` of a claim, by the element type it claims.
macro_rules! view {
    ($claim:expr, $first:expr, $raw:expr, $View:ident, $slice:path) => {{
        let (claim, first): (&TensorClaim, *mut u8) = ($claim, $first);
        if $raw || claim.address.is_some() {
            let layout = match &claim.strides {
                Some((_, strides)) => Layout::strided(claim.dtype, &claim.shape, strides),
                None => Layout::contiguous(claim.dtype, &claim.shape),
            };
            return unsafe {
                $View::from_raw(
                    first.with_addr(claim.address.unwrap_or(first.addr())),
                    layout,
                )
            };
        }
        macro_rules! of {
            ($type:ty) => {{
                let slice = unsafe { $slice(first.cast::<$type>(), claim.length) };
                match &claim.strides {
                    Some((offset, strides)) => {
                        $View::strided(slice, *offset, &claim.shape, strides)
                    }
                    None => $View::new(slice, &claim.shape),
                }
            }};
        }
        match claim.dtype {
            DType::F16 => of!(fourtap::f16),
            DType::BF16 => of!(fourtap::bf16),
            DType::F32 => of!(f32),
            DType::F64 => of!(f64),
        }
    }};
}

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the callers promise what the blocks need"
)]
impl TensorClaim {
    /// # Safety
    /// `first` points to the claimed slice, or the call will be refused.
    unsafe fn view<'a>(&self, first: *mut u8, raw: bool) -> View<'a> {
        view!(self, first, raw, View, std::slice::from_raw_parts)
    }

    /// # Safety
    /// As for `view`, and nobody else uses the slice.
    unsafe fn view_mut<'a>(&self, first: *mut u8, raw: bool) -> ViewMut<'a> {
        view!(self, first, raw, ViewMut, std::slice::from_raw_parts_mut)
    }
}

/// A legal call, to be spoiled in one place.
#[derive(Clone)]
struct Call {
    claims: Vec<TensorClaim>,
    levels: Levels,
    /// The memory of the first tensor is used for the second.
    shared: Option<(usize, usize)>,
}

impl Call {
    fn legal() -> Self {
        let (n, q, m, d, l, p) = (2, 3, 2, 4, 2, 3);
        let levels = Levels::packed(&SHAPES).unwrap();
        let (value, out) = (vec![n, levels.pixels(), m, d], vec![n, q, m * d]);
        let (locations, weights) = (vec![n, q, m, l, p, 2], vec![n, q, m, l, p]);
        let shapes = [
            &value, &locations, &weights, &out, &out, &value, &locations, &weights,
        ];
        let claim = |shape: &&Vec<usize>| TensorClaim {
            dtype: DType::F32,
            shape: shape.to_vec(),
            length: shape.iter().product(),
            strides: None,
            address: None,
        };
        Call {
            claims: shapes.iter().map(claim).collect(),
            levels,
            shared: None,
        }
    }

    /// Runs forward if `tensor` belongs to it, else backward; the error, and whether the outputs were kept.
    fn run(&self, tensor: usize) -> (Result<(), Error>, bool) {
        // Memory enough for any claim, aligned, of a pattern that any write would change.
        let mut memory: Vec<Vec<u64>> = self
            .claims
            .iter()
            .map(|claim| vec![0x7fc1_2345_7fc1_2345; claim.length + 8])
            .collect();
        let before = memory.clone();
        let firsts: Vec<*mut u8> = memory
            .iter_mut()
            .map(|block| block.as_mut_ptr().cast())
            .collect();
        let first = |tensor: usize| match self.shared {
            Some((owner, sharer)) if sharer == tensor => firsts[owner],
            _ => firsts[tensor],
        };
        // SAFETY: each block holds `length` elements of up to eight bytes and is viewed once, unless it is shared;
        // shared memory and addresses of no block are refused before anything is read or written.
        let view = |tensor: usize| unsafe {
            self.claims[tensor].view(first(tensor), self.shared.is_some())
        };
        // SAFETY: likewise.
        let view_mut = |tensor: usize| unsafe {
            self.claims[tensor].view_mut(first(tensor), self.shared.is_some())
        };
        let inputs = Inputs {
            value: view(0),
            levels: (&self.levels).into(),
            sampling_locations: view(1),
            attention_weights: view(2),
        };
        let backend = Backend::default();
        let result = if tensor <= 3 {
            msda::forward(&backend, inputs, view_mut(3))
        } else {
            let gradients = Gradients {
                value: Some(view_mut(5)),
                sampling_locations: Some(view_mut(6)),
                attention_weights: Some(view_mut(7)),
            };
            msda::backward(&backend, inputs, view(4), gradients)
        };
        (result, memory == before)
    }
}

/// What is wrong, the call, the tensor that is wrong, and the errors it may end in.
type BadCall = (String, Call, usize, &'static [&'static str]);

fn spoil(
    tensor: usize,
    what: &str,
    kinds: &'static [&'static str],
    change: impl FnOnce(&mut TensorClaim),
) -> BadCall {
    let mut call = Call::legal();
    change(&mut call.claims[tensor]);
    (format!("{}: {what}", NAMES[tensor]), call, tensor, kinds)
}

/// Every way to spoil one tensor.
fn spoiled(tensor: usize) -> Vec<BadCall> {
    let legal = &Call::legal().claims[tensor];
    let rank = legal.shape.len();
    let mut bad = Vec::new();
    // A gradient has the rank of its source, so its rank is a matter of shape.
    let rank_error: &[&str] = if tensor >= 5 { &["Shape"] } else { &["Rank"] };
    for (what, shape) in [
        ("no axes", vec![]),
        ("an axis too few", legal.shape[1..].to_vec()),
        ("an axis too many", [&[1], &legal.shape[..]].concat()),
        ("nine axes", vec![1; 9]),
    ] {
        bad.push(spoil(tensor, what, rank_error, |claim| {
            claim.length = shape.iter().product();
            claim.shape = shape;
        }));
    }
    for axis in 0..rank {
        // Q and P belong to the locations: another size there makes the other tensors wrong.
        for (what, size) in [
            ("one more", legal.shape[axis] + 1),
            ("one fewer", legal.shape[axis] - 1),
        ] {
            let kinds: &[&str] = &["Shape", "LevelSum", "NoChannels"];
            bad.push(spoil(
                tensor,
                &format!("{what} on axis {axis}"),
                kinds,
                |claim| {
                    claim.shape[axis] = size;
                    claim.length = claim.shape.iter().product();
                },
            ));
        }
    }
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        bad.push(spoil(tensor, &format!("of {dtype}"), &["DType"], |claim| {
            claim.dtype = dtype
        }));
    }
    bad.push(spoil(tensor, "a slice too short", &["Length"], |claim| {
        claim.length -= 1
    }));
    bad.push(spoil(tensor, "a slice too long", &["Length"], |claim| {
        claim.length += 1
    }));
    bad.push(spoil(tensor, "an empty slice", &["Length"], |claim| {
        claim.length = 0
    }));
    let dense = Layout::contiguous(DType::F32, &legal.shape)
        .strides()
        .to_vec();
    let strided = |offset: usize, change: &dyn Fn(&mut Vec<isize>)| {
        let mut strides = dense.clone();
        change(&mut strides);
        Some((offset, strides))
    };
    for (what, kinds, strides) in [
        (
            "a stride too few",
            &["StrideCount"],
            strided(0, &|strides| strides.truncate(rank - 1)),
        ),
        (
            "a stride too many",
            &["StrideCount"],
            strided(0, &|strides| strides.push(1)),
        ),
        (
            "no strides",
            &["StrideCount"],
            strided(0, &|strides| strides.clear()),
        ),
        (
            "a stride out of the slice",
            &["StridesOutOfRange"],
            strided(0, &|strides| strides[0] += 1),
        ),
        (
            "a stride back out of the slice",
            &["StridesOutOfRange"],
            strided(0, &|strides| strides[0] = -1),
        ),
        (
            "an offset out of the slice",
            &["StridesOutOfRange"],
            strided(1, &|_| ()),
        ),
        (
            "an offset far out of the slice",
            &["StridesOutOfRange"],
            strided(usize::MAX / 16, &|_| ()),
        ),
        (
            "a stride that overflows",
            &["Overflow"],
            strided(0, &|strides| strides[0] = isize::MAX),
        ),
        (
            "a stride that overflows in bytes",
            &["Overflow"],
            strided(0, &|strides| strides[0] = isize::MAX / 2),
        ),
        (
            "a stride back that overflows",
            &["Overflow"],
            strided(0, &|strides| strides[0] = isize::MIN),
        ),
    ] {
        bad.push(spoil(tensor, what, kinds, |claim| claim.strides = strides));
    }
    bad.push(spoil(tensor, "null", &["Null"], |claim| {
        claim.address = Some(0)
    }));
    bad.push(spoil(
        tensor,
        "misaligned by one",
        &["Misaligned"],
        |claim| claim.address = Some(4097),
    ));
    bad.push(spoil(
        tensor,
        "misaligned by half",
        &["Misaligned"],
        |claim| claim.address = Some(4098),
    ));
    if OUTPUTS.contains(&tensor) {
        for axis in 0..rank {
            let mut strides = dense.clone();
            strides[axis] = 0;
            bad.push(spoil(
                tensor,
                &format!("broadcast on axis {axis}"),
                &["SelfOverlap"],
                |claim| {
                    claim.strides = Some((0, strides));
                },
            ));
        }
        let others: &[usize] = if tensor == 3 {
            &[0, 1, 2]
        } else {
            &[0, 1, 2, 4]
        };
        for &owner in others {
            let mut call = Call::legal();
            call.shared = Some((owner, tensor));
            bad.push((
                format!("{} in the memory of {}", NAMES[tensor], NAMES[owner]),
                call,
                tensor,
                &["Overlap"],
            ));
        }
    }
    bad
}

fn huge() -> Vec<BadCall> {
    let many = usize::MAX / 3;
    let sizes: [(usize, &str, Vec<usize>); 5] = [
        (0, "images without number", vec![many, 14, 2, 4]),
        (0, "no images of heads without number", vec![0, 14, many, 4]),
        (
            0,
            "no images of channels without number",
            vec![0, 14, 2, many],
        ),
        (1, "queries without number", vec![2, many, 2, 2, 3, 2]),
        (1, "points without number", vec![2, 3, 2, 2, many, 2]),
    ];
    let kinds: &[&str] = &["Overflow", "Shape"];
    let one = |(tensor, what, shape): (usize, &str, Vec<usize>)| {
        spoil(tensor, what, kinds, |claim| {
            claim.shape = shape;
            claim.length = 0;
        })
    };
    sizes.into_iter().map(one).collect()
}

/// The variant's name, as `Debug` begins with it.
fn kind(error: &Error) -> String {
    format!("{error:?}")
        .split([' ', '{'])
        .next()
        .unwrap_or_default()
        .to_string()
}

#[test]
fn the_call_they_are_spoiled_from_is_legal() {
    for tensor in [0, 7] {
        let (result, untouched) = Call::legal().run(tensor);
        assert_eq!(result, Ok(()));
        assert!(!untouched, "the outputs were written");
    }
}

#[test]
fn every_malformed_call_ends_in_its_typed_error() {
    let corpus: Vec<BadCall> = (0..NAMES.len()).flat_map(spoiled).chain(huge()).collect();
    assert!(corpus.len() >= 290, "only {} calls", corpus.len());
    let mut wrong = Vec::new();
    let mut kinds = BTreeMap::new();
    for (what, call, tensor, expected) in &corpus {
        let (result, untouched) = call.run(*tensor);
        match result {
            Ok(()) => wrong.push(format!("{what}: was accepted")),
            Err(error) => {
                let message = error.to_string();
                let named = NAMES.iter().any(|name| message.starts_with(name));
                if !expected.contains(&kind(&error).as_str())
                    || !named
                    || !message.contains("found")
                {
                    wrong.push(format!("{what}: {} ({message})", kind(&error)));
                }
                *kinds.entry(kind(&error)).or_insert(0) += 1;
            }
        }
        if !untouched {
            wrong.push(format!("{what}: wrote to a tensor"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}\n{kinds:?}",
        wrong.len(),
        corpus.len(),
        wrong.join("\n")
    );
}

#[test]
fn errors_name_the_tensor_the_expected_and_the_found() {
    let message = |tensor: usize, change: &dyn Fn(&mut TensorClaim)| {
        let (_, call, ..) = spoil(tensor, "", &[], change);
        call.run(tensor).0.unwrap_err().to_string()
    };
    assert_eq!(
        message(0, &|claim| claim.shape = vec![28, 2, 4]),
        "value: expected rank 4 [N, S, M, D], found rank 3"
    );
    assert_eq!(
        message(1, &|claim| claim.shape[2] = 5),
        "sampling_locations: expected shape [2, Q, 2, 2, P, 2], found [2, 3, 5, 2, 3, 2]"
    );
    assert_eq!(
        message(2, &|claim| claim.dtype = DType::F16),
        "attention_weights: expected element type f32, found f16"
    );
    assert_eq!(
        message(3, &|claim| claim.length = 7),
        "out: expected 48 elements for shape [2, 3, 8], found a slice of 7"
    );
}

#[test]
fn levels_that_do_not_tile_the_pixels_are_refused() {
    let kind_of =
        |result: fourtap::Result<Levels>| result.map_err(|error| kind(&error)).unwrap_err();
    let big = i64::from(i32::MAX);
    for (shapes, starts, expected) in [
        (vec![3], None, "LevelPairs"),
        (vec![3, 4, 5], None, "LevelPairs"),
        (vec![-1, 4], None, "LevelSize"),
        (vec![4, -1], None, "LevelSize"),
        (vec![i64::MIN, 1], None, "LevelSize"),
        (vec![big + 1, 1], None, "LevelSize"),
        (vec![1, i64::MAX], None, "LevelSize"),
        (vec![big, big, big, big, big, big], None, "Overflow"),
        (vec![3, 4], Some(vec![]), "LevelStartCount"),
        (vec![3, 4], Some(vec![0, 12]), "LevelStartCount"),
        (vec![3, 4], Some(vec![-1]), "LevelStart"),
        (vec![3, 4], Some(vec![1]), "LevelStart"),
        (vec![3, 4], Some(vec![i64::MAX]), "LevelStart"),
        (vec![3, 4], Some(vec![i64::MIN]), "LevelStart"),
        (vec![3, 4, 1, 2], Some(vec![0, 13]), "LevelStart"),
        (vec![3, 4, 1, 2], Some(vec![3, 0]), "LevelStart"),
        (vec![3, 4, 1, 2], Some(vec![0, 0]), "LevelOverlap"),
        (vec![3, 4, 1, 2], Some(vec![0, 11]), "LevelOverlap"),
        (vec![3, 4, 1, 2], Some(vec![2, 1]), "LevelOverlap"),
        (vec![1, 1, 1, 1, 1, 1], Some(vec![0, 1, 1]), "LevelOverlap"),
    ] {
        let found = kind_of(Levels::from_i64(&shapes, starts.as_deref()));
        assert_eq!(found, expected, "{shapes:?} {starts:?}");
    }
    assert_eq!(kind_of(Levels::packed(&[(usize::MAX, 1)])), "LevelSize");
    assert_eq!(
        kind_of(Levels::with_starts(&[(1, 1)], &[usize::MAX])),
        "LevelStart"
    );
}

#[test]
fn a_path_the_processor_lacks_is_refused() {
    for simd in Simd::ALL {
        match Cpu::with_simd(simd) {
            Ok(cpu) => assert!(simd.is_available() && cpu.simd() == simd),
            Err(error) => {
                assert!(!simd.is_available() && error.to_string().starts_with("simd: expected"))
            }
        }
    }
}
