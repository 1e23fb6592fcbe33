//! Where the records of `fourtap bench` go.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::super::{json_line, print};
use crate::error::{Error, Result};

/// Where records go.
#[derive(Debug)]
pub enum Sink {
    /// There is none.
    Nowhere,
    /// Standard output.
    Stdout,
    /// The end of this file.
    File { path: PathBuf, file: File },
}

impl Sink {
    /// To FILE, or to standard output for `-`.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        match path {
            None => Ok(Sink::Nowhere),
            Some(path) if path == Path::new("-") => Ok(Sink::Stdout),
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                let file = file.map_err(|source| Error::Write {
                    file: path.to_path_buf(),
                    source,
                })?;
                Ok(Sink::File {
                    path: path.to_path_buf(),
                    file,
                })
            }
        }
    }

    /// As soon as it is known, so that an interrupted run keeps what it has.
    pub fn put(&mut self, record: &impl Serialize) -> Result<()> {
        let line = json_line(record)?;
        match self {
            Sink::Nowhere => Ok(()),
            Sink::Stdout => print(line),
            Sink::File { path, file } => {
                file.write_all(line.as_bytes())
                    .map_err(|source| Error::Write {
                        file: path.clone(),
                        source,
                    })
            }
        }
    }
}
