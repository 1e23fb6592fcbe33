//! Arrays of `ndarray` in any order give bit for bit what contiguous copies of them give, and only their elements are written.

use fourtap::dense::{self, Alignment, AttnMask, ForwardResults, Mask, Options, Outputs};
use fourtap::msda::{self, Levels};
use fourtap::{Backend, BoolView, Element, View, ViewMut, bf16, f16};
use ndarray::{Array, ArrayD, ArrayViewD, ArrayViewMutD, Axis, IxDyn, ShapeBuilder};
use ndarray::{Slice, arr0};

/// How an array lies in memory.
#[derive(Clone, Copy, Debug)]
enum Storage {
    Contiguous,
    ColumnMajor,
    /// The first two axes exchanged.
    Permuted,
    /// Every other element of every axis.
    Stepped,
    /// Every axis backwards, so that all strides are negative.
    Reversed,
}

const STRIDED: [Storage; 4] = [
    Storage::ColumnMajor,
    Storage::Permuted,
    Storage::Stepped,
    Storage::Reversed,
];

/// An array within memory that is otherwise NaN.
struct Stored<T> {
    memory: ArrayD<T>,
    storage: Storage,
}

impl<T: Element> Stored<T> {
    fn empty(shape: &[usize], storage: Storage) -> Self {
        let mut shape = shape.to_vec();
        let column_major = matches!(storage, Storage::ColumnMajor);
        match storage {
            Storage::Stepped => shape.iter_mut().for_each(|size| *size *= 2),
            Storage::Permuted => shape.swap(0, 1),
            _ => {}
        }
        let shape = IxDyn(&shape).set_f(column_major);
        Stored {
            memory: Array::from_elem(shape, T::from_f64(f64::NAN)),
            storage,
        }
    }

    fn new(array: &ArrayD<T>, storage: Storage) -> Self {
        let mut stored = Stored::empty(array.shape(), storage);
        stored.array_mut().assign(array);
        stored
    }

    fn array(&self) -> ArrayViewD<'_, T> {
        let mut array = self.memory.view();
        match self.storage {
            Storage::Contiguous | Storage::ColumnMajor => {}
            Storage::Permuted => array.swap_axes(0, 1),
            Storage::Stepped => array.slice_each_axis_inplace(|_| Slice::new(0, None, 2)),
            Storage::Reversed => array.slice_each_axis_inplace(|_| Slice::new(0, None, -1)),
        }
        array
    }

    fn array_mut(&mut self) -> ArrayViewMutD<'_, T> {
        let mut array = self.memory.view_mut();
        match self.storage {
            Storage::Contiguous | Storage::ColumnMajor => {}
            Storage::Permuted => array.swap_axes(0, 1),
            Storage::Stepped => array.slice_each_axis_inplace(|_| Slice::new(0, None, 2)),
            Storage::Reversed => array.slice_each_axis_inplace(|_| Slice::new(0, None, -1)),
        }
        array
    }

    /// The bits of its elements in order of their indices; memory between them must still be NaN.
    fn bits(&self) -> Vec<u64> {
        let written = self.memory.iter().filter(|x| !x.to_f64().is_nan()).count();
        assert_eq!(written, self.array().len(), "{:?}", self.storage);
        self.array().iter().map(|x| x.to_f64().to_bits()).collect()
    }
}

/// Numbers between 0 and 1 without a pattern.
fn numbers<T: Element>(shape: &[usize], seed: u32) -> ArrayD<T> {
    let mut state = seed;
    Array::from_shape_simple_fn(IxDyn(shape), || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        T::from_f64(f64::from(state >> 8) / f64::from(1 << 24))
    })
}

/// The output of deformable attention, and all gradients.
fn deformable<T: Element>(storage: Storage) -> [Vec<u64>; 4] {
    let levels = Levels::packed(&[(5, 7), (3, 4)]).unwrap();
    let (n, s, m, d, q, l, p) = (2, levels.pixels(), 3, 5, 4, 2, 3);
    let stored = |shape: &[usize], seed| Stored::<T>::new(&numbers(shape, seed), storage);
    let value = stored(&[n, s, m, d], 1);
    let locations = stored(&[n, q, m, l, p, 2], 2);
    let weights = stored(&[n, q, m, l, p], 3);
    let grad_out = stored(&[n, q, m * d], 4);
    let inputs = msda::Inputs {
        value: View::from(value.array()),
        levels: (&levels).into(),
        sampling_locations: View::from(locations.array()),
        attention_weights: View::from(weights.array()),
    };
    let empty = |other: &Stored<T>| Stored::<T>::empty(other.array().shape(), storage);
    let mut out = empty(&grad_out);
    let [mut grad_value, mut grad_locations, mut grad_weights] =
        [&value, &locations, &weights].map(empty);
    let backend = Backend::default();
    msda::forward(&backend, inputs, ViewMut::from(out.array_mut())).unwrap();
    let gradients = msda::Gradients {
        value: Some(ViewMut::from(grad_value.array_mut())),
        sampling_locations: Some(ViewMut::from(grad_locations.array_mut())),
        attention_weights: Some(ViewMut::from(grad_weights.array_mut())),
    };
    msda::backward(&backend, inputs, View::from(grad_out.array()), gradients).unwrap();
    [out, grad_value, grad_locations, grad_weights].map(|tensor| tensor.bits())
}

/// The output of dense attention, its log-sum-exp, and the gradients of query, key and value.
fn dense_attention<T: Element>(storage: Storage) -> [Vec<u64>; 5] {
    let (query_shape, key_shape) = ([2, 4, 9, 8], [2, 2, 11, 8]);
    let stored = |shape: &[usize], seed| Stored::<T>::new(&numbers(shape, seed), storage);
    let query = stored(&query_shape, 1);
    let [key, value] = [2, 3].map(|seed| stored(&key_shape, seed));
    let grad_out = stored(&query_shape, 4);
    let inputs = dense::Inputs::new(
        View::from(query.array()),
        View::from(key.array()),
        View::from(value.array()),
    );
    let options = Options {
        mask: Mask::causal(Alignment::BottomRight),
        ..Options::default()
    };
    let empty = |shape: &[usize]| Stored::<T>::empty(shape, storage);
    let mut out = empty(&query_shape);
    let mut lse = Stored::<T::Accumulator>::empty(&query_shape[..3], storage);
    let outputs = Outputs {
        out: ViewMut::from(out.array_mut()),
        lse: Some(ViewMut::from(lse.array_mut())),
    };
    let backend = Backend::default();
    dense::forward(&backend, inputs, options, outputs).unwrap();
    let [mut grad_query, mut grad_key, mut grad_value] =
        [&query_shape, &key_shape, &key_shape].map(|shape| empty(shape));
    let gradients = dense::Gradients {
        query: Some(ViewMut::from(grad_query.array_mut())),
        key: Some(ViewMut::from(grad_key.array_mut())),
        value: Some(ViewMut::from(grad_value.array_mut())),
        bias: None,
    };
    let results = ForwardResults {
        out: View::from(out.array()),
        lse: View::from(lse.array()),
    };
    let grad_out = View::from(grad_out.array());
    dense::backward(&backend, inputs, options, results, grad_out, gradients).unwrap();
    let lse = lse.bits();
    let [out, grad_query, grad_key, grad_value] =
        [out, grad_query, grad_key, grad_value].map(|tensor| tensor.bits());
    [out, lse, grad_query, grad_key, grad_value]
}

fn expect_the_same<T: Element>() {
    let (contiguous, dense) = (
        deformable::<T>(Storage::Contiguous),
        dense_attention::<T>(Storage::Contiguous),
    );
    for storage in STRIDED {
        let found = deformable::<T>(storage);
        assert!(found == contiguous, "deformable, {} {storage:?}", T::DTYPE);
        let found = dense_attention::<T>(storage);
        assert!(found == dense, "dense, {} {storage:?}", T::DTYPE);
    }
}

#[test]
fn arrays_in_any_order_give_the_bits_of_contiguous_ones() {
    expect_the_same::<f16>();
    expect_the_same::<bf16>();
    expect_the_same::<f32>();
    expect_the_same::<f64>();
}

/// One query per image at one point, in images of 2 x 2 pixels with one channel.
fn forward_of(
    value: View<'_>,
    sampling_locations: View<'_>,
    attention_weights: View<'_>,
    out: ViewMut<'_>,
) -> fourtap::Result<()> {
    let levels = Levels::packed(&[(2, 2)])?;
    let inputs = msda::Inputs {
        value,
        levels: (&levels).into(),
        sampling_locations,
        attention_weights,
    };
    msda::forward(&Backend::default(), inputs, out)
}

#[test]
fn broadcast_arrays_are_read_with_strides_of_zero() {
    let value = numbers::<f32>(&[3, 4, 1, 1], 1);
    let (half, one) = (arr0(0.5f32).into_dyn(), arr0(1.0f32).into_dyn());
    let locations = half.broadcast(IxDyn(&[3, 1, 1, 1, 1, 2])).unwrap();
    let weights = one.broadcast(IxDyn(&[3, 1, 1, 1, 1])).unwrap();
    assert_eq!(View::from(&weights).layout().strides(), [0; 5]);
    let mut out = Array::<f32, _>::zeros((3, 1, 1));
    let value = View::from(&value);
    let (locations, weights) = (&locations, &weights);
    forward_of(value, locations.into(), weights.into(), (&mut out).into()).unwrap();
    let mut copied = Array::<f32, _>::zeros((3, 1, 1));
    let (locations, weights) = (&locations.to_owned(), &weights.to_owned());
    forward_of(
        value,
        locations.into(),
        weights.into(),
        (&mut copied).into(),
    )
    .unwrap();
    assert_eq!(out, copied);
}

#[test]
fn empty_arrays_are_calls_without_work() {
    for (n, q) in [(0, 3), (2, 0)] {
        let value = numbers::<f32>(&[n, 4, 1, 1], 1);
        let locations = numbers::<f32>(&[n, q, 1, 1, 1, 2], 2);
        let weights = numbers::<f32>(&[n, q, 1, 1, 1], 3);
        let mut out = Array::<f32, _>::zeros((n, q, 1));
        let [value, locations, weights] = [&value, &locations, &weights].map(View::from);
        forward_of(value, locations, weights, (&mut out).into()).unwrap();
    }
}

#[test]
fn bad_arrays_are_refused_by_the_name_of_the_tensor() {
    let value = numbers::<f32>(&[1, 4, 1, 1], 1);
    let locations = numbers::<f32>(&[1, 1, 1, 1, 1, 2], 2);
    let weights = numbers::<f32>(&[1, 1, 1, 1, 1], 3);
    let mut out = Array::<f32, _>::zeros((1, 1, 1));
    let mut call = |value: View<'_>, weights: View<'_>| {
        let error = forward_of(value, (&locations).into(), weights, (&mut out).into());
        error.unwrap_err().to_string()
    };
    let seven_axes = value
        .view()
        .into_shape_with_order(IxDyn(&[1, 4, 1, 1, 1, 1, 1]));
    let message = call(seven_axes.unwrap().into(), (&weights).into());
    assert!(message.starts_with("value: expected rank 4"), "{message}");
    let message = call((&value).into(), weights.index_axis(Axis(0), 0).into());
    assert!(message.starts_with("attention_weights: "), "{message}");
}

#[test]
fn a_mask_is_read_with_its_strides() {
    let [query, key, value] = [1, 2, 3].map(|seed| numbers::<f32>(&[1, 1, 3, 2], seed));
    let forward = |seen: BoolView<'_>| {
        let inputs = dense::Inputs {
            attn_mask: Some(AttnMask::Seen(seen)),
            ..dense::Inputs::new((&query).into(), (&key).into(), (&value).into())
        };
        let mut out = Array::<f32, _>::zeros((1, 1, 3, 2));
        let options = Options::default();
        dense::forward(
            &Backend::default(),
            inputs,
            options,
            ViewMut::from(&mut out),
        )
        .unwrap();
        out
    };
    let seen = Array::from_shape_fn((3, 3), |(query, key)| query >= key);
    let transposed = seen.t().as_standard_layout().into_owned();
    assert_eq!(
        forward(BoolView::from(transposed.t())),
        forward(BoolView::from(&seen))
    );
    let backwards = seen.slice(ndarray::s![..;-1, ..;-1]);
    let copy = backwards.as_standard_layout().into_owned();
    assert_eq!(
        forward(BoolView::from(backwards)),
        forward(BoolView::from(&copy))
    );
}
