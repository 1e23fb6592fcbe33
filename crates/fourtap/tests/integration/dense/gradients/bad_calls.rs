//! Malformed backward calls of dense attention: each ends in its typed error, names the tensor, and leaves the gradients as they
//! were.

use fourtap::cpu::Cpu;
use fourtap::dense::{self, AttnMask, ForwardResults, Gradients, Inputs, Options};
use fourtap::{Backend, BoolView, DType, Layout, View, ViewMut};

const NAMES: [&str; 11] = [
    "query",
    "key",
    "value",
    "attn_mask",
    "out",
    "lse",
    "grad_out",
    "grad_query",
    "grad_key",
    "grad_value",
    "grad_bias",
];
const OUT: usize = 4;
const LSE: usize = 5;
const GRAD_OUT: usize = 6;
const GRADIENTS: [usize; 4] = [7, 8, 9, 10];

/// The layouts of a legal call, by name; memory is a block of poison each.
#[derive(Clone)]
struct Call {
    layouts: [Layout; 11],
    /// The first tensor lies in the memory of the second.
    shared: Option<(usize, usize)>,
}

const POISON: u64 = 0x7fc1_2345_7fc1_2345;

impl Call {
    fn legal() -> Self {
        let (b, hq, hk, sq, sk, d, dv) = (2, 4, 2, 3, 5, 8, 6);
        let of = |shape: &[usize]| Layout::contiguous(DType::F32, shape);
        let (query, key, value) = (
            of(&[b, hq, sq, d]),
            of(&[b, hk, sk, d]),
            of(&[b, hk, sk, dv]),
        );
        let (bias, out) = (of(&[hq, 1, sk]), of(&[b, hq, sq, dv]));
        let lse = of(&[b, hq, sq]);
        Call {
            layouts: [
                query, key, value, bias, out, lse, out, query, key, value, bias,
            ],
            shared: None,
        }
    }

    fn with(mut self, tensor: usize, layout: Layout) -> Self {
        self.layouts[tensor] = layout;
        self
    }

    /// Whether it is refused, with which message.
    fn run(&self) -> Result<(), String> {
        let mut memory: Vec<Vec<u64>> = vec![vec![POISON; 512]; NAMES.len()];
        let firsts: Vec<*mut u8> = memory.iter_mut().map(|m| m.as_mut_ptr().cast()).collect();
        let first = |tensor: usize| match self.shared {
            Some((sharer, owner)) if sharer == tensor => firsts[owner],
            _ => firsts[tensor],
        };
        // SAFETY: each tensor lies in its memory, or the call is refused before anything is read or written.
        let view = |tensor| unsafe { View::from_raw(first(tensor), self.layouts[tensor]) };
        // SAFETY: likewise.
        let view_mut = |tensor| unsafe { ViewMut::from_raw(first(tensor), self.layouts[tensor]) };
        let inputs = Inputs {
            query: view(0),
            key: view(1),
            value: view(2),
            attn_mask: Some(AttnMask::Bias(view(3))),
        };
        let results = ForwardResults {
            out: view(OUT),
            lse: view(LSE),
        };
        let [query, key, value, bias] = GRADIENTS.map(|tensor| Some(view_mut(tensor)));
        let gradients = Gradients {
            query,
            key,
            value,
            bias,
        };
        let (backend, grad_out) = (Backend::default(), view(GRAD_OUT));
        let options = Options::default();
        let error = dense::backward(&backend, inputs, options, results, grad_out, gradients);
        if error.is_err() {
            let untouched = memory.iter().flatten().all(|&bits| bits == POISON);
            assert!(untouched, "a refused call wrote something: {error:?}");
        }
        error.map_err(|error| error.to_string())
    }

    fn refused(&self) -> String {
        self.run().unwrap_err()
    }
}

#[test]
fn the_call_they_are_spoiled_from_is_legal() {
    assert_eq!(Call::legal().run(), Ok(()));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let of = |shape: &[usize]| Layout::contiguous(DType::F32, shape);
    for (tensor, shape, expected) in [
        (
            OUT,
            &[2, 4, 3][..],
            "expected rank 4 [B, Hq, Sq, Dv], found rank 3",
        ),
        (
            OUT,
            &[2, 4, 3, 8],
            "expected shape [2, 4, 3, 6], found [2, 4, 3, 8]",
        ),
        (
            LSE,
            &[2, 4, 3, 1],
            "expected rank 3 [B, Hq, Sq], found rank 4",
        ),
        (LSE, &[2, 3, 4], "expected shape [2, 4, 3], found [2, 3, 4]"),
        (
            GRAD_OUT,
            &[2, 4, 2, 6],
            "expected shape [2, 4, 3, 6], found [2, 4, 2, 6]",
        ),
        (
            7,
            &[2, 4, 3, 7],
            "expected shape [2, 4, 3, 8], found [2, 4, 3, 7]",
        ),
        (
            8,
            &[2, 4, 5, 8],
            "expected shape [2, 2, 5, 8], found [2, 4, 5, 8]",
        ),
        (
            9,
            &[2, 2, 5, 8],
            "expected shape [2, 2, 5, 6], found [2, 2, 5, 8]",
        ),
        (
            10,
            &[2, 4, 3, 5],
            "expected shape [4, 1, 5], found [2, 4, 3, 5]",
        ),
        (
            10,
            &[1, 4, 1, 5],
            "expected shape [4, 1, 5], found [1, 4, 1, 5]",
        ),
    ] {
        assert_eq!(
            Call::legal().with(tensor, of(shape)).refused(),
            format!("{}: {expected}", NAMES[tensor])
        );
    }
}

#[test]
fn mixed_types_are_refused() {
    for (tensor, source) in [
        (OUT, "query"),
        (GRAD_OUT, "query"),
        (7, "query"),
        (8, "key"),
        (9, "value"),
        (10, "attn_mask"),
    ] {
        let call = Call::legal();
        let layout = Layout::contiguous(DType::BF16, call.layouts[tensor].shape().sizes());
        assert_eq!(
            call.with(tensor, layout).refused(),
            format!(
                "{}: expected element type f32 (that of {source}), found bf16",
                NAMES[tensor]
            )
        );
    }
    let call = Call::legal().with(LSE, Layout::contiguous(DType::F64, &[2, 4, 3]));
    assert_eq!(
        call.refused(),
        "lse: expected element type f32 (for query of f32), found f64"
    );
}

#[test]
fn gradients_need_memory_of_their_own() {
    for output in GRADIENTS {
        for other in 0..output {
            let call = Call {
                shared: Some((output, other)),
                ..Call::legal()
            };
            assert_eq!(
                call.refused(),
                format!(
                    "{}: expected memory of its own, found it sharing bytes with {}",
                    NAMES[output], NAMES[other]
                )
            );
        }
        let layout = Call::legal().layouts[output];
        let mut strides = layout.strides().to_vec();
        strides[0] = 0;
        let layout = Layout::strided(DType::F32, layout.shape().sizes(), &strides);
        let message = Call::legal().with(output, layout).refused();
        let expected = format!(
            "{}: expected each element at its own address",
            NAMES[output]
        );
        assert!(message.starts_with(&expected), "{message}");
    }
}

/// The message of a call with this mask that asks for the gradient of a bias.
fn bias_refused(attn_mask: Option<AttnMask<'_>>) -> String {
    let numbers = [0.5f32; 2];
    let shape = [1, 1, 2, 1];
    let tensor = View::new(&numbers, &shape);
    let inputs = Inputs {
        attn_mask,
        ..Inputs::new(tensor, tensor, tensor)
    };
    let results = ForwardResults {
        out: tensor,
        lse: View::new(&numbers, &[1, 1, 2]),
    };
    let mut bias = [f32::NAN; 2];
    let gradients = Gradients {
        bias: Some(ViewMut::new(&mut bias, &[2])),
        ..Gradients::default()
    };
    let options = Options::default();
    let error = dense::backward(&Cpu::new(), inputs, options, results, tensor, gradients);
    assert!(bias.iter().all(|x| x.is_nan()));
    error.unwrap_err().to_string()
}

#[test]
fn the_gradient_of_a_bias_needs_a_bias() {
    assert_eq!(
        bias_refused(None),
        "grad_bias: expected an attn_mask that is a bias, found no attn_mask"
    );
    let seen = [true, false];
    assert_eq!(
        bias_refused(Some(AttnMask::Seen(BoolView::new(&seen, &[2])))),
        "grad_bias: expected an attn_mask that is a bias, found booleans, which have none"
    );
}

#[test]
fn memory_of_a_device_is_refused_in_words() {
    let layouts = Call::legal().layouts;
    // SAFETY: nothing is read: every call is refused.
    let view =
        |tensor: usize| unsafe { View::on_cuda(0, 4096 * (tensor as u64 + 1), layouts[tensor]) };
    let inputs = Inputs::new(view(0), view(1), view(2));
    let results = ForwardResults {
        out: view(OUT),
        lse: view(LSE),
    };
    let (options, gradients) = (Options::default(), Gradients::default());
    let on_cpu = Backend::Cpu(Cpu::new());
    let error = dense::backward(&on_cpu, inputs, options, results, view(GRAD_OUT), gradients);
    assert_eq!(
        error.unwrap_err().to_string(),
        "query: expected host memory, found memory of cuda:0"
    );
}
