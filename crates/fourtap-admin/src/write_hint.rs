//! What to do about a file that cannot be written, by what is there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What the user may try after `error`; none if nothing better is known than what that says.
pub fn write_hint(file: &Path, error: &io::Error) -> Option<String> {
    let folder = folder_of(file);
    let hint = match error.kind() {
        io::ErrorKind::NotFound if !folder.exists() => {
            format!("make the folder first: {} is not there", folder.display())
        }
        io::ErrorKind::NotFound => {
            let target = fs::read_link(file).ok()?;
            format!(
                "it is a link to {}, which is not there; remove the link",
                target.display()
            )
        }
        io::ErrorKind::PermissionDenied if file.exists() => {
            "you may not write to this file or its folder; choose another name".to_string()
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "you may not write to {}; choose another folder",
                folder.display()
            )
        }
        io::ErrorKind::IsADirectory => "it is a folder; name a file in it".to_string(),
        io::ErrorKind::NotADirectory => {
            let found = file
                .ancestors()
                .skip(1)
                .find(|it| it.exists() && !it.is_dir())?;
            format!("{} is no folder; choose another", found.display())
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, or choose another disk".to_string()
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "nothing can be written on this file system; choose another folder".to_string()
        }
        _ => return None,
    };
    Some(hint)
}

/// The folder that the file is, or would be, in.
fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_folder_is_to_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let hint = |name: &str, kind: io::ErrorKind| {
            write_hint(&folder.path().join(name), &kind.into()).unwrap_or_default()
        };
        let missing = hint("no/file", io::ErrorKind::NotFound);
        assert!(missing.starts_with("make the folder first"), "{missing}");
        assert_eq!(hint("file", io::ErrorKind::NotFound), "");
        fs::write(folder.path().join("a"), "").unwrap();
        let below = hint("a/file", io::ErrorKind::NotADirectory);
        assert!(below.ends_with("a is no folder; choose another"), "{below}");
        let denied = hint("file", io::ErrorKind::PermissionDenied);
        assert!(denied.starts_with("you may not write to"), "{denied}");
        assert_eq!(
            hint("", io::ErrorKind::IsADirectory),
            "it is a folder; name a file in it"
        );
    }

    #[test]
    #[cfg(unix)]
    fn a_link_to_nothing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let hint = write_hint(&link, &io::ErrorKind::NotFound.into()).unwrap();
        assert!(hint.starts_with("it is a link to nowhere"), "{hint}");
    }
}
