//! The tensors of dense attention, and what is to be computed of them, in a safetensors file.

use std::collections::HashMap;

use fourtap::dense::{Alignment, Inputs, Mask, Options};
use safetensors::SafeTensors;

use super::{Known, MappedFile, Placement, Reader, Source};
use crate::error::{Error, Result};

/// Every tensor dense attention knows.
const TENSORS: [Known; 3] = [
    ("query", "[B, Hq, Sq, D]", 4),
    ("key", "[B, Hk, Sk, D]", 4),
    ("value", "[B, Hk, Sk, Dv]", 4),
];

/// The inputs of dense attention.
#[derive(Debug)]
pub struct DenseTensors<'a> {
    query: Source<'a>,
    key: Source<'a>,
    value: Source<'a>,
    /// From the file's metadata: `scale`, `causal` and `window`.
    pub options: Options,
    /// Names in the file that mean nothing here.
    pub ignored: Vec<String>,
}

impl<'a> DenseTensors<'a> {
    /// Finds the tensors in a file. Whether they fit each other is for the operator to say.
    pub fn read(file: &'a MappedFile, placement: Placement) -> Result<Self> {
        let reader = Reader::new(file, placement, &TENSORS)?;
        Ok(DenseTensors {
            query: reader.required("query")?,
            key: reader.required("key")?,
            value: reader.required("value")?,
            options: options(file)?,
            ignored: reader.ignored(),
        })
    }

    /// What the operator reads.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            query: self.query.view(),
            key: self.key.view(),
            value: self.value.view(),
        }
    }
}

/// What the metadata asks for; other entries than ours are somebody else's.
fn options(file: &MappedFile) -> Result<Options> {
    let metadata = SafeTensors::read_metadata(&file.map).ok();
    let entries: HashMap<String, String> = metadata
        .and_then(|(_, metadata)| metadata.metadata().clone())
        .unwrap_or_default();
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
