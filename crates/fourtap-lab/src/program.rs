//! How to start this program again: what may hang or crash runs in a process of its own.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::sync::OnceLock;

/// The words that start this program where it is not a file of its own.
static STARTED_BY: OnceLock<Vec<OsString>> = OnceLock::new();

/// Says how this program is started, as in `python -m fourtap`, where it is part of another.
pub fn run_by(words: Vec<OsString>) {
    // Said once: the same process is not started in two ways.
    let _ = STARTED_BY.set(words);
}

/// This program, to be given arguments.
pub fn again() -> io::Result<Command> {
    match STARTED_BY.get().map(Vec::as_slice) {
        Some([program, words @ ..]) => {
            let mut command = Command::new(program);
            command.args(words);
            Ok(command)
        }
        _ => Ok(Command::new(std::env::current_exe()?)),
    }
}
