//! Malformed calls and workloads: each ends in an error that names what is wrong, never in a panic.

use std::fs;

use crate::common::{encode, fails, folder_with, fourtap, names, valid};

#[test]
fn refuses_paths_that_lead_nowhere() {
    let folder = folder_with(&encode(&valid()));
    fs::create_dir(folder.path().join("folder.safetensors")).unwrap();
    fs::create_dir(folder.path().join("folder.toml")).unwrap();
    let calls: [(&[&str], &str); 7] = [
        (&["run", "missing", "-o", "out"], "missing: cannot be read"),
        (
            &["run", "in.safetensors/deeper", "-o", "out"],
            "in.safetensors/deeper: cannot be read",
        ),
        (
            &["run", "folder.safetensors", "-o", "out"],
            "folder.safetensors: expected a file, found a folder",
        ),
        (
            &["run", "in.safetensors", "-o", "no/such/folder"],
            "no/such/folder: cannot be written",
        ),
        (
            &["run", "in.safetensors", "-o", "in.safetensors/out"],
            "in.safetensors/out: cannot be written",
        ),
        (
            &["bench", "folder.toml"],
            "folder.toml: expected a file, found a folder",
        ),
        (
            &["bench", "rtdetr-decoder", "--json", "no/such/file"],
            "no/such/file: cannot be written",
        ),
    ];
    for (arguments, expected) in calls {
        fails(
            &format!("{arguments:?}"),
            &fourtap(folder.path(), arguments),
            expected,
        );
    }
    assert_eq!(names(folder.path()).len(), 3);
}

#[cfg(unix)]
#[test]
fn refuses_devices_and_names_that_are_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder_with(&encode(&valid()));
    let strange = std::ffi::OsStr::from_bytes(b"\xff\xfe.safetensors");
    let run = |input: &std::ffi::OsStr| {
        fourtap(
            folder.path(),
            ["run".as_ref(), input, "-o".as_ref(), "out".as_ref()],
        )
    };
    fails("a name that is not UTF-8", &run(strange), "cannot be read");
    fails(
        "a workload that is not UTF-8",
        &fourtap(folder.path(), ["bench".as_ref(), strange]),
        "cannot be read",
    );
    fails(
        "a device",
        &run("/dev/zero".as_ref()),
        "/dev/zero: expected a file, found something else",
    );
    let outcome = fourtap(
        folder.path(),
        ["run", "in.safetensors", "-o", "/dev/null", "--force"],
    );
    fails(
        "a device to write to",
        &outcome,
        "/dev/null: expected a file, found something else",
    );
}

const WORKLOAD: &str = r#"name = "small"
description = "for a test"
images = 2
queries = 5
heads = 3
channels = 4
levels = [[5, 6], [2, 3]]
points = 1
reference = "random"
"#;

#[test]
fn refuses_workloads_that_make_no_sense() {
    let wrong = [
        ("name = \"small\"\n", "", "missing field `name`"),
        ("images = 2\n", "", "missing field `images`"),
        ("reference = \"random\"\n", "", "missing field `reference`"),
        ("levels = [[5, 6], [2, 3]]\n", "", "missing field `levels`"),
        ("images = 2", "images = 2\nimages = 3", "duplicate key"),
        (
            "images = 2",
            "images = 2\nspeed = \"fast\"",
            "unknown field `speed`",
        ),
        (
            "images = 2",
            "images = 0",
            "images: expected at least 1, found 0",
        ),
        ("images = 2", "images = -2", "-2"),
        ("images = 2", "images = \"two\"", "expected u32"),
        ("images = 2", "images = 2.5", "expected u32"),
        ("images = 2", "images = 99999999999999999999", "images"),
        (
            "queries = 5",
            "queries = 0",
            "queries: expected at least 1, found 0",
        ),
        (
            "queries = 5",
            "queries = -1",
            "expected a number from 1 to 4294967295 or \"pixels\"",
        ),
        (
            "queries = 5",
            "queries = \"all\"",
            "expected a number from 1 to 4294967295 or \"pixels\"",
        ),
        (
            "queries = 5",
            "queries = true",
            "expected a number from 1 to 4294967295 or \"pixels\"",
        ),
        (
            "heads = 3",
            "heads = 0",
            "heads: expected at least 1, found 0",
        ),
        (
            "channels = 4",
            "channels = 0",
            "channels: expected at least 1, found 0",
        ),
        ("channels = 4", "channels = 4294967296", "channels"),
        (
            "points = 1",
            "points = 0",
            "points: expected at least 1, found 0",
        ),
        (
            "[[5, 6], [2, 3]]",
            "[]",
            "levels: expected at least one [height, width], found none",
        ),
        (
            "[[5, 6], [2, 3]]",
            "[[5, 6], [2, 0]]",
            "levels[1]: expected height and width of at least 1",
        ),
        ("[[5, 6], [2, 3]]", "[[5, 6, 7]]", "levels"),
        ("[[5, 6], [2, 3]]", "[[5]]", "levels"),
        ("[[5, 6], [2, 3]]", "[[-5, 6]]", "-5"),
        (
            "[[5, 6], [2, 3]]",
            "[[4294967295, 1]]",
            "spatial_shapes[0]: expected height and width from 0",
        ),
        (
            "[[5, 6], [2, 3]]",
            "[[2147483647, 2147483647]]",
            "whose product can be counted",
        ),
        (
            "reference = \"random\"",
            "reference = \"pixels\"",
            "queries: expected \"pixels\", as reference is",
        ),
        (
            "reference = \"random\"",
            "reference = \"spiral\"",
            "unknown variant `spiral`",
        ),
        (
            "name = \"small\"",
            "name = \"\"",
            "name: expected some letters",
        ),
        ("name = \"small\"", "name = small", "small.toml"),
        ("name = \"small\"", "[name", "TOML parse error"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.toml");
    for (from, to, expected) in wrong {
        assert!(WORKLOAD.contains(from), "{from}");
        fs::write(&path, WORKLOAD.replace(from, to)).unwrap();
        let outcome = fourtap(folder.path(), ["bench", "small.toml"]);
        fails(to, &outcome, expected);
        assert!(outcome.stderr.contains("small.toml"), "{to}: {outcome:?}");
    }
    fs::write(&path, b"\xff\xfe").unwrap();
    fails(
        "not UTF-8",
        &fourtap(folder.path(), ["bench", "small.toml"]),
        "small.toml: cannot be read",
    );
    fs::write(&path, WORKLOAD).unwrap();
    let outcome = fourtap(
        folder.path(),
        ["bench", "small.toml", "--filter", "local/f32/forward"],
    );
    assert_eq!(
        outcome.code,
        Some(0),
        "and the right one is accepted: {outcome:?}"
    );
}

#[test]
fn refuses_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let calls: [&[&str]; 14] = [
        &[],
        &["fly"],
        &["run"],
        &["run", "in"],
        &["run", "in", "-o"],
        &["run", "in", "-o", "out", "extra"],
        &["check", "--threads", "0"],
        &["check", "--threads", "-1"],
        &["check", "--threads", "1000000"],
        &["check", "--cases", "0"],
        &["check", "--seed", "18446744073709551616"],
        &["bench", "--dtype", "f8"],
        &["bench", "--direction", "sideways"],
        &["completions", "cmd"],
    ];
    for arguments in calls {
        let outcome = fourtap(folder.path(), arguments);
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {outcome:?}");
        assert!(
            !outcome.stderr.contains("panicked"),
            "{arguments:?}: {outcome:?}"
        );
    }
}
