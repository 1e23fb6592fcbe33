//! The library for C and C++ as a folder to install: header, shared and static library, files for pkg-config and CMake.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::chore::{cargo, chore, root};

/// Makes one anew in target/c. On Linux; elsewhere cargo-c knows what a library is called and how it is found.
pub fn build() -> Result<PathBuf, String> {
    if !cfg!(target_os = "linux") {
        return Err("on this system use cargo-c: cargo cinstall -p fourtap-c --release".into());
    }
    let (version, abi) = (version()?, abi_version()?);
    let name = format!("libfourtap.so.{abi}");
    cargo(["rustc", "--release", "--locked", "-p", "fourtap-c", "--lib"])
        .arguments(&["--", "-C", &format!("link-arg=-Wl,-soname,{name}")])
        .run()?;

    let (source, built) = (
        root().join("crates/fourtap-c"),
        root().join("target/release"),
    );
    let prefix = root().join("target/c");
    remove(&prefix)?;
    copy(
        &source.join("include/fourtap.h"),
        &prefix.join("include/fourtap.h"),
    )?;
    copy(
        &built.join("libfourtap_c.a"),
        &prefix.join("lib/libfourtap.a"),
    )?;
    let whole_name = format!("{name}.0.0");
    copy(
        &built.join("libfourtap_c.so"),
        &prefix.join("lib").join(&whole_name),
    )?;
    link(&whole_name, &prefix.join("lib").join(&name))?;
    link(&name, &prefix.join("lib/libfourtap.so"))?;
    for (file, folder) in [
        ("fourtap.pc", "lib/pkgconfig"),
        ("fourtap-config.cmake", "lib/cmake/fourtap"),
        ("fourtap-config-version.cmake", "lib/cmake/fourtap"),
    ] {
        let template = read(&source.join(format!("packaging/{file}.in")))?;
        let text = template
            .replace("@VERSION@", &version)
            .replace("@ABI@", &abi);
        write(&prefix.join(folder).join(file), &text)?;
    }
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(
            &root().join(licence),
            &prefix.join("share/doc/fourtap").join(licence),
        )?;
    }
    Ok(prefix)
}

/// Makes one, and builds the examples with it as a user would: by pkg-config and by CMake. What this machine lacks is left out and
/// named, or an error if `FOURTAP_REQUIRE_CC` is set.
pub fn test() -> Result<(), String> {
    let prefix = build()?;
    let folder = root().join("target/c-examples");
    remove(&folder)?;
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    if is_there("cc")? && is_there("pkg-config")? {
        by_pkg_config(&prefix, &folder)?;
    }
    if is_there("cc")? && is_there("cmake")? {
        by_cmake(&prefix, &folder.join("cmake"))?;
    }
    Ok(())
}

fn by_pkg_config(prefix: &Path, folder: &Path) -> Result<(), String> {
    let flags = |options: &[&str]| -> Result<Vec<String>, String> {
        let flags = chore("pkg-config", options)
            .arguments(&["fourtap"])
            .variable("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .output()?;
        Ok(flags.split_whitespace().map(str::to_string).collect())
    };
    let library = prefix.join("lib");
    let rpath = format!("-Wl,-rpath,{}", library.display());
    let shared = [flags(&["--cflags", "--libs"])?, vec![rpath]].concat();
    // The linker prefers a shared library, unless it is told which file.
    let mut fixed = flags(&["--static", "--cflags", "--libs"])?;
    for flag in fixed.iter_mut().filter(|flag| *flag == "-lfourtap") {
        *flag = library.join("libfourtap.a").display().to_string();
    }
    for (name, flags) in [("shared", shared), ("static", fixed)] {
        let program = folder.join(name);
        chore(
            "cc",
            &["-std=c99", "crates/fourtap-c/examples/first.c", "-o"],
        )
        .arguments(&[&program])
        .arguments(&flags)
        .run()?;
        let found = chore(&program, &[]).output()?;
        if found != "15\n" {
            return Err(format!(
                "{}: expected 15, found {found:?}",
                program.display()
            ));
        }
    }
    Ok(())
}

fn by_cmake(prefix: &Path, folder: &Path) -> Result<(), String> {
    let build = folder.to_string_lossy();
    chore("cmake", &["-S", "crates/fourtap-c/examples", "-B", &build])
        .arguments(&[format!("-DCMAKE_PREFIX_PATH={}", prefix.display())])
        .run()?;
    chore("cmake", &["--build", &build]).run()?;
    chore("ctest", &["--test-dir", &build, "--output-on-failure"]).run()
}

/// Whether this machine has a program.
fn is_there(program: &str) -> Result<bool, String> {
    let found = Command::new(program).arg("--version").output();
    match (found, std::env::var_os("FOURTAP_REQUIRE_CC")) {
        (Ok(_), _) => Ok(true),
        (Err(error), Some(_)) => Err(format!("{program}: {error}")),
        (Err(error), None) => {
            eprintln!("not run, since {program} is missing: {error}");
            Ok(false)
        }
    }
}

fn version() -> Result<String, String> {
    let manifest = read(&root().join("Cargo.toml"))?;
    quoted(&manifest, "version = \"").ok_or_else(|| "Cargo.toml: expected a version".to_string())
}

/// The number that programs find the shared library by. A test of the crate compares it with the header's.
fn abi_version() -> Result<String, String> {
    let manifest = read(&root().join("crates/fourtap-c/Cargo.toml"))?;
    let library = manifest.split("[package.metadata.capi.library]").nth(1);
    let version = library.and_then(|library| quoted(library, "version = \""));
    let abi = version.and_then(|version| Some(version.split('.').next()?.to_string()));
    abi.ok_or_else(|| "crates/fourtap-c/Cargo.toml: expected a version of the library".to_string())
}

/// What follows at the beginning of a line after these words, until a quotation mark.
fn quoted(text: &str, after: &str) -> Option<String> {
    let rest = text.lines().find_map(|line| line.strip_prefix(after))?;
    Some(rest.split('"').next()?.to_string())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    make_folder_of(path)?;
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    make_folder_of(to)?;
    fs::copy(from, to).map_err(|error| format!("{}: {error}", from.display()))?;
    Ok(())
}

fn make_folder_of(path: &Path) -> Result<(), String> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

#[cfg(unix)]
fn link(name: &str, at: &Path) -> Result<(), String> {
    std::os::unix::fs::symlink(name, at).map_err(|error| format!("{}: {error}", at.display()))
}

#[cfg(not(unix))]
fn link(name: &str, at: &Path) -> Result<(), String> {
    Err(format!(
        "{}: expected a system with links, to link {name}",
        at.display()
    ))
}

fn remove(folder: &Path) -> Result<(), String> {
    match folder.exists() {
        true => {
            fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
        }
        false => Ok(()),
    }
}
