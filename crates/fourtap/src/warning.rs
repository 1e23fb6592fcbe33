//! Warnings: what a user should know, but no call should fail for.

use std::io::{self, Write};

/// Prints a warning as one line on standard error, and ignores a closed standard error.
pub(crate) fn print_warning(text: &str) {
    let line = text.replace('\n', " ");
    let _ = writeln!(io::stderr(), "fourtap: warning: {line}");
}
