//! `include/fourtap.h` is what cbindgen makes of the sources, with an example before it.

use std::fs;
use std::path::PathBuf;

/// The beginning of the header, before the example.
const INTRODUCTION: &str = "\
fourtap: multi-scale deformable attention and dense attention for CPUs and CUDA devices.
https://github.com/fourtap/fourtap, docs/c.md

Every function that can fail returns a fourtap_status; fourtap_last_error_message() says why, for each thread. Descriptors begin with
their own size, so that programs work with later versions of the library: set struct_size, and set to zero what is not used. NULL is for
what is optional. Functions may be called from any number of threads at once. Tensors stay the caller's, and outputs may share no
memory with other tensors of the call. On the CPU a function returns when the result is there, on CUDA once the work is queued on the
stream.

A complete program:
";

/// What is declared, in the order of the header.
const SOURCES: [&str; 7] = [
    "version",
    "status",
    "tensor",
    "options",
    "msda",
    "projections",
    "dense",
];

/// Compares it, or writes it where `FOURTAP_WRITE_HEADER` is set.
#[test]
fn the_header_is_made_of_the_sources() {
    let path = folder().join("include/fourtap.h");
    let made = header();
    if std::env::var_os("FOURTAP_WRITE_HEADER").is_some() {
        fs::write(&path, &made).unwrap();
    }
    // Git may have put other line ends there.
    let found = fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
    assert!(
        found == made,
        "include/fourtap.h is not made of these sources: \
         run FOURTAP_WRITE_HEADER=1 cargo test -p fourtap-c --test integration header"
    );
}

/// A new type is named in cbindgen.toml.
#[test]
fn every_type_has_the_librarys_prefix() {
    let made = header();
    let names: Vec<&str> = made
        .lines()
        .filter_map(|line| line.strip_prefix("} ")?.strip_suffix(';'))
        .collect();
    assert!(names.contains(&"fourtap_tensor"), "{names:?}");
    for name in names {
        assert!(name.starts_with("fourtap_"), "{name}");
    }
}

#[test]
fn the_page_in_the_documentation_has_the_example() {
    let page = fs::read_to_string(folder().join("../../docs/c.md")).unwrap();
    let example = example();
    assert!(
        page.contains(&format!("```c\n{example}```")),
        "docs/c.md: expected examples/first.c as it is"
    );
}

/// The shared library of packagers has the number of the ABI.
#[test]
fn the_manifest_names_the_version_of_the_abi() {
    let manifest = fs::read_to_string(folder().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let version = &manifest["package"]["metadata"]["capi"]["library"]["version"];
    let expected = format!("{}.0.0", fourtap_c::ABI_VERSION);
    assert_eq!(version.as_str(), Some(expected.as_str()));
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn example() -> String {
    let example = fs::read_to_string(folder().join("examples/first.c")).unwrap();
    example.replace("\r\n", "\n")
}

fn header() -> String {
    let mut config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    config.header = Some(introduction());
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(folder().join(format!("src/{source}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    without_safety(&String::from_utf8(text).unwrap())
}

fn introduction() -> String {
    let example = example();
    let indented = example.lines().map(|line| format!("    {line}"));
    let lines = INTRODUCTION.lines().map(str::to_string).chain(indented);
    let commented = lines.map(|line| format!("// {line}").trim_end().to_string());
    commented.collect::<Vec<_>>().join("\n")
}

/// Leaves out what Rust's documentation says of safety, from its heading to the end of the comment: for C it is said above.
fn without_safety(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line == "/// # Safety" {
            inside = true;
            // The empty line before it.
            kept.pop();
        }
        inside &= line.starts_with("///");
        if !inside {
            kept.push(line);
        }
    }
    kept.join("\n") + "\n"
}
