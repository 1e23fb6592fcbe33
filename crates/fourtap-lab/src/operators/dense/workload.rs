//! Problems of dense attention by name.

use std::sync::Arc;

use fourtap::cuda::DeviceSize;
use fourtap::cuda::dense::ProblemDesc;
use fourtap::dense::{Alignment, AttnMask, Inputs, Mask, Options, Problem, Sizes, Traffic};
use fourtap::tuning::{Choice, Class};
use fourtap::{BoolView, DType, Element, View, bf16, f16};
use serde::{Deserialize, Serialize};

use super::explain::Case;
use super::tensors::Tensors;
use super::{AttnMaskKind, Dense, ProblemSizes, tuning};
use crate::cli::{CaseArgs, Direction, Distribution};
use crate::computation::TensorSet;
use crate::error::{Error, Result};
use crate::operators::{self, BuiltIn, DataSpec, Numbers, Operator, parsed};
use crate::record::{DTypes, ProblemRecord};
use crate::tune::{Gpu, LaunchPlan, Points};

/// A processor takes seconds for so many operations, and each benchmark is many computations.
const MOST_FLOP_ON_CPU: u64 = 100_000_000_000;

/// A problem of dense attention, to be filled with random numbers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    operator: &'static dyn Operator,
    /// What it is called.
    pub name: String,
    /// What it stands for.
    pub description: String,
    /// Sequences (B).
    pub batch: u32,
    /// Heads of the queries (Hq).
    pub heads: u32,
    /// Heads of keys and values (Hk); as many, unless said otherwise.
    pub key_heads: Option<u32>,
    /// Queries per sequence (Sq).
    pub queries: u32,
    /// Keys per sequence (Sk); as many, unless said otherwise.
    pub keys: Option<u32>,
    /// Channels of a query and a key (D).
    pub channels: u32,
    /// Channels of a value (Dv); as many, unless said otherwise.
    pub value_channels: Option<u32>,
    /// No query sees a key after the diagonal, which lies so.
    pub causal: Option<Corner>,
    /// How far from the diagonal a query sees.
    pub window: Option<Window>,
    /// A tensor that hides further keys, or is added to logits.
    pub attn_mask: Option<AttnMaskKind>,
}

/// Where the diagonal of queries and keys ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Corner {
    /// Query 0 is at key 0.
    TopLeft,
    /// The last query is at the last key.
    BottomRight,
}

impl Corner {
    /// As typed and recorded.
    pub fn name(self) -> &'static str {
        match self {
            Corner::TopLeft => "top-left",
            Corner::BottomRight => "bottom-right",
        }
    }
}

impl From<Corner> for Alignment {
    fn from(corner: Corner) -> Self {
        match corner {
            Corner::TopLeft => Alignment::TopLeft,
            Corner::BottomRight => Alignment::BottomRight,
        }
    }
}

impl From<Alignment> for Corner {
    fn from(alignment: Alignment) -> Self {
        match alignment {
            Alignment::TopLeft => Corner::TopLeft,
            Alignment::BottomRight => Corner::BottomRight,
        }
    }
}

/// Keys seen before and after the diagonal; all, on a side that is not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Before it.
    pub left: Option<u32>,
    /// After it.
    pub right: Option<u32>,
}

/// A name, and the text of the file of that name.
macro_rules! built_in {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../../workloads/dense/", $name, ".toml")),
        )
    };
}

/// Every built-in one.
pub(super) const BUILT_IN: [BuiltIn; 21] = [
    built_in!("dense-s512-d64"),
    built_in!("dense-s1024-d64"),
    built_in!("dense-s2048-d64"),
    built_in!("dense-b4-s2048-d64"),
    built_in!("dense-b4-s2048-d64-causal"),
    built_in!("dense-b4-s8192-d64"),
    built_in!("dense-b4-s8192-d64-causal"),
    built_in!("dense-b4-s2048-d128"),
    built_in!("dense-b4-s2048-d128-causal"),
    built_in!("dense-b2-s8192-d128"),
    built_in!("dense-b2-s8192-d128-causal"),
    built_in!("dense-s16384-d128"),
    built_in!("dense-s16384-d128-causal"),
    built_in!("dense-b2-s8192-d256"),
    built_in!("dense-b2-s8192-d256-causal"),
    built_in!("dense-decode"),
    built_in!("dense-dino-decoder"),
    built_in!("dense-swin7"),
    built_in!("dense-swin12"),
    built_in!("dense-mask2former"),
    built_in!("dense-vit-padding"),
];

impl Workload {
    pub(super) fn parse(origin: &str, text: &str) -> Result<Self> {
        let workload: Workload = parsed(origin, text)?;
        workload.check(origin)?;
        Ok(workload)
    }

    fn check(&self, origin: &str) -> Result<()> {
        let invalid = |found: String| {
            Err(Error::Workload {
                origin: origin.to_string(),
                found,
            })
        };
        if self.name.trim().is_empty() {
            return invalid("name: expected some letters, found none".to_string());
        }
        let counts = [
            ("batch", Some(self.batch)),
            ("heads", Some(self.heads)),
            ("key_heads", self.key_heads),
            ("queries", Some(self.queries)),
            ("keys", self.keys),
            ("channels", Some(self.channels)),
            ("value_channels", self.value_channels),
        ];
        if let Some((field, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
            return invalid(format!("{field}: expected at least 1, found 0"));
        }
        match self.key_heads {
            Some(key_heads) if !self.heads.is_multiple_of(key_heads) => {
                return invalid(format!(
                    "key_heads: expected a number that divides heads, {}, found {key_heads}",
                    self.heads
                ));
            }
            _ => {}
        }
        let sizes = self.sizes();
        // Four operations per pair and channel, counted in 64 bits.
        let products = [
            sizes.batch,
            sizes.query_heads,
            sizes.queries,
            sizes.keys,
            sizes.channels.max(sizes.value_channels),
        ];
        let operations = products
            .iter()
            .try_fold(4i64, |product, &size| product.checked_mul(size as i64));
        if operations.is_none() {
            return invalid(
                "expected sizes whose operations can be counted, found more than 2^63".to_string(),
            );
        }
        Ok(())
    }

    /// All sizes.
    pub fn sizes(&self) -> Sizes {
        let or = |own: Option<u32>, other: u32| own.unwrap_or(other) as usize;
        Sizes {
            batch: self.batch as usize,
            query_heads: self.heads as usize,
            key_heads: or(self.key_heads, self.heads),
            queries: self.queries as usize,
            keys: or(self.keys, self.queries),
            channels: self.channels as usize,
            value_channels: or(self.value_channels, self.channels),
        }
    }

    /// Its mask, and the usual scale.
    pub fn options(&self) -> Options {
        let causal = self.causal.map(|corner| Mask::causal(corner.into()));
        let Window { left, right } = self.window.unwrap_or_default();
        let wide = |bound: Option<u32>| bound.map(|bound| bound as usize);
        Options {
            scale: None,
            mask: causal
                .unwrap_or_default()
                .with_window(wide(left), wide(right)),
        }
    }

    /// The call, of tensors that take no memory: for those who only count.
    pub fn problem(&self, dtype: DType) -> Result<Problem> {
        match dtype {
            DType::F16 => self.described(&[f16::ZERO]),
            DType::BF16 => self.described(&[bf16::ZERO]),
            DType::F32 => self.described(&[0f32]),
            DType::F64 => self.described(&[0f64]),
        }
    }

    /// What the library plans by on a CUDA device, of row-major tensors.
    pub fn on_cuda(&self, dtype: DType) -> ProblemDesc {
        let sizes = self.sizes();
        ProblemDesc {
            sizes,
            dtype,
            mask: self.options().mask,
            align: 16,
            boxes: sizes.queries > 1,
            attn_mask: self.attn_mask.map(|kind| kind.described(&sizes, dtype)),
        }
    }

    /// One number stands for all: every stride is 0.
    fn described<T: Element>(&self, number: &[T; 1]) -> Result<Problem> {
        let sizes = self.sizes();
        let all = |shape: [usize; 4]| View::strided(number, 0, &shape, &[0; 4]);
        let inputs = Inputs {
            query: all(sizes.query()),
            key: all(sizes.key()),
            value: all(sizes.value()),
            // One element stands for all of it, too.
            attn_mask: self.attn_mask.map(|kind| match kind.bias(T::DTYPE) {
                Some(_) => AttnMask::Bias(all([1; 4])),
                None => AttnMask::Seen(BoolView::new(&[true], &[1])),
            }),
        };
        Ok(Problem::new(&inputs, self.options())?)
    }
}

impl operators::Workload for Workload {
    fn operator(&self) -> &'static dyn Operator {
        &Dense
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn with_batch(&self, batch: u32) -> Result<Arc<dyn operators::Workload>> {
        let workload = Workload {
            batch,
            ..self.clone()
        };
        workload.check(&workload.name)?;
        Ok(Arc::new(workload))
    }

    fn numbers(&self, _: Distribution) -> Numbers {
        Numbers::NORMAL
    }

    fn takes_long_on_cpu(&self) -> Result<bool> {
        let traffic = Traffic::of_forward(&Workload::problem(self, DType::F32)?);
        Ok(traffic.flop > MOST_FLOP_ON_CPU)
    }

    fn problem(&self, dtype: DType) -> Result<ProblemRecord> {
        let problem = Workload::problem(self, dtype)?;
        Ok(ProblemSizes::new(&problem, self.attn_mask).into())
    }

    fn dtypes(&self, filling: &DataSpec) -> DTypes {
        DTypes {
            value: filling.dtype.to_string(),
            locations: None,
            weights: None,
        }
    }

    fn class(&self) -> Result<Class> {
        if self.attn_mask.is_some() {
            return Err(Error::TunedMask {
                workload: self.name.clone(),
            });
        }
        Ok(Class::of_dense(&self.sizes(), &self.options().mask))
    }

    fn bytes(&self, filling: &DataSpec) -> Result<u64> {
        let sizes = self.sizes();
        let count = |shape: [usize; 4]| shape.iter().map(|&size| size as u64).product::<u64>();
        let tensors = [sizes.query(), sizes.key(), sizes.value(), sizes.out()];
        let elements: u64 = tensors.into_iter().map(count).sum();
        let mask = self.attn_mask;
        let mask = mask.map_or(0, |kind| kind.bytes(&sizes, filling.dtype));
        Ok(2 * (elements * filling.dtype.size() as u64 + mask))
    }

    fn filled(&self, filling: &DataSpec) -> Result<Box<dyn TensorSet>> {
        Ok(Box::new(Tensors::random(self, filling)?))
    }

    fn case(&self, arguments: &CaseArgs) -> Result<Box<dyn crate::explain::Case>> {
        Ok(Box::new(Case::new(self.clone(), arguments)?))
    }

    fn planned(
        &self,
        device: DeviceSize,
        (dtype, _): (DType, Direction),
        choice: &Choice,
    ) -> Result<LaunchPlan> {
        tuning::planned(self, device, dtype, choice)
    }

    fn hints(&self, points: &Points, gpu: &Gpu) -> Vec<Choice> {
        tuning::hints(self, points, gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built_in(name: &str) -> Workload {
        let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name).unwrap();
        Workload::parse(name, text).unwrap()
    }

    #[test]
    fn built_in_workloads_are_what_their_names_say() {
        for (name, _) in BUILT_IN {
            let workload = built_in(name);
            assert_eq!(workload.name, name);
            let sizes = workload.sizes();
            for part in name.split('-') {
                let number = || part[1..].parse::<usize>().unwrap();
                match (part, part.as_bytes()[0]) {
                    ("dense" | "decode" | "causal" | "decoder" | "padding", _) => {}
                    ("dino" | "swin7" | "swin12" | "mask2former" | "vit", _) => {
                        assert!(workload.attn_mask.is_some(), "{name}");
                    }
                    (_, b'b') => assert_eq!(sizes.batch, number(), "{name}"),
                    (_, b's') => assert_eq!([sizes.queries, sizes.keys], [number(); 2], "{name}"),
                    (_, b'd') => assert_eq!(sizes.channels, number(), "{name}"),
                    _ => panic!("{part} of {name}"),
                }
            }
            let causal = name.ends_with("-causal") || name == "dense-decode";
            assert_eq!(workload.causal.is_some(), causal, "{name}");
        }
    }

    #[test]
    fn the_smallest_has_the_published_operations() {
        let problem = built_in("dense-s512-d64").problem(DType::F16).unwrap();
        let traffic = fourtap::dense::Traffic::of_forward(&problem);
        assert_eq!(traffic.flop, 536_870_912);
        assert_eq!(problem.scale(), 0.125);
    }

    #[test]
    fn masks_are_causal_or_windows_or_both() {
        let workload = |causal, window| Workload {
            causal,
            window,
            ..built_in("dense-s512-d64")
        };
        let window = Window {
            left: Some(3),
            right: None,
        };
        let mask = |causal, window| workload(causal, window).options().mask;
        assert_eq!(mask(None, None), Mask::default());
        let both = mask(Some(Corner::TopLeft), Some(window));
        assert_eq!(both, Mask::window(Alignment::TopLeft, Some(3), Some(0)));
        let alone = mask(None, Some(window));
        assert_eq!(alone, Mask::window(Alignment::BottomRight, Some(3), None));
    }
}
