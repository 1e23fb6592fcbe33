//! Data on standard output, everything else on standard error.

use std::fmt::Display;
use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::exit::ExitCode;

/// Writes data to standard output; `print!` would panic where that is closed.
pub fn print(data: impl AsRef<[u8]>) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(data.as_ref())?;
    stdout.flush()
}

/// Writes one JSON record to standard output, on one line.
pub fn print_json(record: &impl Serialize) -> io::Result<()> {
    print(json_line(record)?)
}

/// One JSON record, on one line.
pub fn json_line(record: &impl Serialize) -> io::Result<String> {
    Ok(serde_json::to_string(record)? + "\n")
}

/// Tells the user something that is not data.
pub fn note(text: &str) {
    // A closed standard error is no reason to stop.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Says what went wrong, and what the user may try.
pub fn report(error: &impl Display, hint: Option<String>) {
    let mut text = format!("error: {error}\n");
    if let Some(hint) = hint {
        text += &format!("hint: {hint}\n");
    }
    // There is nowhere left to report a failure.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Prints the help that was asked for, or what is wrong with the arguments.
pub fn report_usage(usage: &clap::Error) -> ExitCode {
    let printed = usage.print().and_then(|()| io::stdout().flush());
    match printed {
        // Help that was asked for and cannot be printed is a failure, unless its reader has seen enough. Of what is
        // wrong with the arguments the exit code still tells.
        Err(error) if usage.exit_code() == 0 && error.kind() != io::ErrorKind::BrokenPipe => {
            report(
                &format!("standard output: cannot be written: {error}"),
                None,
            );
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2)),
    }
}

/// A progress bar on standard error; nothing is drawn unless that is a terminal.
pub fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar
}
