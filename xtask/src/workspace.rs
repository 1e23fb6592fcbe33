//! What the manifests promise: every combination of features builds, the oldest Rust suffices, crates can be published.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::chore::{Chore, cargo, root, step};

/// What `cargo metadata` says.
pub struct Workspace {
    packages: Vec<Value>,
    members: Vec<Value>,
}

impl Workspace {
    /// Of this repository, with everything that is locked.
    pub fn read() -> Result<Self, String> {
        let text = cargo(["metadata", "--format-version", "1", "--locked"]).output()?;
        let mut metadata: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let mut list = |name: &str| match metadata[name].take() {
            Value::Array(list) => Ok(list),
            _ => Err(format!("`cargo metadata` names no {name}")),
        };
        Ok(Workspace {
            packages: list("packages")?,
            members: list("workspace_members")?,
        })
    }

    /// The crates of this repository.
    fn crates(&self) -> impl Iterator<Item = &Value> {
        let is_member = |package: &&Value| self.members.contains(&package["id"]);
        self.packages.iter().filter(is_member)
    }

    /// Lints each crate that has features without any and with each alone; with all of them the workspace was linted.
    pub fn lint_features(&self) -> Result<(), String> {
        for package in self.crates() {
            let features = package["features"].as_object();
            let features = features.into_iter().flat_map(|features| features.keys());
            let features: Vec<_> = features.filter(|name| *name != "default").collect();
            if features.is_empty() {
                continue;
            }
            let name = package["name"].as_str().unwrap_or_default();
            let lint = |choice: &[&str], words: &str| -> Result<(), String> {
                let clippy = cargo(["clippy", "--locked", "-p", name, "--no-default-features"]);
                let clippy = clippy
                    .arguments(choice)
                    .arguments(&["--", "-D", "warnings"]);
                clippy.step(&format!("lints of {name} with {words}"))
            };
            lint(&[], "no feature")?;
            // All of them together is how the workspace was linted.
            for feature in features.iter().filter(|_| features.len() > 1) {
                lint(&["--features", feature], feature)?;
            }
        }
        Ok(())
    }

    /// Nothing that is locked asks for a newer Rust than the workspace promises to do with.
    pub fn check_rust_versions(&self) -> Result<(), String> {
        step("oldest Rust of dependencies", || {
            let promised = self.crates().filter_map(rust_version).min();
            let promised = promised.ok_or("no crate has a rust-version")?;
            let newer = |package: &&Value| rust_version(package) > Some(promised);
            let newer: Vec<_> = self.packages.iter().filter(newer).map(describe).collect();
            match newer.is_empty() {
                true => Ok(()),
                false => Err(format!(
                    "rust-version is {}.{}.{}, but newer ones are asked for by {}",
                    promised[0],
                    promised[1],
                    promised[2],
                    newer.join(", ")
                )),
            }
        })
    }

    /// `cargo package` for all crates that are to be published; without building them, unless `--no-verify` is left out.
    pub fn package(&self, options: &[&str]) -> Chore {
        let mut package =
            cargo(["package", "--locked", "--allow-dirty", "--quiet"]).arguments(options);
        for published in self.published() {
            package = package.arguments(&["-p", published["name"].as_str().unwrap_or_default()]);
        }
        package
    }

    /// Packages all crates that are to be published, and builds each from what is published of it.
    pub fn verify_packages(&self) -> Result<(), String> {
        self.remove_extracted_packages()?;
        // By the same names, what was built of them is reused as well: so nothing is there.
        let target = root().join("target/packages");
        if target.exists() {
            fs::remove_dir_all(&target)
                .map_err(|error| format!("{}: {error}", target.display()))?;
        }
        let target = target.to_string_lossy();
        self.package(&["--target-dir", &target]).run()
    }

    /// A crate with `publish = false` has an empty list of registries.
    fn published(&self) -> impl Iterator<Item = &Value> {
        let is_published = |package: &&Value| package["publish"] == Value::Null;
        self.crates().filter(is_published)
    }

    /// `cargo package` puts packages into a registry in a folder, and Cargo extracts them from there into the user's folder once
    /// per path, name and version: without this, those of an earlier commit in a checkout of the same path would be built.
    fn remove_extracted_packages(&self) -> Result<(), String> {
        let Some(sources) = cargo_home().map(|home| home.join("registry/src")) else {
            return Ok(());
        };
        let registries = fs::read_dir(&sources).into_iter().flatten().flatten();
        // A registry in a folder has no host in its name.
        let is_local = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with('-');
        for registry in registries.filter(is_local) {
            for package in self.published() {
                let [name, version] =
                    ["name", "version"].map(|field| package[field].as_str().unwrap_or_default());
                let extracted = registry.path().join(format!("{name}-{version}"));
                if extracted.exists() {
                    fs::remove_dir_all(&extracted)
                        .map_err(|error| format!("{}: {error}", extracted.display()))?;
                }
            }
        }
        Ok(())
    }
}

/// Where Cargo keeps what it has downloaded.
fn cargo_home() -> Option<PathBuf> {
    let home = || Some(std::env::home_dir()?.join(".cargo"));
    std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(home)
}

fn rust_version(package: &Value) -> Option<[u32; 3]> {
    let mut numbers = [0; 3];
    for (number, text) in numbers
        .iter_mut()
        .zip(package["rust_version"].as_str()?.split('.'))
    {
        *number = text.parse().ok()?;
    }
    Some(numbers)
}

fn describe(package: &Value) -> String {
    let text = |field: &str| package[field].as_str().unwrap_or_default().to_string();
    format!(
        "{} {} ({})",
        text("name"),
        text("version"),
        text("rust_version")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_what_asks_for_a_newer_rust() {
        let ours = json!({"id": "a", "name": "ours", "version": "0.1.0", "rust_version": "1.89"});
        let theirs = |rust: &str| {
            let theirs =
                json!({"id": "b", "name": "theirs", "version": "2.0.0", "rust_version": rust});
            Workspace {
                packages: vec![ours.clone(), theirs, json!({"id": "c", "name": "silent"})],
                members: vec!["a".into()],
            }
        };
        for fine in ["1.9", "1.89.0", "1.88.5"] {
            assert_eq!(theirs(fine).check_rust_versions(), Ok(()), "{fine}");
        }
        for newer in ["1.89.1", "1.90", "2.0"] {
            let error = theirs(newer).check_rust_versions().unwrap_err();
            assert!(
                error.contains("theirs 2.0.0") && error.contains("1.89.0"),
                "{error}"
            );
        }
    }
}
