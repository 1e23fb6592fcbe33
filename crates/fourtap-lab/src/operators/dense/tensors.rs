//! The tensors of dense attention, random or of a file, and what is to be computed of them.

use fourtap::Backend;
use fourtap::dense::{Alignment, Inputs, Mask, Options, Problem, Traffic};

use super::attn_mask::MaskTensor;
use super::{AttnMaskKind, Trial, Workload, generate};
use crate::cli::Direction;
use crate::computation::{Computation, TensorSet};
use crate::error::{Error, Result};
use crate::operators::{DataSpec, Reading};
use crate::tensors::{MappedFile, Placement, Reader, Source, TensorSpec};

/// Every tensor dense attention knows.
const TENSORS: [TensorSpec; 3] = [
    ("query", "[B, Hq, Sq, D]", 4),
    ("key", "[B, Hk, Sk, D]", 4),
    ("value", "[B, Hk, Sk, Dv]", 4),
];

/// The inputs of dense attention.
#[derive(Debug)]
pub struct Tensors<'a> {
    query: Source<'a>,
    key: Source<'a>,
    value: Source<'a>,
    /// Of a workload that has one, and what it is like.
    attn_mask: Option<(AttnMaskKind, MaskTensor)>,
    /// Of a file, from its metadata: `scale`, `causal` and `window`.
    options: Options,
    /// Whether the log-sum-exp (LSE) is computed, too.
    with_lse: bool,
    /// Names in the file that mean nothing here.
    ignored: Vec<String>,
}

impl Tensors<'static> {
    /// Random numbers for a workload.
    pub fn random(workload: &Workload, filling: &DataSpec) -> Result<Self> {
        let (sizes, dtype, seed) = (workload.sizes(), filling.dtype, filling.seed);
        let random = generate::inputs(&sizes, dtype, seed)?;
        let mask =
            |kind| -> Result<_> { Ok((kind, MaskTensor::random(kind, &sizes, dtype, seed)?)) };
        let [query, key, value] = random.map(Source::Owned);
        Ok(Tensors {
            query,
            key,
            value,
            attn_mask: workload.attn_mask.map(mask).transpose()?,
            options: workload.options(),
            with_lse: false,
            ignored: Vec::new(),
        })
    }
}

impl<'a> Tensors<'a> {
    /// Finds the tensors in a file and checks that they fit each other.
    pub fn read(file: &'a MappedFile, reading: Reading) -> Result<Self> {
        let placement = match reading {
            Reading::Compute { .. } => Placement::AsItLies,
            Reading::Time { .. } => Placement::Aligned,
        };
        let reader = Reader::new(file, placement, &TENSORS)?;
        let tensors = Tensors {
            query: reader.required("query")?,
            key: reader.required("key")?,
            value: reader.required("value")?,
            attn_mask: None,
            options: options(file)?,
            with_lse: matches!(reading, Reading::Compute { lse: true, .. }),
            ignored: reader.ignored(),
        };
        let problem = Problem::new(&tensors.inputs(), tensors.options);
        let problem = problem.map_err(|source| file.misfit(source))?;
        let is_timed = matches!(reading, Reading::Time { .. });
        if is_timed && Traffic::of_forward(&problem).pairs == 0 {
            let workload = file.path().display().to_string();
            return Err(Error::NothingToTime { workload });
        }
        Ok(tensors)
    }

    /// What the operator reads.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            query: self.query.view(),
            key: self.key.view(),
            value: self.value.view(),
            attn_mask: self.attn_mask.as_ref().map(|(_, mask)| mask.view()),
        }
    }
}

impl TensorSet for Tensors<'_> {
    fn trial(&self, backend: Backend, _: Direction) -> Result<Box<dyn Computation + '_>> {
        let kind = self.attn_mask.as_ref().map(|(kind, _)| *kind);
        let trial = Trial::new(backend, self.inputs(), self.options)?.with_mask_kind(kind);
        Ok(Box::new(match self.with_lse {
            true => trial.with_lse(),
            false => trial,
        }))
    }

    fn ignored(&self) -> &[String] {
        &self.ignored
    }
}

/// What the metadata asks for; other entries than ours are somebody else's.
fn options(file: &MappedFile) -> Result<Options> {
    let entries = file.metadata();
    let wrong = |entry: &'static str, expected: &'static str| {
        move |found: &String| Error::Metadata {
            file: file.path().to_path_buf(),
            entry,
            expected,
            found: found.clone(),
        }
    };
    let read = |entry: &'static str| entries.get(entry);
    let scale = match read("scale") {
        None => None,
        Some(text) => {
            let wrong = wrong("scale", "a number");
            Some(text.parse::<f64>().map_err(|_| wrong(text))?)
        }
    };
    let causal = match read("causal").map(|text| (text, text.as_str())) {
        None => None,
        Some((_, "top-left")) => Some(Mask::causal(Alignment::TopLeft)),
        Some((_, "bottom-right")) => Some(Mask::causal(Alignment::BottomRight)),
        Some((text, _)) => return Err(wrong("causal", "top-left or bottom-right")(text)),
    };
    let (left, right) = match read("window") {
        None => (None, None),
        Some(text) => {
            let wrong = wrong("window", "LEFT,RIGHT, each a number or all");
            window(text).ok_or_else(|| wrong(text))?
        }
    };
    Ok(Options {
        scale,
        mask: causal.unwrap_or_default().with_window(left, right),
    })
}

/// As in "128,0" and "all,64".
fn window(text: &str) -> Option<(Option<usize>, Option<usize>)> {
    let (left, right) = text.split_once(',')?;
    let bound = |text: &str| match text.trim() {
        "all" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some((bound(left)?, bound(right)?))
}
