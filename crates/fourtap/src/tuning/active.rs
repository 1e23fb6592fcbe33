//! The tuning tables in use.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Class, Entry, Table};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::lock_free::List;
use crate::warning::print_warning;

/// The environment variable that names the user's own table; "off" disables both tables.
pub const FILE_VARIABLE: &str = "FOURTAP_TUNE";

/// The built-in table, measured by committed runs.
const BUILT_IN: &str = include_str!("../../tuning.tsv");

/// The tuning tables in use; the first with a matching entry decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActiveTables {
    tables: Vec<(Option<PathBuf>, Table)>,
    unreadable: Option<Error>,
}

impl ActiveTables {
    /// According to the environment.
    fn new(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut active = ActiveTables::default();
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

    /// Why the user's own table cannot be read, if it cannot: it is then left out.
    pub fn unreadable(&self) -> Option<&Error> {
        self.unreadable.as_ref()
    }

    /// The tables, each with its file; `None` for the built-in one.
    pub fn tables(&self) -> impl Iterator<Item = (Option<&Path>, &Table)> {
        self.tables
            .iter()
            .map(|(file, table)| (file.as_deref(), table))
    }

    /// The entry for a call; see [`Table::find`].
    pub fn find(
        &self,
        kernel: &str,
        of: (Class, DType),
        is_here: impl Fn(&str) -> bool,
        allow_rounding_changes: bool,
    ) -> Option<&Entry> {
        self.tables
            .iter()
            .find_map(|(_, table)| table.find(kernel, of, &is_here, allow_rounding_changes))
    }
}

/// The tuning tables of this process: the user's own, `FOURTAP_TUNE` or where [`user_file`] says, before the built-in
/// one; none with `FOURTAP_TUNE=off`. They are read once. A user table that cannot be read is left out with a
/// warning: results are correct without it, perhaps slower.
pub fn active() -> &'static ActiveTables {
    static ACTIVE: List<ActiveTables> = List::new();
    ACTIVE.get_or_init(|| {
        let active = ActiveTables::new(|name| std::env::var_os(name));
        if let Some(error) = active.unreadable() {
            print_warning(&format!("left out a tuning table: {error}"));
        }
        active
    })
}

/// The path of the user's own table, whether it exists or not; `None` if tables are disabled or there is no home.
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
    // The XDG specification says to ignore relative paths: they would depend on the current directory.
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

/// The user's table; `None` if there is no such file. Even an explicitly named one may not exist yet: tuning makes it.
fn own_table(file: &Path, named: bool) -> Result<Option<Table>> {
    match fs::read_to_string(file) {
        Ok(text) => Table::parse(file, &text).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // For example another user's home in a container: this file was not asked for.
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

    fn active(variables: &[(&str, &Path)]) -> ActiveTables {
        ActiveTables::new(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| value.into())
        })
    }

    fn files(active: &ActiveTables) -> Vec<Option<&Path>> {
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
                .all(|(_, table)| table.skipped_lines().is_empty())
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
            assert_eq!(active, ActiveTables::default());
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
