//! A command that is part of a chore.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A command run at the root of the repository, whose failure fails the chore.
pub struct Chore(Command);

/// Cargo, the one that runs this program.
pub fn cargo<const N: usize>(arguments: [&str; N]) -> Chore {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    chore(cargo, &arguments)
}

/// Any program.
pub fn chore(program: impl AsRef<OsStr>, arguments: &[&str]) -> Chore {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    Chore(command)
}

/// The repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Runs a step of a longer chore, and says how long it took.
pub fn step(name: &str, command: &mut Chore) -> Result<(), String> {
    eprintln!("\n== {name}");
    let begin = Instant::now();
    command.run()?;
    eprintln!("== {name}: {} s", begin.elapsed().as_secs());
    Ok(())
}

impl Chore {
    /// With more arguments.
    pub fn arguments(&mut self, more: &[impl AsRef<OsStr>]) -> &mut Self {
        self.0.args(more);
        self
    }

    /// With an environment variable.
    pub fn variable(&mut self, name: &str, value: impl AsRef<OsStr>) -> &mut Self {
        self.0.env(name, value);
        self
    }

    /// Runs it, showing what it prints.
    pub fn run(&mut self) -> Result<(), String> {
        let words: Vec<_> = std::iter::once(self.0.get_program())
            .chain(self.0.get_args())
            .collect();
        let line = words.join(OsStr::new(" ")).to_string_lossy().into_owned();
        match self.0.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("`{line}` ended with {status}")),
            Err(error) => Err(format!("`{line}` could not be started: {error}")),
        }
    }
}
