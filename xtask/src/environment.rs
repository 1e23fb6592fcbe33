//! Python environments with what the tests need, one per machine: they take gigabytes, so every clone uses the same.

use std::fs::{self, File};
use std::path::PathBuf;

use crate::chore::{Chore, chore};

/// Names another folder for the environments.
const FOLDER: &str = "FOURTAP_ENVIRONMENTS";

/// A virtual environment. What is under test is never installed into it.
pub struct Environment(PathBuf);

/// The environment of these packages, made if it is not there. Its folder is named by what is in it, so that clones which
/// need other packages have another one.
pub fn of_packages(name: &str, packages: &[&str]) -> Result<Environment, String> {
    let system = if cfg!(windows) { "python" } else { "python3" };
    // An environment belongs to one interpreter, at one place.
    let interpreter = chore(
        system,
        &["-c", "import sys; print(sys.version, sys.executable)"],
    );
    let content = format!("{}\n{}", interpreter.output()?.trim(), packages.join("\n"));
    let hash = blake3::hash(content.as_bytes()).to_hex();
    let environments = folder()?;
    let environment = Environment(environments.join(format!("{name}-{}", &hash[..12])));
    // Written last: an installation that was interrupted is taken up again.
    let installed = environment.0.join("installed.txt");
    let is_made = || fs::read_to_string(&installed).is_ok_and(|found| found == content);
    if is_made() {
        return Ok(environment);
    }
    let failed = |error: std::io::Error| format!("{}: {error}", environment.0.display());
    fs::create_dir_all(&environments).map_err(failed)?;
    // Two clones do not install into one folder at the same time. The lock ends with the process that holds it.
    let lock = File::create(environment.0.with_extension("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    if is_made() {
        return Ok(environment);
    }
    eprintln!(
        "installing {} into {}",
        packages.join(" "),
        environment.0.display()
    );
    chore(system, &["-m", "venv"])
        .arguments(&[&environment.0])
        .run()?;
    environment
        .python(&["-m", "pip", "install", "--quiet"])
        .arguments(packages)
        .run()?;
    fs::write(&installed, content).map_err(failed)?;
    Ok(environment)
}

/// Where caches of this user are.
fn folder() -> Result<PathBuf, String> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = variable(FOLDER) {
        return Ok(folder.into());
    }
    let caches = variable("XDG_CACHE_HOME")
        .or_else(|| variable("LOCALAPPDATA"))
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
    let caches = caches.ok_or_else(|| format!("no home folder: set {FOLDER}"))?;
    Ok(caches.join("fourtap/environments"))
}

impl Environment {
    /// Its Python with these arguments.
    pub fn python(&self, arguments: &[&str]) -> Chore {
        self.python_with(&[], arguments)
    }

    /// The same, with programs in these folders found first.
    pub fn python_with(&self, folders: &[PathBuf], arguments: &[&str]) -> Chore {
        let python = chore(self.program("python"), arguments);
        // Where programs look for its other programs: maturin for Zig.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = folders
            .iter()
            .cloned()
            .chain([self.programs()])
            .chain(std::env::split_paths(&path));
        match std::env::join_paths(path) {
            Ok(path) => python.variable("PATH", path),
            Err(_) => python,
        }
    }

    /// One of its programs.
    pub fn program(&self, name: &str) -> PathBuf {
        match cfg!(windows) {
            true => self.programs().join(format!("{name}.exe")),
            false => self.programs().join(name),
        }
    }

    /// Where its packages are.
    pub fn packages(&self) -> Option<PathBuf> {
        if cfg!(windows) {
            return Some(self.0.join("Lib/site-packages"));
        }
        let mut versions = fs::read_dir(self.0.join("lib")).ok()?;
        Some(versions.next()?.ok()?.path().join("site-packages"))
    }

    fn programs(&self) -> PathBuf {
        self.0.join(if cfg!(windows) { "Scripts" } else { "bin" })
    }
}
