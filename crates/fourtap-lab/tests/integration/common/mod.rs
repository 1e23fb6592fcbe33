//! Safetensors files made by hand, right and wrong, and the command to feed them to.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod pages;
pub mod records;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    pub data: Vec<u8>,
}

pub fn entry(name: &str, dtype: &'static str, shape: &[u64], data: Vec<u8>) -> Entry {
    Entry {
        name: name.to_string(),
        dtype,
        shape: shape.to_vec(),
        data,
    }
}

pub fn f32s(name: &str, shape: &[u64]) -> Entry {
    let count: u64 = shape.iter().product();
    let data = (0..count)
        .flat_map(|i| ((i % 17) as f32 / 16.0).to_le_bytes())
        .collect();
    entry(name, "F32", shape, data)
}

pub fn i64s(name: &str, shape: &[u64], numbers: &[i64]) -> Entry {
    entry(
        name,
        "I64",
        shape,
        numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect(),
    )
}

/// A small problem without fault: N 1, Q 3, M 2, D 2, P 2, levels 2x3 and 1x2.
pub fn valid() -> Vec<Entry> {
    vec![
        f32s("value", &[1, 8, 2, 2]),
        i64s("spatial_shapes", &[2, 2], &[2, 3, 1, 2]),
        i64s("level_start_index", &[2], &[0, 6]),
        f32s("sampling_locations", &[1, 3, 2, 2, 2, 2]),
        f32s("attention_weights", &[1, 3, 2, 2, 2]),
        f32s("grad_out", &[1, 3, 4]),
    ]
}

/// `valid` with one tensor replaced.
pub fn with(changed: Entry) -> Vec<Entry> {
    let mut entries = valid();
    let place = entries
        .iter()
        .position(|entry| entry.name == changed.name)
        .expect("a tensor of `valid`");
    entries[place] = changed;
    entries
}

/// `valid` with one tensor left out.
pub fn without(name: &str) -> Vec<Entry> {
    valid()
        .into_iter()
        .filter(|entry| entry.name != name)
        .collect()
}

/// `valid` with another name for one tensor.
pub fn renamed(from: &str, to: &str) -> Vec<Entry> {
    let rename = |mut entry: Entry| {
        if entry.name == from {
            entry.name = to.to_string();
        }
        entry
    };
    valid().into_iter().map(rename).collect()
}

/// The file: tensors one after another, with a header that says so.
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for entry in entries {
        let begin = data.len();
        data.extend(&entry.data);
        let described = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [begin, data.len()]});
        header.insert(entry.name.clone(), described);
    }
    with_header(
        serde_json::to_string(&header).expect("JSON").as_bytes(),
        &data,
    )
}

/// A file with any header.
pub fn with_header(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub fn fourtap(folder: &Path, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Outcome {
    outcome(command(folder).args(arguments))
}

pub fn outcome(command: &mut Command) -> Outcome {
    let output = command.output().expect("the command starts");
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

pub fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fourtap"));
    command.current_dir(folder).stdin(Stdio::null());
    // The same results on machines with a GPU, no traces in the user's cache, and no choices of theirs.
    command.env("CUDA_VISIBLE_DEVICES", "");
    command.env("FOURTAP_CACHE_DIR", "off");
    command.env("FOURTAP_TUNE", "off");
    command
}

/// A folder with `in.safetensors` of these bytes in it.
pub fn folder_with(bytes: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("in.safetensors"), bytes).expect("a new file");
    folder
}

/// The names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name().into())
        .collect();
    names.sort();
    names
}

/// The command failed as it should, and said why.
pub fn fails(what: &str, outcome: &Outcome, expected: &str) {
    assert_eq!(outcome.code, Some(1), "{what}: {outcome:?}");
    assert!(outcome.stderr.starts_with("error: "), "{what}: {outcome:?}");
    assert!(
        outcome.stderr.contains(expected),
        "{what}: {expected:?} is not in {outcome:?}"
    );
    assert!(!outcome.stderr.contains("panicked"), "{what}: {outcome:?}");
    assert_eq!(outcome.stdout, "", "{what}");
}

/// What a file is, its bytes, and what the error must say.
pub type Bad = (&'static str, Vec<u8>, &'static str);

/// `run` refuses each file, names it, and leaves nothing behind.
pub fn refuses(bad: &[Bad], more: &[&str]) {
    for (what, bytes, expected) in bad {
        let folder = folder_with(bytes);
        let call = ["run", "in.safetensors", "-o", "out.safetensors"];
        let outcome = fourtap(folder.path(), call.iter().chain(more));
        fails(what, &outcome, expected);
        let named = outcome.stderr.contains("in.safetensors") || outcome.stderr.contains("memory");
        assert!(named, "{what}: {outcome:?}");
        assert_eq!(
            names(folder.path()).len(),
            1,
            "{what}: something was left behind"
        );
        if more.is_empty() {
            fails(
                what,
                &fourtap(folder.path(), ["bench", "in.safetensors"]),
                expected,
            );
        }
    }
}
