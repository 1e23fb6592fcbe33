//! A validated call, so that a backend need not check again.

use std::ops::Range;

use crate::checks::{
    claim, expect_countable, expect_dtype, expect_place, expect_rank, expect_shape,
};
use crate::dense::{AttnMaskDesc, Inputs, Options, Outputs};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::place::Place;
use crate::shape::Shape;

/// The sizes of a problem, under the letters the field uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Sequences (B).
    pub batch: usize,
    /// Heads of the queries (Hq).
    pub query_heads: usize,
    /// Heads of keys and values (Hk).
    pub key_heads: usize,
    /// Queries per sequence (Sq).
    pub queries: usize,
    /// Keys per sequence (Sk).
    pub keys: usize,
    /// Channels of a query and a key (D).
    pub channels: usize,
    /// Channels of a value (Dv).
    pub value_channels: usize,
}

impl Sizes {
    /// Query heads per key and value head (GQA).
    pub fn group(&self) -> usize {
        self.query_heads.checked_div(self.key_heads).unwrap_or(0)
    }

    /// Shape of `query`.
    pub fn query(&self) -> [usize; 4] {
        [self.batch, self.query_heads, self.queries, self.channels]
    }

    /// Shape of `key`.
    pub fn key(&self) -> [usize; 4] {
        [self.batch, self.key_heads, self.keys, self.channels]
    }

    /// Shape of `value`.
    pub fn value(&self) -> [usize; 4] {
        [self.batch, self.key_heads, self.keys, self.value_channels]
    }

    /// Shape of `out`.
    pub fn out(&self) -> [usize; 4] {
        [
            self.batch,
            self.query_heads,
            self.queries,
            self.value_channels,
        ]
    }

    /// Shape of `lse`.
    pub fn lse(&self) -> [usize; 3] {
        [self.batch, self.query_heads, self.queries]
    }
}

/// Everything about a problem but its data: sizes, mask, scale, element type and strides, checked against each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    sizes: Sizes,
    place: Place,
    options: Options,
    query: Layout,
    key: Layout,
    value: Layout,
    attn_mask: Option<AttnMaskDesc>,
}

/// Which addresses the inputs occupy.
pub(super) type Occupied = Vec<(&'static str, Range<usize>)>;

impl Problem {
    /// Checks `inputs` and `options` without any outputs.
    pub fn new(inputs: &Inputs<'_>, options: Options) -> Result<Self> {
        Problem::checked(inputs, options).map(|(problem, _)| problem)
    }

    /// As `new`; also returns the address ranges of the inputs.
    pub(super) fn checked(inputs: &Inputs<'_>, options: Options) -> Result<(Self, Occupied)> {
        let Inputs {
            query,
            key,
            value,
            attn_mask,
        } = *inputs;
        expect_rank("query", query.shape(), 4, "[B, Hq, Sq, D]")?;
        expect_rank("key", key.shape(), 4, "[B, Hk, Sk, D]")?;
        expect_rank("value", value.shape(), 4, "[B, Hk, Sk, Dv]")?;
        let shapes = [query.shape(), key.shape(), value.shape()];
        let [of_query, of_key, of_value] = shapes.each_ref().map(Shape::sizes);
        let sizes = Sizes {
            batch: of_query[0],
            query_heads: of_query[1],
            key_heads: of_key[1],
            queries: of_query[2],
            keys: of_key[2],
            channels: of_query[3],
            value_channels: of_value[3],
        };
        for (tensor, found) in [("query", query.shape()), ("value", value.shape())] {
            if found.sizes()[3] == 0 {
                return Err(Error::NoChannels { tensor, found });
            }
        }
        if key.shape() != Shape::new(&sizes.key()) {
            return Err(Error::Shape {
                tensor: "key",
                expected: format!("[{}, Hk, Sk, {}]", sizes.batch, sizes.channels),
                found: key.shape(),
            });
        }
        if value.shape() != Shape::new(&sizes.value()) {
            let [b, h, s, _] = sizes.value();
            return Err(Error::Shape {
                tensor: "value",
                expected: format!("[{b}, {h}, {s}, Dv]"),
                found: value.shape(),
            });
        }
        if sizes.group() * sizes.key_heads != sizes.query_heads {
            return Err(Error::Heads {
                tensor: "key",
                query_heads: sizes.query_heads,
                found: sizes.key_heads,
            });
        }
        expect_countable("query", &sizes.query())?;
        expect_countable("key", &sizes.key())?;
        expect_countable("value", &sizes.value())?;
        expect_countable("out", &sizes.out())?;
        expect_dtype("key", key.dtype(), "query", query.dtype())?;
        expect_dtype("value", value.dtype(), "query", query.dtype())?;
        let mut occupied = vec![
            ("query", query.check("query")?),
            ("key", key.check("key")?),
            ("value", value.check("value")?),
        ];
        let place = query.place();
        expect_place("key", key.place(), "query", place)?;
        expect_place("value", value.place(), "query", place)?;
        let attn_mask = match attn_mask {
            Some(mask) => {
                let (described, range) = mask.check(&sizes, query.dtype(), place)?;
                occupied.push(("attn_mask", range));
                Some(described)
            }
            None => None,
        };
        let problem = Problem {
            sizes,
            place,
            options,
            query: *query.layout(),
            key: *key.layout(),
            value: *value.layout(),
            attn_mask,
        };
        expect_scale(problem.scale(), query.dtype())?;
        Ok((problem, occupied))
    }

    /// The sizes.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The memory its tensors are in.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The element type of queries, keys, values and outputs.
    pub fn dtype(&self) -> DType {
        self.query.dtype()
    }

    /// The element type of `lse`: f64 where all tensors are, otherwise f32.
    pub fn lse_dtype(&self) -> DType {
        lse_dtype(self.dtype())
    }

    /// The scale of `Q K^T`.
    pub fn scale(&self) -> f64 {
        let default = || 1.0 / (self.sizes.channels as f64).sqrt();
        self.options.scale.unwrap_or_else(default)
    }

    /// Scale and mask, as given.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The keys that a query sees, but for those that a tensor hides from it.
    pub fn visible(&self, query: usize) -> Range<usize> {
        let Sizes { queries, keys, .. } = self.sizes;
        self.options.mask.visible(query, queries, keys)
    }

    /// Layout of `query`.
    pub fn query(&self) -> &Layout {
        &self.query
    }

    /// Layout of `key`.
    pub fn key(&self) -> &Layout {
        &self.key
    }

    /// Layout of `value`.
    pub fn value(&self) -> &Layout {
        &self.value
    }

    /// The tensor that hides keys or is added to logits, if there is one.
    pub fn attn_mask(&self) -> Option<&AttnMaskDesc> {
        self.attn_mask.as_ref()
    }

    /// Refuses tensors that are not in `expected`, the memory that a backend works in.
    pub(crate) fn expect_in(&self, expected: Place) -> Result<()> {
        if self.place == expected {
            return Ok(());
        }
        Err(Error::Place {
            tensor: "query",
            expected: expected.to_string(),
            found: self.place,
        })
    }
}

/// The element type of `lse` for queries of this type: f64 for f64, otherwise f32.
pub fn lse_dtype(query: DType) -> DType {
    match query {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// A validated forward call.
#[derive(Debug)]
pub struct Forward<'a> {
    pub(crate) problem: Problem,
    pub(crate) inputs: Inputs<'a>,
    pub(crate) outputs: Outputs<'a>,
}

impl<'a> Forward<'a> {
    /// Checks inputs, options and outputs against each other.
    pub fn new(inputs: Inputs<'a>, options: Options, outputs: Outputs<'a>) -> Result<Self> {
        let (problem, mut occupied) = Problem::checked(&inputs, options)?;
        let out = &outputs.out;
        expect_rank("out", out.shape(), 4, "[B, Hq, Sq, Dv]")?;
        expect_shape("out", out.shape(), &problem.sizes.out())?;
        expect_dtype("out", out.dtype(), "query", problem.dtype())?;
        expect_place("out", out.place(), "query", problem.place)?;
        occupied.push(("out", claim("out", out, &occupied)?));
        if let Some(lse) = &outputs.lse {
            expect_lse(&problem, lse.layout(), lse.place())?;
            claim("lse", lse, &occupied)?;
        }
        Ok(Forward {
            problem,
            inputs,
            outputs,
        })
    }
}

/// Checks `lse`, an output of forward and an input of backward.
pub(super) fn expect_lse(problem: &Problem, found: &Layout, place: Place) -> Result<()> {
    expect_rank("lse", found.shape(), 3, "[B, Hq, Sq]")?;
    expect_shape("lse", found.shape(), &problem.sizes.lse())?;
    if found.dtype() != problem.lse_dtype() {
        return Err(Error::DType {
            tensor: "lse",
            expected: format!("{} (for query of {})", problem.lse_dtype(), problem.dtype()),
            found: found.dtype(),
        });
    }
    expect_place("lse", place, "query", problem.place)
}

/// A scale that is NaN or infinite would spoil every row, whatever the inputs.
fn expect_scale(scale: f64, dtype: DType) -> Result<()> {
    let (finite, arithmetic) = match dtype {
        DType::F64 => (scale.is_finite(), DType::F64),
        _ => ((scale as f32).is_finite(), DType::F32),
    };
    if finite {
        return Ok(());
    }
    Err(Error::Scale {
        expected: arithmetic,
        found: scale.to_string(),
    })
}
