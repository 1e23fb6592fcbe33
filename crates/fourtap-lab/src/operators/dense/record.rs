//! Dense attention as recorded.

use std::any::Any;

use fourtap::dense::{Mask, Problem, Traffic};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::{AttnMaskKind, Corner, Dense};
use crate::operators::Operator;
use crate::record::{DTypes, Sizes, TrafficCounts};

/// The sizes of a problem, and which keys a query sees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProblemSizes {
    /// B.
    pub batch: usize,
    /// Hq.
    pub query_heads: usize,
    /// Hk.
    pub key_heads: usize,
    /// Sq.
    pub queries: usize,
    /// Sk.
    pub keys: usize,
    /// D.
    pub channels: usize,
    /// Dv.
    pub value_channels: usize,
    /// The factor of the logits.
    pub scale: f64,
    /// None if every query sees every key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<MaskRecord>,
    /// The tensor that hides further keys, or is added to logits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attn_mask: Option<AttnMaskKind>,
}

/// A band around the diagonal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskRecord {
    /// Where the diagonal lies.
    pub alignment: Corner,
    /// Keys seen before it; none for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<usize>,
    /// Keys seen after it; none for all, 0 for a causal mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right: Option<usize>,
}

impl MaskRecord {
    /// None of a mask that hides nothing.
    pub fn of(mask: Mask) -> Option<Self> {
        let Mask {
            alignment,
            left,
            right,
        } = mask;
        let alignment = alignment.into();
        (left.is_some() || right.is_some()).then_some(MaskRecord {
            alignment,
            left,
            right,
        })
    }

    /// As in "causal, top-left".
    pub fn in_words(&self) -> String {
        let all = |bound: Option<usize>| bound.map_or("all".to_string(), |keys| keys.to_string());
        let band = match (self.left, self.right) {
            (None, Some(0)) => "causal".to_string(),
            (left, right) => format!("window {} to {}", all(left), all(right)),
        };
        format!("{band}, {}", self.alignment.name())
    }
}

impl ProblemSizes {
    /// Of a problem whose mask, if it has a tensor for one, is of this kind.
    pub fn new(problem: &Problem, attn_mask: Option<AttnMaskKind>) -> Self {
        let sizes = problem.sizes();
        ProblemSizes {
            batch: sizes.batch,
            query_heads: sizes.query_heads,
            key_heads: sizes.key_heads,
            queries: sizes.queries,
            keys: sizes.keys,
            channels: sizes.channels,
            value_channels: sizes.value_channels,
            scale: problem.scale(),
            mask: MaskRecord::of(problem.options().mask),
            attn_mask,
        }
    }

    /// Which keys a query sees, as in "causal, top-left"; `all` if it is every one, and nothing is added to logits.
    pub fn seen_in_words(&self, all: &str) -> String {
        seen_in_words(self.mask.as_ref(), self.attn_mask, all)
    }
}

/// Which keys a query sees by both kinds of masks; `all` without either.
pub fn seen_in_words(
    mask: Option<&MaskRecord>,
    attn_mask: Option<AttnMaskKind>,
    all: &str,
) -> String {
    let band = mask.map(MaskRecord::in_words);
    let tensor = attn_mask.map(|kind| kind.in_words().to_string());
    let both: Vec<String> = band.into_iter().chain(tensor).collect();
    match both.is_empty() {
        true => all.to_string(),
        false => both.join(", "),
    }
}

impl Sizes for ProblemSizes {
    fn operator(&self) -> &'static dyn Operator {
        &Dense
    }

    /// With what a query sees.
    fn in_words(&self) -> Vec<String> {
        vec![
            format!("B {}", self.batch),
            format!("Hq {}", self.query_heads),
            format!("Hk {}", self.key_heads),
            format!("Sq {}", self.queries),
            format!("Sk {}", self.keys),
            format!("D {}", self.channels),
            format!("Dv {}", self.value_channels),
            format!("scale {}", self.scale),
            self.seen_in_words("all keys"),
        ]
    }

    fn is_same(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }

    fn to_json(&self) -> serde_json::Result<Box<RawValue>> {
        to_raw_value(self)
    }
}

impl From<&Problem> for DTypes {
    fn from(problem: &Problem) -> Self {
        DTypes {
            value: problem.dtype().to_string(),
            locations: None,
            weights: None,
        }
    }
}

impl From<Traffic> for TrafficCounts {
    fn from(traffic: Traffic) -> Self {
        TrafficCounts {
            compulsory_bytes: traffic.compulsory_bytes,
            gathered_bytes: 0,
            flop: traffic.flop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_without_a_mask_still_parse() {
        let old = r#"{"batch":1,"query_heads":8,"key_heads":8,"queries":512,"keys":512,"channels":64,"value_channels":64,"scale":0.125}"#;
        let sizes: ProblemSizes = serde_json::from_str(old).unwrap();
        assert_eq!(sizes.attn_mask, None);
        assert_eq!(sizes.seen_in_words("all"), "all");
        assert_eq!(serde_json::to_string(&sizes).unwrap(), old);
        let masked = ProblemSizes {
            attn_mask: Some(AttnMaskKind::Groups),
            ..sizes
        };
        let text = serde_json::to_string(&masked).unwrap();
        assert!(text.contains(r#""attn_mask":"groups""#), "{text}");
        assert_eq!(serde_json::from_str::<ProblemSizes>(&text).unwrap(), masked);
        assert_eq!(masked.seen_in_words("all"), "mask of groups");
    }
}
