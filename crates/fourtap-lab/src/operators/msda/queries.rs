//! How many queries a workload has, and where they look.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

/// How many queries an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queries {
    /// One for each pixel of each level.
    Pixels,
    /// This many.
    Count(u32),
}

/// Where a query's reference point is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reference {
    /// At the centre of the query's own pixel, level after level.
    Pixels,
    /// On a grid over the image, row after row.
    Raster,
    /// Anywhere.
    Random,
}

impl<'de> Deserialize<'de> for Queries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct NumberOrPixels;
        impl Visitor<'_> for NumberOrPixels {
            type Value = Queries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number from 1 to {} or \"pixels\"", u32::MAX)
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> std::result::Result<Queries, E> {
                let invalid = |_| E::invalid_value(de::Unexpected::Signed(count), &self);
                u32::try_from(count).map(Queries::Count).map_err(invalid)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Queries, E> {
                match text {
                    "pixels" => Ok(Queries::Pixels),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(NumberOrPixels)
    }
}
