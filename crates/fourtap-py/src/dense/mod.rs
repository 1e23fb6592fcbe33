//! Dense attention, called from Python: maps axes `[..., H, S, D]` to the library's four and allocates results.

mod backward;

pub use backward::{check_dense, torch_dense_backward};

use std::iter::repeat_n;

use fourtap::dense::{self, Alignment, AttnMask, Inputs, Mask, Options, Outputs};
use fourtap::{View, ViewMut};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::on_device;
use crate::errors::{Kind, unexpected};
use crate::frameworks::numpy::NumPy;
use crate::frameworks::torch::Torch;
use crate::frameworks::{Describe, Framework};
use crate::operands::{KnownTensors, saturating_product};
use crate::route::{Answer, Route};
use crate::tensor::{Axes, Element, Tensor};
use crate::threads;

type Any<'a, 'py> = &'a Bound<'py, PyAny>;

/// Settings of a call, as the tuple that python/fourtap/attention.py makes.
#[derive(Clone, Copy, FromPyObject)]
pub struct DenseSettings {
    #[pyo3(item(0))]
    scale: Option<f64>,
    #[pyo3(item(1))]
    left: Option<usize>,
    #[pyo3(item(2))]
    right: Option<usize>,
    #[pyo3(item(3))]
    bottom_right: bool,
    #[pyo3(item(4))]
    enable_gqa: bool,
    #[pyo3(item(5))]
    return_lse: bool,
}

impl DenseSettings {
    fn options(&self) -> Options {
        let alignment = match self.bottom_right {
            true => Alignment::BottomRight,
            false => Alignment::TopLeft,
        };
        Options {
            scale: self.scale,
            mask: Mask::window(alignment, self.left, self.right),
        }
    }
}

#[pyfunction(signature = (query, key, value, attn_mask, wanted, /))]
pub fn torch_dense<'py>(
    query: Any<'_, 'py>,
    key: Any<'_, 'py>,
    value: Any<'_, 'py>,
    attn_mask: Option<Any<'_, 'py>>,
    wanted: DenseSettings,
) -> PyResult<Bound<'py, PyAny>> {
    let torch = Torch::get(query.py())?;
    let operands = Operands {
        query,
        key,
        value,
        attn_mask,
    };
    let described = operands.describe(torch, KnownTensors::default())?;
    attend(torch, operands, described, wanted)
}

/// The result of a plain call, or the route that it must take.
#[pyfunction(signature = (query, key, value, attn_mask, wanted, /))]
pub fn torch_dense_if_plain<'py>(
    query: Any<'_, 'py>,
    key: Any<'_, 'py>,
    value: Any<'_, 'py>,
    attn_mask: Option<Any<'_, 'py>>,
    wanted: Any<'_, 'py>,
) -> PyResult<Answer<'py>> {
    let py = query.py();
    let torch = Torch::get(py)?;
    let operands = Operands {
        query,
        key,
        value,
        attn_mask,
    };
    let [of_query, of_key, of_value] = operands.named();
    let (known, route) = match attn_mask {
        None => {
            let Some(known) = torch.reads_directly(py, operands.named(), &[])? else {
                return Ok(Answer::Take(Route::Registered));
            };
            (known, Route::of_plain(torch, py, operands.named())?)
        }
        Some(mask) => {
            let named = [of_query, of_key, of_value, (MASK, mask)];
            let Some([query, key, value, _]) = torch.reads_directly(py, named, &[])? else {
                return Ok(Answer::Take(Route::Registered));
            };
            ([query, key, value], Route::of_plain(torch, py, named)?)
        }
    };
    if let Some(route) = route {
        return Ok(Answer::Take(route));
    }
    // Not before: while tracing, numbers may be symbols, which reading would specialise.
    let wanted: DenseSettings = wanted.extract()?;
    let described = operands.describe(torch, known)?;
    if !described.are_aligned(py, wanted.enable_gqa) {
        return Ok(Answer::Take(Route::Broadcast));
    }
    attend(torch, operands, described, wanted).map(Answer::Done)
}

#[pyfunction(signature = (query, key, value, attn_mask, wanted, /))]
pub fn numpy_dense<'py>(
    query: Any<'_, 'py>,
    key: Any<'_, 'py>,
    value: Any<'_, 'py>,
    attn_mask: Option<Any<'_, 'py>>,
    wanted: DenseSettings,
) -> PyResult<Bound<'py, PyAny>> {
    let operands = Operands {
        query,
        key,
        value,
        attn_mask,
    };
    let described = operands.describe(&NumPy, KnownTensors::default())?;
    attend(&NumPy, operands, described, wanted)
}

/// The mask's name in messages.
const MASK: &str = "attn_mask";

/// The inputs of the operator as Python objects.
#[derive(Clone, Copy)]
struct Operands<'a, 'py> {
    query: Any<'a, 'py>,
    key: Any<'a, 'py>,
    value: Any<'a, 'py>,
    attn_mask: Option<Any<'a, 'py>>,
}

impl<'a, 'py> Operands<'a, 'py> {
    /// All but the mask.
    fn named(&self) -> [(&'static str, Any<'a, 'py>); 3] {
        [
            ("query", self.query),
            ("key", self.key),
            ("value", self.value),
        ]
    }
}

impl Operands<'_, '_> {
    /// The inputs as the library takes them.
    ///
    /// # Safety
    /// As of [`Tensor::view`].
    unsafe fn inputs<'a>(&self, described: &OperandDescs) -> PyResult<Inputs<'a>> {
        // SAFETY: as the caller promises.
        unsafe {
            Ok(Inputs {
                query: view(&described.query, self.query)?,
                key: view(&described.key, self.key)?,
                value: view(&described.value, self.value)?,
                attn_mask: match (&described.attn_mask, self.attn_mask) {
                    (Some(mask), Some(object)) => Some(mask_view(mask, object)?),
                    _ => None,
                },
            })
        }
    }
}

/// The inputs, described for the library.
struct OperandDescs {
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Option<Tensor>,
}

impl Operands<'_, '_> {
    fn describe(&self, framework: &impl Describe, known: KnownTensors) -> PyResult<OperandDescs> {
        let describe = |(name, object), known: Option<Tensor>| {
            known.map_or_else(|| framework.describe(name, object), Ok)
        };
        let [of_query, of_key, of_value] = self.named();
        let [query, key, value] = known;
        Ok(OperandDescs {
            query: describe(of_query, query)?,
            key: describe(of_key, key)?,
            value: describe(of_value, value)?,
            attn_mask: match self.attn_mask {
                Some(mask) => Some(framework.describe(MASK, mask)?),
                None => None,
            },
        })
    }
}

impl OperandDescs {
    /// Whether the library can take them, or knows best what is wrong with them: as `are_aligned` of
    /// python/fourtap/_broadcast.py, but for axes before the heads that can be joined without a copy.
    fn are_aligned(&self, py: Python<'_>, grouped: bool) -> bool {
        let (query, rank) = (&self.query, self.query.sizes.len());
        if rank < 2 {
            return true;
        }
        let outer = rank.saturating_sub(if grouped { 3 } else { 2 });
        let fits = |tensor: &Tensor| {
            tensor.sizes.len() == rank && tensor.sizes[..outer] == query.sizes[..outer]
        };
        let joins =
            |tensor: &Tensor| with_one_sequence_axis(py, tensor, HEADS_AND_CHANNELS).is_ok();
        let tensors = [query, &self.key, &self.value];
        if rank > 4 && !(self.attn_mask.is_none() && tensors.into_iter().all(joins)) {
            return false;
        }
        tensors.into_iter().all(fits)
    }
}

/// The attention in a new tensor; with `return_lse` a pair of it and the log-sum-exp (LSE).
fn attend<'py>(
    framework: &impl Framework,
    operands: Operands<'_, 'py>,
    described: OperandDescs,
    wanted: DenseSettings,
) -> PyResult<Bound<'py, PyAny>> {
    let py = operands.query.py();
    let OperandDescs {
        query, key, value, ..
    } = &described;
    check_shapes(py, [query, key, value], wanted.enable_gqa)?;
    // SAFETY: Python's caller holds the operands until we return, and frameworks free device memory in the order of
    // the stream that is current.
    let inputs = unsafe { operands.inputs(&described)? };
    let options = wanted.options();
    let out = empty_out(framework, operands.query, query, value)?;
    let lse = match wanted.return_lse {
        true => {
            let element = Element::Real(dense::lse_dtype(inputs.query.dtype()));
            let (_, rows) = last(&query.sizes);
            Some(framework.empty(operands.query, query, element, rows)?)
        }
        false => None,
    };
    // SAFETY: both are new.
    let outputs = unsafe {
        Outputs {
            out: view_mut(framework, "out", &out, HEADS_AND_CHANNELS)?,
            lse: match &lse {
                Some(lse) => Some(view_mut(framework, "lse", lse, HEADS)?),
                None => None,
            },
        }
    };
    match framework.cuda(py, query.place)? {
        Some(cuda) => on_device(py, framework, operands.query, || {
            dense::prepare_forward(&cuda, inputs, options, outputs)
        })?,
        None => {
            let workers = framework.threads(py)?;
            let work = work(query, value);
            threads::run(py, workers, work, |cpu| {
                dense::forward(&cpu, inputs, options, outputs)
            })?;
        }
    }
    match lse {
        Some(lse) => Ok(PyTuple::new(py, [out, lse])?.into_any()),
        None => Ok(out),
    }
}

/// Axes `[H, S, D]`, after the batch axes.
const HEADS_AND_CHANNELS: usize = 3;

/// Axes `[H, S]`.
const HEADS: usize = 2;

/// Checks the shapes in the axes that the caller knows: the library only sees four axes.
fn check_shapes(
    py: Python<'_>,
    [query, key, value]: [&Tensor; 3],
    enable_gqa: bool,
) -> PyResult<()> {
    let refuse = |tensor: &Tensor, expected: String, found: String| {
        Err(unexpected(py, Kind::Input, tensor.name, &expected, found))
    };
    let rank = query.sizes.len();
    if rank < 2 {
        let expected = "rank 2 or more [..., H, S, D]".to_string();
        return refuse(query, expected, format!("rank {rank}"));
    }
    for tensor in [key, value] {
        if tensor.sizes.len() != rank {
            let expected = format!("rank {rank} (that of query)");
            return refuse(tensor, expected, format!("rank {}", tensor.sizes.len()));
        }
    }
    let (channels, _) = last(&query.sizes);
    let (_, key_rows) = last(&key.sizes);
    let sequences = rank.saturating_sub(HEADS_AND_CHANNELS);
    let free = if rank > 2 { "Hk, Sk" } else { "Sk" };
    if key.sizes[..sequences] != query.sizes[..sequences] || last(&key.sizes).0 != channels {
        let expected = shape(&query.sizes[..sequences], &format!("{free}, {channels}"));
        return refuse(key, expected, format!("{:?}", &*key.sizes));
    }
    if last(&value.sizes).1 != key_rows {
        return refuse(value, shape(key_rows, "Dv"), format!("{:?}", &*value.sizes));
    }
    if rank > 2 && !enable_gqa {
        let (query_heads, heads) = (query.sizes[rank - 3], key.sizes[rank - 3]);
        if heads != query_heads {
            let expected = format!(
                "{query_heads} heads, as query has (with enable_gqa=True heads of query share those of key)"
            );
            return refuse(key, expected, format!("{heads} heads"));
        }
    }
    Ok(())
}

/// A shape as text, with names for its last axes.
fn shape(sizes: &[usize], free: &str) -> String {
    let sizes: String = sizes.iter().map(|size| format!("{size}, ")).collect();
    format!("shape [{sizes}{free}]")
}

/// The size of the last axis, and those of all before it. Callers have checked the rank.
fn last(sizes: &[usize]) -> (usize, &[usize]) {
    sizes
        .split_last()
        .map_or((1, &[]), |(&last, rest)| (last, rest))
}

/// A tensor `[..., H, S, D]` to be read.
///
/// # Safety
/// As of [`Tensor::view`].
unsafe fn view<'a>(tensor: &Tensor, object: &Bound<'_, PyAny>) -> PyResult<View<'a>> {
    let tensor = with_one_sequence_axis(object.py(), tensor, HEADS_AND_CHANNELS)?;
    let layout = tensor.layout(object)?;
    // SAFETY: as the caller promises.
    Ok(unsafe { tensor.view(layout) })
}

/// A mask or bias to be read.
///
/// # Safety
/// As of [`Tensor::view`].
unsafe fn mask_view<'a>(tensor: &Tensor, object: &Bound<'_, PyAny>) -> PyResult<AttnMask<'a>> {
    // SAFETY: as the caller promises.
    unsafe {
        match tensor.element {
            Element::Bool => Ok(AttnMask::Seen(tensor.bool_view(object)?)),
            Element::Real(_) => {
                let layout = tensor.layout(object)?;
                Ok(AttnMask::Bias(tensor.view(layout)))
            }
            _ => {
                let found = object.getattr("dtype")?.to_string();
                let expected = "element type bool, f32 or that of query";
                Err(unexpected(
                    object.py(),
                    Kind::DType,
                    tensor.name,
                    expected,
                    found,
                ))
            }
        }
    }
}

/// A result to be written.
///
/// # Safety
/// As of [`Tensor::view_mut`].
unsafe fn view_mut<'a>(
    framework: &impl Framework,
    name: &'static str,
    object: &Bound<'_, PyAny>,
    inner: usize,
) -> PyResult<ViewMut<'a>> {
    let tensor = framework.describe_writable(name, object)?;
    let tensor = with_one_sequence_axis(object.py(), &tensor, inner)?;
    let layout = tensor.layout(object)?;
    // SAFETY: as the caller promises.
    Ok(unsafe { tensor.view_mut(layout) })
}

/// The same elements with all axes before the `inner` last ones joined, and an axis of size 1 where heads are missing.
fn with_one_sequence_axis(py: Python<'_>, tensor: &Tensor, inner: usize) -> PyResult<Tensor> {
    let rank = tensor.sizes.len();
    let outer = rank.saturating_sub(inner);
    let (mut sequences, mut step) = (1usize, 0isize);
    for axis in (0..outer).rev() {
        let (size, stride) = (tensor.sizes[axis], tensor.strides[axis]);
        if size == 1 {
            continue;
        }
        if sequences == 1 {
            step = stride;
        } else if sequences > 0 && size > 0 && step.checked_mul(sequences as isize) != Some(stride)
        {
            let expected = "axes before the heads that can be joined to one without a copy (call .contiguous(), say)";
            let found = format!("{:?} with strides {:?}", &*tensor.sizes, &*tensor.strides);
            return Err(unexpected(py, Kind::Input, tensor.name, expected, found));
        }
        sequences = sequences.saturating_mul(size);
    }
    let missing = inner.saturating_sub(rank);
    let sizes = [sequences].into_iter().chain(repeat_n(1, missing));
    let strides = [step].into_iter().chain(repeat_n(0, missing));
    Ok(Tensor {
        sizes: sizes.chain(tensor.sizes[outer..].iter().copied()).collect(),
        strides: strides
            .chain(tensor.strides[outer..].iter().copied())
            .collect(),
        ..tensor.clone()
    })
}

/// A new tensor for the result, with the memory order of `query`: if that is `[..., S, H, D]`, so is the
/// result.
fn empty_out<'py>(
    framework: &impl Framework,
    object: &Bound<'py, PyAny>,
    query: &Tensor,
    value: &Tensor,
) -> PyResult<Bound<'py, PyAny>> {
    let rank = query.sizes.len();
    let mut sizes: Axes<usize> = query.sizes.clone();
    sizes[rank - 1] = value.sizes[rank - 1];
    if rank > 2 {
        let (heads, positions) = (rank - 3, rank - 2);
        let several = sizes[heads] > 1 && sizes[positions] > 1;
        if several && query.strides[heads] < query.strides[positions] {
            sizes.swap(heads, positions);
            let out = framework.empty(object, query, query.element, &sizes)?;
            return out.call_method1(intern!(object.py(), "swapaxes"), (heads, positions));
        }
    }
    framework.empty(object, query, query.element, &sizes)
}

/// The work of a call, for tensors that fit each other: an eighth of its multiply-adds, in the unit of
/// [`Tuning::serial_work`].
///
/// [`Tuning::serial_work`]: fourtap::cpu::Tuning::serial_work
fn work(query: &Tensor, value: &Tensor) -> usize {
    let (channels, rows) = last(&query.sizes);
    let (value_channels, key_rows) = last(&value.sizes);
    let keys = key_rows.last().copied().unwrap_or(1);
    let each = channels.saturating_add(value_channels).saturating_mul(keys);
    rows.iter().fold(each, saturating_product) / 8
}
