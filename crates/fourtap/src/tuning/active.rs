//! Which tables calls go by.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{Class, Entry, Table};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The environment variable that names the user's own table; "off" leaves both tables out.
pub const FILE_VARIABLE: &str = "FOURTAP_TUNE";

/// What this library comes with, found by runs that are kept beside it.
const BUILT_IN: &str = include_str!("../../tuning.tsv");

/// The tables calls go by, the first that knows the problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Active {
    tables: Vec<(Option<PathBuf>, Table)>,
}

impl Active {
    /// By the environment.
    fn new(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        if is_off(&variable) {
            return Ok(Active::default());
        }
        let mut tables = Vec::new();
        if let Some(file) = file_by(&variable)
            && let Some(text) = read(&file, variable(FILE_VARIABLE).is_some())?
        {
            let table = Table::parse(&file, &text)?;
            tables.push((Some(file), table));
        }
        let built_in = Table::parse(Path::new("built-in tuning"), BUILT_IN)?;
        tables.push((None, built_in));
        Ok(Active { tables })
    }

    /// The tables, with the file each is from; none for what the library comes with.
    pub fn tables(&self) -> impl Iterator<Item = (Option<&Path>, &Table)> {
        self.tables
            .iter()
            .map(|(file, table)| (file.as_deref(), table))
    }

    /// The entry a call goes by; see [`Table::find`].
    pub fn find(
        &self,
        kernel: &str,
        of: (Class, DType),
        is_here: impl Fn(&str) -> bool,
        other_bits: bool,
    ) -> Option<&Entry> {
        self.tables
            .iter()
            .find_map(|(_, table)| table.find(kernel, of, &is_here, other_bits))
    }
}

/// The tables calls of this process go by: the user's own, `FOURTAP_TUNE` or where [`user_file`] says, before the one this
/// library comes with; none with `FOURTAP_TUNE=off`. They are read once. An own table that cannot be read is an error
/// of every call: to go on as if there were none could pass for what was tuned.
pub fn active() -> Result<&'static Active> {
    static ACTIVE: OnceLock<Result<Active>> = OnceLock::new();
    let found = ACTIVE.get_or_init(|| Active::new(|name| std::env::var_os(name)));
    found.as_ref().map_err(Clone::clone)
}

/// Where the user's own table is, or would be; none where there is to be none, or nowhere to put it.
pub fn user_file() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name);
    if is_off(&variable) {
        return None;
    }
    file_by(&variable)
}

fn is_off(variable: &impl Fn(&str) -> Option<OsString>) -> bool {
    variable(FILE_VARIABLE).is_some_and(|value| value.is_empty() || value == "off")
}

fn file_by(variable: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(chosen) = variable(FILE_VARIABLE) {
        return Some(chosen.into());
    }
    // A relative path is to be ignored, says the XDG specification: it would mean another place in each directory.
    let absolute = |name| {
        let path = variable(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let settings = if cfg!(windows) {
        absolute("APPDATA")
    } else {
        absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))
    };
    Some(settings?.join("fourtap").join("tuning.tsv"))
}

/// The text of the user's table; none if there is no such file. One that was named may not be there yet either: tuning
/// makes it.
fn read(file: &Path, named: bool) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // Somebody else's home, in a container say: nobody asked for it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !named => Ok(None),
        Err(error) => Err(Error::Tuning {
            file: file.to_path_buf(),
            line: 1,
            expected: "a table that can be read".to_string(),
            found: error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "# fourtap tuning, form 1\n";

    fn active(variables: &[(&str, &Path)]) -> Result<Active> {
        Active::new(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| value.into())
        })
    }

    fn files(active: &Active) -> Vec<Option<&Path>> {
        active.tables().map(|(file, _)| file).collect()
    }

    #[test]
    fn what_the_library_comes_with_can_be_read() {
        let active = active(&[]).unwrap();
        assert_eq!(files(&active), [None]);
        assert!(
            active
                .tables()
                .all(|(_, table)| table.set_aside().is_empty())
        );
    }

    #[test]
    #[cfg(unix)]
    fn the_users_own_table_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join(".config/fourtap/tuning.tsv");
        fs::create_dir_all(own.parent().unwrap()).unwrap();
        assert_eq!(files(&active(&[("HOME", folder.path())]).unwrap()), [None]);
        fs::write(&own, EMPTY).unwrap();
        let home = ("HOME", folder.path());
        assert_eq!(files(&active(&[home]).unwrap()), [Some(&*own), None]);
        let other = folder.path().join("other.tsv");
        fs::write(&other, EMPTY).unwrap();
        let named = ("FOURTAP_TUNE", &*other);
        assert_eq!(
            files(&active(&[named, home]).unwrap()),
            [Some(&*other), None]
        );
        let missing = folder.path().join("missing.tsv");
        let named = ("FOURTAP_TUNE", &*missing);
        assert_eq!(files(&active(&[named, home]).unwrap()), [None]);
    }

    #[test]
    fn off_leaves_everything_out() {
        for off in ["off", ""] {
            let active = active(&[("FOURTAP_TUNE", Path::new(off))]).unwrap();
            assert_eq!(active, Active::default());
        }
    }

    #[test]
    fn a_table_that_is_none_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuning.tsv");
        fs::write(&file, "poem\n").unwrap();
        let error = active(&[("FOURTAP_TUNE", &file)]).unwrap_err().to_string();
        assert!(error.contains("tuning.tsv, line 1: expected"), "{error}");
        let error = active(&[("FOURTAP_TUNE", folder.path())]).unwrap_err();
        assert!(
            error.to_string().contains("a table that can be read"),
            "{error}"
        );
    }
}
