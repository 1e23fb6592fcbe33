//! Classes of similar problems.

use std::fmt;
use std::str::FromStr;

use crate::{dense, msda};

/// Problems so similar that the best choice for one is good for the others: the same row shape, and a number of rows
/// within a factor of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A class of deformable attention.
    Msda {
        /// Channels per head (D).
        channels: u32,
        /// Levels (L).
        levels: u32,
        /// Points per level (P).
        points: u32,
        /// The binary logarithm of the (image, query, head) rows, rounded down.
        rows: u32,
    },
    /// A class of dense attention.
    Dense {
        /// Channels of a query (D).
        channels: u32,
        /// Channels of a value (Dv).
        value_channels: u32,
        /// The binary logarithm of the (sequence, head, query) rows, rounded down.
        rows: u32,
        /// The binary logarithm of the keys (Sk), rounded down.
        keys: u32,
        /// Whether some queries do not see all keys.
        masked: bool,
    },
}

impl Class {
    /// The class of a problem of deformable attention.
    pub fn of_msda(sizes: &msda::Sizes) -> Self {
        Class::Msda {
            channels: counted(sizes.channels),
            levels: counted(sizes.levels),
            points: counted(sizes.points),
            rows: magnitude(&[sizes.images, sizes.queries, sizes.heads]),
        }
    }

    /// The class of a problem of dense attention.
    pub fn of_dense(sizes: &dense::Sizes, mask: &dense::Mask) -> Self {
        Class::Dense {
            channels: counted(sizes.channels),
            value_channels: counted(sizes.value_channels),
            rows: magnitude(&[sizes.batch, sizes.query_heads, sizes.queries]),
            keys: magnitude(&[sizes.keys]),
            masked: *mask != dense::Mask::default(),
        }
    }
}

/// No problem that fits in memory has sizes of more than 32 bits.
fn counted(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// The binary logarithm of a product, rounded down; 0 for a product of 0.
fn magnitude(sizes: &[usize]) -> u32 {
    let product = sizes.iter().copied().fold(1, usize::saturating_mul);
    product.checked_ilog2().unwrap_or(0)
}

/// As in "d32-l4-p4-rows17", or "d64-v64-rows14-keys11-masked".
impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Class::Msda {
                channels,
                levels,
                points,
                rows,
            } => write!(f, "d{channels}-l{levels}-p{points}-rows{rows}"),
            Class::Dense {
                channels,
                value_channels,
                rows,
                keys,
                masked,
            } => {
                let masked = if masked { "-masked" } else { "" };
                write!(
                    f,
                    "d{channels}-v{value_channels}-rows{rows}-keys{keys}{masked}"
                )
            }
        }
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = |word: &str, prefix: &str| word.strip_prefix(prefix)?.parse().ok();
        let words: Vec<&str> = text.split('-').collect();
        let class = match words[..] {
            [d, l, p, rows] if l.starts_with('l') => (|| {
                Some(Class::Msda {
                    channels: read(d, "d")?,
                    levels: read(l, "l")?,
                    points: read(p, "p")?,
                    rows: read(rows, "rows")?,
                })
            })(),
            [d, v, rows, keys, ref rest @ ..] if matches!(rest, [] | ["masked"]) => (|| {
                Some(Class::Dense {
                    channels: read(d, "d")?,
                    value_channels: read(v, "v")?,
                    rows: read(rows, "rows")?,
                    keys: read(keys, "keys")?,
                    masked: !rest.is_empty(),
                })
            })(
            ),
            _ => None,
        };
        class.ok_or_else(|| {
            format!("a class as in d32-l4-p4-rows17 or d64-v64-rows14-keys11, found {text}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_read_again_it_is_the_same() {
        let msda = Class::of_msda(&msda::Sizes {
            images: 2,
            pixels: 1000,
            heads: 8,
            channels: 32,
            queries: 1000,
            levels: 4,
            points: 5,
        });
        assert_eq!(msda.to_string(), "d32-l4-p5-rows13");
        let sizes = dense::Sizes {
            batch: 1,
            query_heads: 8,
            key_heads: 8,
            queries: 512,
            keys: 500,
            channels: 64,
            value_channels: 96,
        };
        let mask = dense::Mask::default();
        let seen = Class::of_dense(&sizes, &mask);
        assert_eq!(seen.to_string(), "d64-v96-rows12-keys8");
        let masked = match seen {
            Class::Dense {
                channels,
                value_channels,
                rows,
                keys,
                ..
            } => Class::Dense {
                channels,
                value_channels,
                rows,
                keys,
                masked: true,
            },
            other => other,
        };
        for class in [msda, seen, masked] {
            assert_eq!(class.to_string().parse(), Ok(class));
        }
    }

    #[test]
    fn what_is_no_class_is_refused() {
        for text in [
            "",
            "d32",
            "d32-l4-p4-rows",
            "d32-l4-p4-rows1-x",
            "d-l4-p4-rows1",
            "d1-v1-rows1-keys1-x",
        ] {
            assert!(text.parse::<Class>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_beyond_counting_have_a_class() {
        let sizes = msda::Sizes {
            images: usize::MAX,
            pixels: 0,
            heads: usize::MAX,
            channels: 1,
            queries: 0,
            levels: usize::MAX,
            points: 1,
        };
        assert_eq!(
            Class::of_msda(&sizes).to_string(),
            format!("d1-l{}-p1-rows0", u32::MAX)
        );
    }
}
