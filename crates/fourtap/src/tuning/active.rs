//! Which tables calls go by.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{Class, Entry, Table};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::warning::print_warning;

/// The environment variable that names the user's own table; "off" leaves both tables out.
pub const FILE_VARIABLE: &str = "FOURTAP_TUNE";

/// What this library comes with, found by runs that are kept beside it.
const BUILT_IN: &str = include_str!("../../tuning.tsv");

/// The tables calls go by, the first that knows the problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Active {
    tables: Vec<(Option<PathBuf>, Table)>,
    unreadable: Option<Error>,
}

impl Active {
    /// By the environment.
    fn new(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut active = Active::default();
        if is_off(&variable) {
            return active;
        }
        if let Some(file) = file_by(&variable) {
            match own_table(&file, variable(FILE_VARIABLE).is_some()) {
                Ok(Some(table)) => active.tables.push((Some(file), table)),
                Ok(None) => {}
                Err(error) => active.unreadable = Some(error),
            }
        }
        match Table::parse(Path::new("built-in tuning"), BUILT_IN) {
            Ok(built_in) => active.tables.push((None, built_in)),
            Err(error) => active.unreadable = Some(error),
        }
        active
    }

    /// What is wrong with the user's own table, if there is one and it cannot be read: calls then go by the others.
    pub fn unreadable(&self) -> Option<&Error> {
        self.unreadable.as_ref()
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
/// library comes with; none with `FOURTAP_TUNE=off`. They are read once. An own table that cannot be read is
/// left out with a warning: results are the same without, only slower perhaps.
pub fn active() -> &'static Active {
    static ACTIVE: OnceLock<Active> = OnceLock::new();
    ACTIVE.get_or_init(|| {
        let active = Active::new(|name| std::env::var_os(name));
        if let Some(error) = active.unreadable() {
            print_warning(&format!("left out a tuning table: {error}"));
        }
        active
    })
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

/// The user's table; none if there is no such file. One that was named may not be there yet either: tuning makes it.
fn own_table(file: &Path, named: bool) -> Result<Option<Table>> {
    match fs::read_to_string(file) {
        Ok(text) => Table::parse(file, &text).map(Some),
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

    #[cfg(unix)]
    const EMPTY: &str = "# fourtap tuning, form 1\n";

    fn active(variables: &[(&str, &Path)]) -> Active {
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
        let active = active(&[]);
        assert_eq!(files(&active), [None]);
        assert_eq!(active.unreadable(), None);
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
        assert_eq!(files(&active(&[("HOME", folder.path())])), [None]);
        fs::write(&own, EMPTY).unwrap();
        let home = ("HOME", folder.path());
        assert_eq!(files(&active(&[home])), [Some(&*own), None]);
        let other = folder.path().join("other.tsv");
        fs::write(&other, EMPTY).unwrap();
        let named = ("FOURTAP_TUNE", &*other);
        assert_eq!(files(&active(&[named, home])), [Some(&*other), None]);
        let missing = folder.path().join("missing.tsv");
        let named = ("FOURTAP_TUNE", &*missing);
        assert_eq!(files(&active(&[named, home])), [None]);
    }

    #[test]
    fn off_leaves_everything_out() {
        for off in ["off", ""] {
            let active = active(&[("FOURTAP_TUNE", Path::new(off))]);
            assert_eq!(active, Active::default());
        }
    }

    #[test]
    fn a_table_that_cannot_be_read_is_named_and_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuning.tsv");
        fs::write(&file, "poem\n").unwrap();
        for (named, words) in [
            (&*file, "tuning.tsv, line 1: expected"),
            (folder.path(), "a table that can be read"),
        ] {
            let active = active(&[("FOURTAP_TUNE", named)]);
            let error = active.unreadable().unwrap().to_string();
            assert!(error.contains(words), "{error}");
            assert_eq!(files(&active), [None], "the built-in table stays");
        }
    }

    #[test]
    fn what_the_library_comes_with_is_worth_having() {
        for entry in active(&[]).tables[0].1.entries() {
            let words = entry.provenance.split(" times as fast").next().unwrap();
            let gain: f64 = words.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(gain >= 1.03, "{}", entry.provenance);
        }
    }
}
