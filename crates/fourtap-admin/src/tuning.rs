//! The tuning table that the user has named.

use std::path::PathBuf;

use fourtap::tuning::user_file;

/// The environment variable that names it.
const VARIABLE: &str = "FOURTAP_TUNE";

/// The table that `FOURTAP_TUNE` names, if there is no such file. The library goes on without: `fourtap tune` may be
/// about to make it. But it may also be a name that was mistyped, and calls are slower then than the user thinks.
pub fn missing() -> Option<PathBuf> {
    std::env::var_os(VARIABLE)?;
    let file = user_file()?;
    let is_there = std::fs::symlink_metadata(&file).is_ok();
    (!is_there).then_some(file)
}

/// That it is missing, in words.
pub fn missing_in_words() -> Option<String> {
    let file = missing()?;
    Some(format!(
        "{VARIABLE} names {}, which is not there; `fourtap tune` would make it",
        file.display()
    ))
}
