//! Malformed calls of dense attention: each ends in its typed error, names the tensor, and leaves the outputs as they
//! were.

use fourtap::cpu::Cpu;
use fourtap::dense::{self, Inputs, Options, Outputs};
use fourtap::{Backend, DType, Layout, Place, View, ViewMut};

const NAMES: [&str; 5] = ["query", "key", "value", "out", "lse"];

/// The layouts of a legal call, by name; memory is a block of poison each.
#[derive(Clone)]
struct Call {
    layouts: [Layout; 5],
    /// Elements to the first of each tensor, or no memory at all.
    offsets: [Option<usize>; 5],
    /// The first tensor lies in the memory of the second.
    shared: Option<(usize, usize)>,
    scale: Option<f64>,
    backend: Backend,
}

const POISON: u64 = 0x7fc1_2345_7fc1_2345;

impl Call {
    fn legal() -> Self {
        let (b, hq, hk, sq, sk, d, dv) = (2, 4, 2, 3, 5, 8, 6);
        let of = |shape: &[usize]| Layout::contiguous(DType::F32, shape);
        Call {
            layouts: [
                of(&[b, hq, sq, d]),
                of(&[b, hk, sk, d]),
                of(&[b, hk, sk, dv]),
                of(&[b, hq, sq, dv]),
                of(&[b, hq, sq]),
            ],
            offsets: [Some(0); 5],
            shared: None,
            scale: None,
            backend: Backend::default(),
        }
    }

    /// The legal call with one shape changed.
    fn shaped(tensor: usize, shape: &[usize]) -> Self {
        Call::legal().with(tensor, Layout::contiguous(DType::F32, shape))
    }

    fn with(mut self, tensor: usize, layout: Layout) -> Self {
        self.layouts[tensor] = layout;
        self
    }

    /// The error's message.
    fn refused(&self) -> String {
        let mut memory: Vec<Vec<u64>> = vec![vec![POISON; 512]; 5];
        let firsts: Vec<*mut u8> = memory.iter_mut().map(|m| m.as_mut_ptr().cast()).collect();
        let first = |tensor: usize| match (self.shared, self.offsets[tensor]) {
            (_, None) => std::ptr::null_mut(),
            (Some((sharer, owner)), Some(offset)) if sharer == tensor => {
                firsts[owner].wrapping_add(offset)
            }
            (_, Some(offset)) => firsts[tensor].wrapping_add(offset),
        };
        // SAFETY: the calls are refused before anything is read or written.
        let view = |tensor| unsafe { View::from_raw(first(tensor), self.layouts[tensor]) };
        // SAFETY: likewise.
        let view_mut = |tensor| unsafe { ViewMut::from_raw(first(tensor), self.layouts[tensor]) };
        let inputs = Inputs {
            query: view(0),
            key: view(1),
            value: view(2),
            attn_mask: None,
        };
        let outputs = Outputs {
            out: view_mut(3),
            lse: Some(view_mut(4)),
        };
        let options = Options {
            scale: self.scale,
            ..Options::default()
        };
        let error = dense::forward(&self.backend, inputs, options, outputs).unwrap_err();
        let untouched = memory.iter().flatten().all(|&bits| bits == POISON);
        assert!(untouched, "a refused call wrote something: {error}");
        error.to_string()
    }
}

#[test]
fn the_call_they_are_spoiled_from_is_legal() {
    let call = Call::legal();
    let data: Vec<Vec<f32>> = call
        .layouts
        .map(|layout| vec![0.5; layout.shape().elements().unwrap()])
        .to_vec();
    let [query, key, value] =
        [0, 1, 2].map(|tensor| View::new(&data[tensor], call.layouts[tensor].shape().sizes()));
    let mut out = data[3].clone();
    let shape = call.layouts[3].shape();
    dense::forward(
        &Backend::default(),
        Inputs {
            query,
            key,
            value,
            attn_mask: None,
        },
        Options::default(),
        ViewMut::new(&mut out, shape.sizes()),
    )
    .unwrap();
    assert!(out.iter().all(|&x| x == 0.5));
}

#[test]
fn wrong_ranks_are_refused() {
    for (tensor, axes) in [
        (0, "rank 4 [B, Hq, Sq, D]"),
        (1, "rank 4 [B, Hk, Sk, D]"),
        (2, "rank 4 [B, Hk, Sk, Dv]"),
        (3, "rank 4 [B, Hq, Sq, Dv]"),
        (4, "rank 3 [B, Hq, Sq]"),
    ] {
        let found = Call::shaped(tensor, &[2, 3]).refused();
        assert_eq!(
            found,
            format!("{}: expected {axes}, found rank 2", NAMES[tensor])
        );
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    for (tensor, shape, expected) in [
        (
            1,
            [3, 2, 5, 8],
            "key: expected shape [2, Hk, Sk, 8], found [3, 2, 5, 8]",
        ),
        (
            1,
            [2, 2, 5, 7],
            "key: expected shape [2, Hk, Sk, 8], found [2, 2, 5, 7]",
        ),
        (
            2,
            [2, 2, 4, 6],
            "value: expected shape [2, 2, 5, Dv], found [2, 2, 4, 6]",
        ),
        (
            2,
            [2, 1, 5, 6],
            "value: expected shape [2, 2, 5, Dv], found [2, 1, 5, 6]",
        ),
        (
            3,
            [2, 4, 3, 8],
            "out: expected shape [2, 4, 3, 6], found [2, 4, 3, 8]",
        ),
        (
            3,
            [2, 3, 4, 6],
            "out: expected shape [2, 4, 3, 6], found [2, 3, 4, 6]",
        ),
    ] {
        assert_eq!(Call::shaped(tensor, &shape).refused(), expected);
    }
    assert_eq!(
        Call::shaped(4, &[2, 3, 4]).refused(),
        "lse: expected shape [2, 4, 3], found [2, 3, 4]"
    );
}

#[test]
fn heads_that_cannot_be_shared_evenly_are_refused() {
    for heads in [0, 3, 5, 8] {
        let call = Call::shaped(1, &[2, heads, 5, 8])
            .with(2, Layout::contiguous(DType::F32, &[2, heads, 5, 6]));
        assert_eq!(
            call.refused(),
            format!(
                "key: expected a number of heads (axis Hk) that divides the 4 of query, found {heads}"
            )
        );
    }
}

#[test]
fn tensors_without_channels_are_refused() {
    assert_eq!(
        Call::shaped(0, &[2, 4, 3, 0]).refused(),
        "query: expected at least 1 channel per head (axis D), found shape [2, 4, 3, 0]"
    );
    assert_eq!(
        Call::shaped(2, &[2, 2, 5, 0]).refused(),
        "value: expected at least 1 channel per head (axis D), found shape [2, 2, 5, 0]"
    );
}

#[test]
fn mixed_types_are_refused() {
    for tensor in 1..4 {
        let call = Call::legal();
        let layout = Layout::contiguous(DType::BF16, call.layouts[tensor].shape().sizes());
        let expected = "expected element type f32 (that of query), found bf16";
        assert_eq!(
            call.with(tensor, layout).refused(),
            format!("{}: {expected}", NAMES[tensor])
        );
    }
    let call = Call::legal().with(4, Layout::contiguous(DType::F64, &[2, 4, 3]));
    assert_eq!(
        call.refused(),
        "lse: expected element type f32 (for query of f32), found f64"
    );
}

#[test]
fn memory_that_cannot_be_used_is_refused() {
    for tensor in 0..5 {
        let name = NAMES[tensor];
        let shape = Call::legal().layouts[tensor].shape();
        let mut call = Call::legal();
        call.offsets[tensor] = None;
        let expected = format!("{name}: expected memory for shape {shape}, found a null pointer");
        assert_eq!(call.refused(), expected);
        call.offsets[tensor] = Some(2);
        let message = call.refused();
        let expected = format!("{name}: expected an address that is a multiple of 4, found ");
        assert!(message.starts_with(&expected), "{message}");
        let mut strides = Call::legal().layouts[tensor].strides().to_vec();
        strides[1] = isize::MAX / 2;
        let layout = Layout::strided(DType::F32, shape.sizes(), &strides);
        let message = Call::legal().with(tensor, layout).refused();
        assert!(
            message.starts_with(&format!("{name}: expected at most ")),
            "{message}"
        );
        strides.pop();
        let layout = Layout::strided(DType::F32, shape.sizes(), &strides);
        let message = Call::legal().with(tensor, layout).refused();
        assert!(
            message.starts_with(&format!("{name}: expected {} strides", shape.rank())),
            "{message}"
        );
    }
    for (output, others) in [(3, &[0, 1, 2][..]), (4, &[0, 1, 2, 3])] {
        for &other in others {
            let mut call = Call::legal();
            call.shared = Some((output, other));
            assert_eq!(
                call.refused(),
                format!(
                    "{}: expected memory of its own, found it sharing bytes with {}",
                    NAMES[output], NAMES[other]
                )
            );
        }
        let shape = Call::legal().layouts[output].shape();
        let mut strides = Call::legal().layouts[output].strides().to_vec();
        strides[1] = 0;
        let layout = Layout::strided(DType::F32, shape.sizes(), &strides);
        let message = Call::legal().with(output, layout).refused();
        let expected = format!(
            "{}: expected each element at its own address",
            NAMES[output]
        );
        assert!(message.starts_with(&expected), "{message}");
    }
}

#[test]
fn sizes_that_overflow_are_refused_even_beside_a_zero() {
    let many = usize::MAX / 3;
    for shape in [
        [many, 4, 3, 8],
        [0, many, 3, 8],
        [2, 4, many, 8],
        [0, 4, 3, many],
    ] {
        let call = Call::shaped(0, &shape)
            .with(
                1,
                Layout::contiguous(DType::F32, &[shape[0], shape[1], 0, shape[3]]),
            )
            .with(
                2,
                Layout::contiguous(DType::F32, &[shape[0], shape[1], 0, 6]),
            );
        let message = call.refused();
        assert!(message.contains("overflows"), "{message}");
    }
}

#[test]
fn a_scale_that_is_no_number_is_refused() {
    for (scale, found) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let call = Call {
            scale: Some(scale),
            ..Call::legal()
        };
        let expected = format!("scale: expected a finite number of f32, found {found}");
        assert_eq!(call.refused(), expected);
    }
    let too_large = Call {
        scale: Some(1e300),
        ..Call::legal()
    };
    assert!(
        too_large
            .refused()
            .starts_with("scale: expected a finite number of f32")
    );
}

#[test]
fn memory_of_a_device_is_refused_in_words() {
    let call = Call::legal();
    // SAFETY: nothing is read: every call is refused.
    let view = |tensor: usize| unsafe {
        View::on_cuda(0, 4096 * (tensor as u64 + 1), call.layouts[tensor])
    };
    let inputs = || Inputs {
        query: view(0),
        key: view(1),
        value: view(2),
        attn_mask: None,
    };
    // SAFETY: likewise.
    let out = || unsafe { ViewMut::on_cuda(0, 4096 * 4, call.layouts[3]) };
    let on_cpu = Backend::Cpu(Cpu::new());
    assert_eq!(
        dense::forward(&on_cpu, inputs(), Options::default(), out())
            .unwrap_err()
            .to_string(),
        "query: expected host memory, found memory of cuda:0"
    );
    assert_eq!(inputs().query.place(), Place::Cuda { ordinal: 0 });
    let host = vec![0f32; 160];
    let mixed = Inputs {
        key: View::new(&host, &[2, 2, 5, 8]),
        ..inputs()
    };
    assert_eq!(
        dense::forward(&Backend::Auto, mixed, Options::default(), out())
            .unwrap_err()
            .to_string(),
        "key: expected memory of cuda:0 (where query is), found host memory"
    );
}
