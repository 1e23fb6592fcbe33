//! `fourtap run`: what it computes, and what it leaves alone.

use std::fs;
use std::path::Path;

use crate::common::{
    self, Entry, Outcome, encode, entry, folder_with, fourtap, names, valid, with, without,
};
use fourtap::msda::oracle;
use fourtap::verify::{Case, Pass, Tensor, judge};
use fourtap::{DType, bf16, f16};
use safetensors::SafeTensors;

/// The elements of a tensor as a file holds them.
pub fn stored(name: &str, tensor: &Tensor) -> Entry {
    let numbers = tensor.to_f64();
    let (dtype, data) = match tensor.dtype() {
        DType::F16 => (
            "F16",
            numbers
                .iter()
                .flat_map(|&x| f16::from_f64(x).to_le_bytes())
                .collect(),
        ),
        DType::BF16 => (
            "BF16",
            numbers
                .iter()
                .flat_map(|&x| bf16::from_f64(x).to_le_bytes())
                .collect(),
        ),
        DType::F32 => (
            "F32",
            numbers
                .iter()
                .flat_map(|&x| (x as f32).to_le_bytes())
                .collect(),
        ),
        DType::F64 => (
            "F64",
            numbers.iter().flat_map(|&x| x.to_le_bytes()).collect(),
        ),
    };
    let shape: Vec<u64> = tensor
        .shape()
        .sizes()
        .iter()
        .map(|&size| size as u64)
        .collect();
    entry(name, dtype, &shape, data)
}

pub fn integers(name: &str, shape: &[u64], numbers: &[usize], wide: bool) -> Entry {
    let data = match wide {
        true => numbers
            .iter()
            .flat_map(|&number| (number as i64).to_le_bytes())
            .collect(),
        false => numbers
            .iter()
            .flat_map(|&number| (number as i32).to_le_bytes())
            .collect(),
    };
    entry(name, if wide { "I64" } else { "I32" }, shape, data)
}

/// The elements of a tensor in a file, exactly.
pub fn loaded(file: &SafeTensors<'_>, name: &str, like: &Tensor) -> Vec<f64> {
    let view = file.tensor(name).unwrap();
    assert_eq!(
        view.dtype().to_string().to_lowercase(),
        like.dtype().name(),
        "{name}"
    );
    let data = view.data();
    match like.dtype() {
        DType::F16 => data
            .as_chunks()
            .0
            .iter()
            .map(|&x| f16::from_le_bytes(x).to_f64())
            .collect(),
        DType::BF16 => data
            .as_chunks()
            .0
            .iter()
            .map(|&x| bf16::from_le_bytes(x).to_f64())
            .collect(),
        DType::F32 => data
            .as_chunks()
            .0
            .iter()
            .map(|&x| f32::from_le_bytes(x) as f64)
            .collect(),
        DType::F64 => data
            .as_chunks()
            .0
            .iter()
            .map(|&x| f64::from_le_bytes(x))
            .collect(),
    }
}

fn run(folder: &Path, more: &[&str]) -> Outcome {
    fourtap(
        folder,
        ["run", "in.safetensors", "-o", "out.safetensors"]
            .iter()
            .chain(more),
    )
}

fn succeed(folder: &Path, more: &[&str]) -> Vec<u8> {
    let outcome = run(folder, more);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    fs::read(folder.join("out.safetensors")).unwrap()
}

fn refused(outcome: &Outcome, text: &str) {
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains(text), "{text} not in {outcome:?}");
}

#[test]
fn writes_what_the_oracle_says() {
    let mut seen = Vec::new();
    for seed in 0..40 {
        let case = Case::random(seed);
        let levels = &case.levels;
        let shapes: Vec<usize> = levels
            .iter()
            .flat_map(|level| [level.height, level.width])
            .collect();
        let starts: Vec<usize> = levels.iter().map(|level| level.start).collect();
        let count = levels.len() as u64;
        let folder = folder_with(&encode(&[
            stored("value", &case.value),
            integers("spatial_shapes", &[count, 2], &shapes, seed % 2 == 0),
            integers("level_start_index", &[count], &starts, seed % 3 == 0),
            stored("sampling_locations", &case.sampling_locations),
            stored("attention_weights", &case.attention_weights),
            stored("grad_out", &case.grad_out),
        ]));
        let bytes = succeed(folder.path(), &["--grad"]);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors = file.names();
        tensors.sort();
        assert_eq!(
            tensors,
            ["grad_locations", "grad_value", "grad_weights", "out"]
        );

        let (inputs, grad_out) = (case.inputs(), case.grad_out());
        let compare = |name: &str, pass, like: &Tensor, oracle: &[_], naive: &[_]| {
            let judgement = judge(
                pass,
                like.dtype(),
                &loaded(&file, name, like),
                oracle,
                naive,
            );
            assert!(judgement.passed(), "problem {seed}: {name}: {judgement:?}");
        };
        let (exact, naive) = (
            oracle::forward(&inputs).unwrap(),
            oracle::forward(&inputs).unwrap(),
        );
        compare("out", Pass::Forward, &case.grad_out, &exact, &naive);
        let exact = oracle::backward(&inputs, &grad_out).unwrap();
        let naive = oracle::backward(&inputs, &grad_out).unwrap();
        compare(
            "grad_value",
            Pass::Backward,
            &case.value,
            &exact.value,
            &naive.value,
        );
        let (locations, weights) = (&case.sampling_locations, &case.attention_weights);
        let (of_locations, of_weights) = (&exact.sampling_locations, &exact.attention_weights);
        compare(
            "grad_locations",
            Pass::Backward,
            locations,
            of_locations,
            &naive.sampling_locations,
        );
        compare(
            "grad_weights",
            Pass::Backward,
            weights,
            of_weights,
            &naive.attention_weights,
        );
        seen.push(case.value.dtype());
    }
    assert!(
        DType::ALL.iter().all(|dtype| seen.contains(dtype)),
        "every element type in {seen:?}"
    );
}

#[test]
fn forward_alone_writes_out_alone() {
    let folder = folder_with(&encode(&without("grad_out")));
    let bytes = succeed(folder.path(), &[]);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.names(), ["out"]);
    assert_eq!(file.tensor("out").unwrap().shape(), [1, 3, 4]);

    let strange = with(entry("grad_out", "I8", &[3], vec![0; 3]));
    let same = succeed(folder_with(&encode(&strange)).path(), &[]);
    assert_eq!(same, bytes, "without --grad nobody looks at grad_out");
}

#[test]
fn reads_tensors_at_any_address() {
    let aligned = succeed(folder_with(&encode(&valid())).path(), &["--grad"]);
    for bytes in 1..8 {
        let mut entries = valid();
        entries.insert(0, entry("a", "U8", &[bytes], vec![0; bytes as usize]));
        assert_eq!(
            succeed(folder_with(&encode(&entries)).path(), &["--grad"]),
            aligned,
            "{bytes} bytes before"
        );
    }
}

#[test]
fn level_starts_may_be_left_out() {
    let given = succeed(folder_with(&encode(&valid())).path(), &["--grad"]);
    let left_out = succeed(
        folder_with(&encode(&without("level_start_index"))).path(),
        &["--grad"],
    );
    assert_eq!(given, left_out);
}

#[test]
fn threads_do_not_change_a_bit() {
    let folder = folder_with(&encode(&valid()));
    let one = succeed(folder.path(), &["--grad", "--threads", "1"]);
    assert_eq!(
        succeed(folder.path(), &["--grad", "--force", "--threads", "3"]),
        one
    );
    assert_eq!(
        succeed(folder.path(), &["--grad", "--force", "--deterministic"]),
        one
    );
}

#[test]
fn keeps_an_existing_output_unless_forced() {
    let folder = folder_with(&encode(&valid()));
    let out = folder.path().join("out.safetensors");
    fs::write(&out, "precious").unwrap();
    let outcome = run(folder.path(), &[]);
    refused(
        &outcome,
        "out.safetensors: expected no such file yet, found one",
    );
    assert!(
        outcome
            .stderr
            .contains("hint: choose another name, or replace it with --force")
    );
    assert_eq!(fs::read(&out).unwrap(), b"precious");

    let bytes = succeed(folder.path(), &["--force"]);
    assert!(SafeTensors::deserialize(&bytes).is_ok());
    assert_eq!(names(folder.path()).len(), 2, "no temporary file is left");
}

#[test]
fn a_failed_run_keeps_the_old_output() {
    let wrong = with(common::f32s("attention_weights", &[1, 3, 2, 2, 3]));
    let folder = folder_with(&encode(&wrong));
    let out = folder.path().join("out.safetensors");
    fs::write(&out, "precious").unwrap();
    refused(&run(folder.path(), &["--force"]), "attention_weights");
    assert_eq!(fs::read(&out).unwrap(), b"precious");
    assert_eq!(names(folder.path()).len(), 2);
}

#[test]
fn never_replaces_its_input() {
    let bytes = encode(&valid());
    let folder = folder_with(&bytes);
    let input = folder.path().join("in.safetensors");
    let mut outputs = vec!["in.safetensors", "./in.safetensors"];
    if cfg!(unix) {
        outputs.extend(["link", "hard"]);
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("in.safetensors", folder.path().join("link")).unwrap();
        fs::hard_link(&input, folder.path().join("hard")).unwrap();
    }
    for out in outputs {
        let outcome = fourtap(
            folder.path(),
            ["run", "in.safetensors", "-o", out, "--force"],
        );
        refused(&outcome, "expected an output other than the input");
        assert_eq!(fs::read(&input).unwrap(), bytes);
    }
}

#[cfg(unix)]
#[test]
fn a_linked_output_is_replaced_where_it_lies() {
    let folder = folder_with(&encode(&valid()));
    fs::create_dir(folder.path().join("results")).unwrap();
    fs::write(folder.path().join("results/real"), "old").unwrap();
    std::os::unix::fs::symlink("results/real", folder.path().join("out.safetensors")).unwrap();
    let bytes = succeed(folder.path(), &["--force"]);
    assert_eq!(fs::read(folder.path().join("results/real")).unwrap(), bytes);
    assert!(folder.path().join("out.safetensors").is_symlink());
    assert_eq!(names(&folder.path().join("results")).len(), 1);
}

#[test]
fn needs_a_folder_to_write_to() {
    let folder = folder_with(&encode(&valid()));
    let outcome = fourtap(
        folder.path(),
        ["run", "in.safetensors", "-o", "missing/out.safetensors"],
    );
    refused(&outcome, "hint: make the folder first");
    fs::create_dir(folder.path().join("there")).unwrap();
    refused(
        &fourtap(folder.path(), ["run", "in.safetensors", "-o", "there"]),
        "expected a file, found a folder",
    );
    refused(
        &fourtap(folder.path(), ["run", "in.safetensors", "-o", ".."]),
        "expected a file, found a folder",
    );
}

#[test]
fn mentions_tensors_it_does_not_know() {
    let mut entries = valid();
    entries.push(common::f32s("mask", &[2]));
    let folder = folder_with(&encode(&entries));
    let outcome = run(folder.path(), &[]);
    assert_eq!(outcome.code, Some(0));
    assert!(
        outcome
            .stderr
            .contains("note: in.safetensors: ignored: mask"),
        "{outcome:?}"
    );
    assert!(outcome.stdout.is_empty(), "{outcome:?}");
}

#[test]
fn json_says_what_was_done() {
    let folder = folder_with(&encode(&valid()));
    let outcome = run(
        folder.path(),
        &["--grad", "--json", "--simd", "portable", "--threads", "2"],
    );
    let record: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(record["problem"]["queries"], 3);
    assert_eq!(
        record["problem"]["levels"],
        serde_json::json!([[2, 3], [1, 2]])
    );
    assert_eq!(record["dtypes"]["value"], "f32");
    assert_eq!(record["device"]["simd"], "portable");
    assert_eq!(record["device"]["threads"], 2);
    assert_eq!(
        record["tensors"],
        serde_json::json!(["out", "grad_value", "grad_locations", "grad_weights"])
    );
    assert_eq!(record["deterministic"], true, "as always on the CPU");
    assert!(record["compute_seconds"].as_f64().unwrap() > 0.0);
}
