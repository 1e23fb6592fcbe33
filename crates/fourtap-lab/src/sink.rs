//! Where records are written as results come.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::record::Line;

/// Where records go.
#[derive(Debug)]
pub enum Sink {
    /// There is none.
    Nowhere,
    /// Standard output.
    Stdout,
    /// The end of this file.
    File {
        /// As named.
        path: PathBuf,
        /// To append to.
        file: File,
    },
}

/// What to do with an incomplete record that an interruption left at the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialRecord {
    /// Leave the file alone and say so.
    Refuse,
    /// Cut it off.
    Remove,
}

impl Sink {
    /// To FILE, or to standard output for `-`.
    pub fn open(path: Option<&Path>, torn: PartialRecord) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Sink::Nowhere);
        };
        if path == Path::new("-") {
            return Ok(Sink::Stdout);
        }
        let failed = |source| Error::Write {
            file: path.to_path_buf(),
            source,
        };
        let mut options = OpenOptions::new();
        let options = options.create(true).read(true).append(true);
        let mut file = options.open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.is_file() {
            let whole = end_of_last_line(&mut file).map_err(failed)?;
            let length = file.metadata().map_err(failed)?.len();
            match torn {
                _ if whole == length => {}
                PartialRecord::Remove => file.set_len(whole).map_err(failed)?,
                PartialRecord::Refuse => {
                    return Err(Error::TornRecords {
                        file: path.to_path_buf(),
                        bytes: length - whole,
                    });
                }
            }
        }
        Ok(Sink::File {
            path: path.to_path_buf(),
            file,
        })
    }

    /// As soon as it is known, so that an interrupted run keeps what it has.
    pub fn put(&mut self, record: &Line) -> Result<()> {
        let json = serde_json::to_string(record).map_err(|error| Error::Stdout(error.into()))?;
        let line = json + "\n";
        match self {
            Sink::Nowhere => Ok(()),
            Sink::Stdout => {
                let mut stdout = io::stdout().lock();
                let written = stdout.write_all(line.as_bytes());
                written.and_then(|()| stdout.flush()).map_err(Error::Stdout)
            }
            // One write, so that what another process appends does not end up in the middle.
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

/// Bytes up to and including the last line break.
fn end_of_last_line(file: &mut File) -> io::Result<u64> {
    const STEP: u64 = 1 << 16;
    let mut end = file.seek(SeekFrom::End(0))?;
    while end > 0 {
        let begin = end.saturating_sub(STEP);
        let mut part = vec![0; (end - begin) as usize];
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(&mut part)?;
        if let Some(last) = part.iter().rposition(|&byte| byte == b'\n') {
            return Ok(begin + last as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn torn_file(content: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        fs::write(&path, content).unwrap();
        (folder, path)
    }

    #[test]
    fn half_a_record_is_cut_off_when_asked() {
        for (content, kept) in [
            ("{}\n{\"half", "{}\n"),
            ("{\"half", ""),
            ("{}\n", "{}\n"),
            ("", ""),
        ] {
            let (_folder, path) = torn_file(content);
            Sink::open(Some(&path), PartialRecord::Remove).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), kept);
        }
        let long = "x".repeat(200_000);
        let (_folder, path) = torn_file(&format!("{{}}\n{long}"));
        Sink::open(Some(&path), PartialRecord::Remove).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}\n");
    }

    #[test]
    fn half_a_record_is_otherwise_refused_and_kept() {
        let (_folder, path) = torn_file("{}\n{\"half");
        let refused = Sink::open(Some(&path), PartialRecord::Refuse).unwrap_err();
        assert!(
            matches!(refused, Error::TornRecords { bytes: 6, .. }),
            "{refused}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}\n{\"half");
    }
}
