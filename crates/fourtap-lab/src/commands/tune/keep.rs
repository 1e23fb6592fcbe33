//! The user's own table of choices.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use fourtap::tuning::{Entry, Table, user_file};

use crate::error::{Error, Result};
use crate::output::Destination;

/// Where choices are kept; refused where there is to be no such file, something else lies, or nothing can be written:
/// that must be known before a long search, not after.
pub fn file() -> Result<PathBuf> {
    let file = user_file().ok_or(Error::NoTuningFile)?;
    read(&file)?;
    locked(&file)?;
    Ok(file)
}

/// Makes the table's folder and waits until no other search writes the table: two that end at once must not undo each
/// other's work. The lock goes with what is returned, or with the process.
fn locked(file: &Path) -> Result<File> {
    let failed = |source| Error::Write {
        file: file.to_path_buf(),
        source,
    };
    fs::create_dir_all(folder(file)).map_err(failed)?;
    let lock = File::create(file.with_extension("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    Ok(lock)
}

fn folder(file: &Path) -> &Path {
    let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Puts an entry into the table; or takes out what there is for the same, where the defaults are as good. Whether the
/// table changed.
pub fn keep(file: &Path, entry: Entry, is_better: bool) -> Result<bool> {
    let _lock = locked(file)?;
    let mut table = read(file)?;
    let changed = match is_better {
        true => {
            table.put(entry);
            true
        }
        false => table.remove(&entry),
    };
    if changed {
        let destination = Destination::new(file, folder(file), true)?;
        destination.write_bytes(table.to_text().as_bytes())?;
    }
    Ok(changed)
}

fn read(file: &Path) -> Result<Table> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Table::parse(file, &text)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Table::default()),
        Err(source) => Err(Error::Read {
            file: file.to_path_buf(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourtap::DType;
    use fourtap::tuning::Space;

    fn entry(dtype: DType) -> Entry {
        let space = Space::named("cpu-dense-forward").unwrap();
        Entry {
            device: "here".to_string(),
            space,
            class: "d64-v64-rows14-keys11".parse().unwrap(),
            dtype,
            choice: space.choice(&[("task_blocks", 8)]).unwrap(),
            provenance: "a test".to_string(),
        }
    }

    #[test]
    fn entries_come_and_go_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/tuning.tsv");
        let entries = || read(&file).unwrap().entries().len();
        assert!(!keep(&file, entry(DType::F32), false).unwrap());
        assert!(!file.exists());
        assert!(keep(&file, entry(DType::F32), true).unwrap());
        assert!(keep(&file, entry(DType::F16), true).unwrap());
        assert_eq!(entries(), 2);
        assert!(keep(&file, entry(DType::F32), false).unwrap());
        assert_eq!(read(&file).unwrap().entries(), [entry(DType::F16)]);
    }

    #[test]
    fn a_file_that_is_no_table_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuning.tsv");
        fs::write(&file, "poem\n").unwrap();
        let refused = keep(&file, entry(DType::F32), true)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("line 1"), "{refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "poem\n");
    }

    #[test]
    fn searches_that_end_at_once_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuning.tsv");
        std::thread::scope(|scope| {
            for dtype in DType::ALL {
                let file = &file;
                scope.spawn(move || keep(file, entry(dtype), true).unwrap());
            }
        });
        assert_eq!(read(&file).unwrap().entries().len(), DType::ALL.len());
    }
}
