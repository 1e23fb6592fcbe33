//! Atomically written output files.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use fourtap::DType;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use tempfile::NamedTempFile;

use crate::array::Array;
use crate::error::{Error, Result};

/// A place to write to that was free, or may be replaced, when it was looked at.
#[derive(Debug)]
pub struct Destination {
    path: PathBuf,
    replace: bool,
}

impl Destination {
    /// Refuses what must not be replaced, before any work is done for it.
    pub fn new(path: &Path, input: &Path, replace: bool) -> Result<Self> {
        let failed = |source| Error::Write {
            file: path.to_path_buf(),
            source,
        };
        if path.file_name().is_none() {
            return Err(Error::NotAFile {
                file: path.to_path_buf(),
                found: "a folder",
            });
        }
        let folder = folder(path);
        if !fs::metadata(folder).map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        let mut destination = Destination {
            path: path.to_path_buf(),
            replace,
        };
        if fs::symlink_metadata(path).is_ok() {
            if let Ok(found) = fs::metadata(path) {
                if is_same_file(path, input) {
                    return Err(Error::OutputIsInput {
                        file: path.to_path_buf(),
                    });
                }
                if !found.is_file() {
                    let found = if found.is_dir() {
                        "a folder"
                    } else {
                        "something else"
                    };
                    return Err(Error::NotAFile {
                        file: path.to_path_buf(),
                        found,
                    });
                }
            }
            if !replace {
                return Err(Error::OutputExists {
                    file: path.to_path_buf(),
                });
            }
            // A link stays, what it leads to is replaced.
            destination.path = fs::canonicalize(path).map_err(failed)?;
        }
        Ok(destination)
    }

    /// Writes the tensors. Readers meet the old file or the new one, never a part: it is written under another name
    /// in the same folder, brought to the disk, and renamed, which is atomic.
    pub fn write(self, tensors: &[(&str, &Array)]) -> Result<()> {
        self.persist(|writer| {
            writer.write_all(&header(tensors)?)?;
            for (_, array) in tensors {
                writer.write_all(array.bytes())?;
            }
            Ok(())
        })
    }

    /// Writes `bytes` and nothing else, in the same way.
    pub fn write_bytes(self, bytes: &[u8]) -> Result<()> {
        self.persist(|writer| writer.write_all(bytes))
    }

    fn persist(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let file = self.path.clone();
        self.replace_with(write)
            .map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => Error::OutputExists { file },
                _ => Error::Write { file, source },
            })
    }

    fn replace_with(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let folder = folder(&self.path);
        let mut temporary = temporary_file(folder)?;
        let mut writer = BufWriter::new(&mut temporary);
        write(&mut writer)?;
        writer.flush()?;
        drop(writer);
        temporary.as_file().sync_all()?;
        let persisted = if self.replace {
            temporary.persist(&self.path)
        } else {
            temporary.persist_noclobber(&self.path)
        };
        persisted.map_err(|failure| failure.error)?;
        // So that the new name outlives a power cut too; where folders cannot be synchronised, it need not.
        if let Ok(folder) = File::open(folder) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

/// The length, then the header itself, padded so that the data is aligned.
fn header(tensors: &[(&str, &Array)]) -> io::Result<Vec<u8>> {
    let mut offset = 0;
    let infos = tensors.iter().map(|(name, array)| {
        let begin = offset;
        offset += array.bytes().len();
        let shape = array.shape().sizes().to_vec();
        (
            name.to_string(),
            TensorInfo {
                dtype: stored(array.dtype()),
                shape,
                data_offsets: (begin, offset),
            },
        )
    });
    let metadata = Metadata::new(None, infos.collect()).map_err(io::Error::other)?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

fn stored(dtype: DType) -> Dtype {
    match dtype {
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn temporary_file(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".fourtap-").suffix(".tmp");
    // Private by default; the result is as readable as the user's other new files.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

/// By any name: links count too.
fn is_same_file(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let identity = |path: &Path| {
            fs::metadata(path)
                .ok()
                .map(|found| (found.dev(), found.ino()))
        };
        identity(a).is_some() && identity(a) == identity(b)
    }
    #[cfg(not(unix))]
    {
        matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
    }
}
