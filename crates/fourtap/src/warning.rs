//! What a user should know and no call need fail for.

use std::io::{self, Write};

/// Prints a warning as one line on standard error. That being closed is no reason to fail.
pub(crate) fn print_warning(text: &str) {
    let line = text.replace('\n', " ");
    let _ = writeln!(io::stderr(), "fourtap: warning: {line}");
}
