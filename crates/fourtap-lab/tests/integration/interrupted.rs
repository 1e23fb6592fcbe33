//! What is left of `fourtap run` when it is interrupted: nothing, or the whole result.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::common::{command, encode, entry, f32s, folder_with, fourtap, i64s, names, valid};

/// An output of 32 MB, which takes a while to bring to the disk.
fn large() -> Vec<u8> {
    const QUERIES: u64 = 1 << 17;
    let points = QUERIES * 2;
    let zeros = |name: &str, shape: &[u64], count: u64| {
        entry(name, "F32", shape, vec![0; 4 * count as usize])
    };
    encode(&[
        f32s("value", &[1, 4, 2, 32]),
        i64s("spatial_shapes", &[1, 2], &[2, 2]),
        zeros("sampling_locations", &[1, QUERIES, 2, 1, 1, 2], 2 * points),
        zeros("attention_weights", &[1, QUERIES, 2, 1, 1], points),
    ])
}

fn run(folder: &Path) -> Command {
    let mut command = command(folder);
    command.args(["run", "in.safetensors", "-o", "out.safetensors", "--force"]);
    command.stderr(Stdio::null());
    command
}

#[test]
fn an_interrupted_run_leaves_no_part_of_its_output() {
    let folder = folder_with(&large());
    let out = folder.path().join("out.safetensors");
    let begun = Instant::now();
    assert!(run(folder.path()).status().unwrap().success());
    let (took, whole) = (begun.elapsed(), fs::metadata(&out).unwrap().len());
    fs::remove_file(&out).unwrap();
    let mut interrupted = 0;
    for attempt in 0..20 {
        let signal = ["-INT", "-TERM", "-KILL"][attempt % 3];
        let mut child = run(folder.path()).spawn().unwrap();
        // Most of the time goes into writing, which comes last.
        thread::sleep(took.mul_f64(0.3 + 0.04 * attempt as f64));
        let mut kill = Command::new("kill");
        let killed = kill.args([signal, &child.id().to_string()]).status();
        assert!(killed.is_ok());
        interrupted += usize::from(!child.wait().unwrap().success());
        let names = names(folder.path());
        let parts = names
            .iter()
            .filter(|name| name.to_string_lossy().contains("tmp"));
        assert_eq!(parts.count(), 0, "{signal}: {names:?}");
        if let Ok(found) = fs::metadata(&out) {
            assert_eq!(found.len(), whole, "{signal}");
        }
    }
    assert!(interrupted > 0, "none of them was interrupted");
}

#[test]
fn tensors_go_to_standard_output() {
    let folder = folder_with(&encode(&valid()));
    let named = ["run", "in.safetensors", "-o", "out.safetensors"];
    assert_eq!(fourtap(folder.path(), named).code, Some(0));
    let mut command = command(folder.path());
    let piped = command.args(["run", "in.safetensors", "-o", "-"]).output();
    let piped = piped.unwrap();
    assert!(piped.status.success(), "{piped:?}");
    let file = fs::read(folder.path().join("out.safetensors")).unwrap();
    assert_eq!(piped.stdout, file);
    assert_eq!(names(folder.path()).len(), 2, "no file called -");

    let json = ["run", "in.safetensors", "-o", "-", "--json"];
    let outcome = fourtap(folder.path(), json);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("found that --json prints there"));
}

#[test]
#[cfg(target_os = "linux")]
fn help_that_cannot_be_printed_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    for words in [&["--help"][..], &["bench", "--help"], &["--version"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = command(folder.path());
        let ended = command.args(words).stdout(full.unwrap()).output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{words:?}: {ended:?}");
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(
            said.contains("standard output: cannot be written"),
            "{said}"
        );
    }
}

#[test]
fn a_tuning_table_that_is_not_there_is_told() {
    let folder = folder_with(&encode(&valid()));
    for words in [
        &["doctor"][..],
        &["run", "in.safetensors", "-o", "out.safetensors"],
        &["check", "--cases", "1"],
        &["explain", "rtdetr-decoder"],
    ] {
        let mut command = command(folder.path());
        let command = command.args(words).env("FOURTAP_TUNE", "none.tsv");
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{words:?}: {ended:?}");
        let said = [ended.stdout, ended.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(
            said.contains("FOURTAP_TUNE names none.tsv, which is not there"),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn a_tuning_table_that_cannot_be_read_is_told_and_done_without() {
    let folder = folder_with(&encode(&valid()));
    let mut file = fs::File::create(folder.path().join("poem.tsv")).unwrap();
    file.write_all(b"roses are red\n").unwrap();
    for words in [
        &["doctor"][..],
        &["run", "in.safetensors", "-o", "out.safetensors"],
    ] {
        let mut command = command(folder.path());
        let command = command.args(words).env("FOURTAP_TUNE", "poem.tsv");
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{words:?}: {ended:?}");
        let said = [ended.stdout, ended.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("poem.tsv, line 1"), "{words:?}: {said}");
    }
}
