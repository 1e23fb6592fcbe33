//! How to start this program again: what may hang or crash runs in a subprocess.

use std::io;
use std::process::Command;

/// This program, to be given arguments.
pub fn again() -> io::Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}
