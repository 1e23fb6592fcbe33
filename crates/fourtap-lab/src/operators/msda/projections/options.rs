//! What a file's metadata says of a call from projections.

use fourtap::msda::projections::{BoxScale, Interpolation, Points};

use crate::error::{Error, Result};
use crate::tensors::MappedFile;

/// Everything of a call besides its tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Points of each level: one number for all, or one for each.
    pub points: Vec<usize>,
    /// How a point reads the pixels around it.
    pub interpolation: Interpolation,
    /// The factors of boxes, if not the usual ones: one for all levels, or one for each.
    pub box_scale: Vec<f64>,
}

impl Options {
    /// Those of a file with `samples` points of all of `levels`; other entries of its metadata are somebody else's.
    pub fn read(file: &MappedFile, samples: usize, levels: usize) -> Result<Self> {
        let entries = file.metadata();
        let wrong = |entry: &'static str, expected: &'static str, found: &str| Error::Metadata {
            file: file.path().to_path_buf(),
            entry,
            expected,
            found: found.to_string(),
        };
        let points = match entries.get("points_per_level") {
            Some(text) => list(text).ok_or_else(|| {
                wrong(
                    "points_per_level",
                    "a number, or one for each level, as in 4,4,8",
                    text,
                )
            })?,
            // What does not divide is refused with the shapes.
            None => vec![samples / levels.max(1)],
        };
        let interpolation = match entries.get("sampling").map(String::as_str) {
            None | Some("bilinear") => Interpolation::Bilinear,
            Some("nearest") => Interpolation::Nearest,
            Some(text) => return Err(wrong("sampling", "bilinear or nearest", text)),
        };
        let box_scale = match entries.get("box_scale") {
            None => Vec::new(),
            Some(text) => list(text).ok_or_else(|| {
                wrong(
                    "box_scale",
                    "a number, or one for each level, as in 0.1,0.2,0.2",
                    text,
                )
            })?,
        };
        Ok(Options {
            points,
            interpolation,
            box_scale,
        })
    }

    /// How the points are distributed over the levels.
    pub fn points(&self) -> Points<'_> {
        match self.points[..] {
            [points] => Points::Each(points),
            _ => Points::Listed(&self.points),
        }
    }

    /// The factors of boxes.
    pub fn box_scale(&self) -> BoxScale<'_> {
        match self.box_scale[..] {
            [] => BoxScale::HalfBox,
            [factor] => BoxScale::Each(factor),
            _ => BoxScale::Listed(&self.box_scale),
        }
    }
}

/// Numbers with commas between them, at least one.
fn list<T: std::str::FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',')
        .map(|number| number.trim().parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_numbers_with_commas_between_them() {
        assert_eq!(list("4"), Some(vec![4usize]));
        assert_eq!(list("4, 2,0"), Some(vec![4usize, 2, 0]));
        for wrong in ["", "4,", "-1", "4;2"] {
            assert_eq!(list::<usize>(wrong), None, "{wrong}");
        }
    }
}
