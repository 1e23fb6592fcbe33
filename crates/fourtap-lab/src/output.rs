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
        // What ends in a separator names a folder, whether it is there or not.
        let text = path.as_os_str().as_encoded_bytes();
        let names_folder = text
            .last()
            .is_some_and(|&byte| std::path::is_separator(byte.into()));
        if path.file_name().is_none() || names_folder {
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

    /// Writes the tensors. Readers meet the old file or the new one, never a part: it is written without a name, or
    /// under another in the same folder where files must have one, brought to the disk, and then named, which is atomic.
    pub fn write(self, tensors: &[(&str, &Array)]) -> Result<()> {
        self.persist(|writer| write_safetensors(writer, tensors))
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
        match unnamed::file(folder)? {
            Some(mut file) => {
                written(&mut file, write)?;
                unnamed::name(&file, folder, &self.path, self.replace)?;
            }
            None => {
                let mut temporary = temporary_file(folder)?;
                written(temporary.as_file_mut(), write)?;
                let persisted = match self.replace {
                    true => temporary.persist(&self.path),
                    false => temporary.persist_noclobber(&self.path),
                };
                persisted.map_err(|failure| failure.error)?;
            }
        }
        // So that the new name outlives a power cut too; where folders cannot be synchronised, it need not.
        if let Ok(folder) = File::open(folder) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

/// Writes to a file and brings that to the disk.
fn written(
    file: &mut File,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut writer = BufWriter::new(&mut *file);
    write(&mut writer)?;
    writer.flush()?;
    drop(writer);
    file.sync_all()
}

/// Tensors as a safetensors file.
pub fn write_safetensors(writer: &mut dyn Write, tensors: &[(&str, &Array)]) -> io::Result<()> {
    writer.write_all(&header(tensors)?)?;
    for (_, array) in tensors {
        writer.write_all(array.bytes())?;
    }
    Ok(())
}

/// Files that have no name until they are whole: whatever ends the process before, nothing is left of them.
#[cfg(target_os = "linux")]
mod unnamed {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::path::Path;

    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
    use rustix::io::Errno;

    /// The open files of this process, by which one without a name can be named.
    const OPEN: &str = "/proc/self/fd";

    /// None where the file system, or the system, has no such files.
    pub fn file(folder: &Path) -> io::Result<Option<File>> {
        if !Path::new(OPEN).is_dir() {
            return Ok(None);
        }
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match open(folder, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives a whole file its name. A name that is taken cannot be given at once: there the file gets another for an
    /// instant, and is renamed.
    pub fn name(file: &File, folder: &Path, path: &Path, replace: bool) -> io::Result<()> {
        let open = format!("{OPEN}/{}", file.as_raw_fd());
        let link = |path: &Path| -> io::Result<()> {
            Ok(linkat(CWD, &open, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
        };
        match link(path) {
            Err(error) if replace && error.kind() == io::ErrorKind::AlreadyExists => {
                let mut builder = tempfile::Builder::new();
                let named = builder
                    .prefix(".fourtap-")
                    .suffix(".tmp")
                    .make_in(folder, link)?;
                named.persist(path).map_err(|failure| failure.error)?;
                Ok(())
            }
            linked => linked,
        }
    }
}

/// Elsewhere all files have names.
#[cfg(not(target_os = "linux"))]
mod unnamed {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    pub fn file(_: &Path) -> io::Result<Option<File>> {
        Ok(None)
    }

    pub fn name(_: &File, _: &Path, _: &Path, _: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
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
