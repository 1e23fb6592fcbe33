//! `fourtap-ladder` where there is no GPU: what it lists, and what it says about what it cannot do.

use std::process::{Command, Stdio};

fn said(arguments: &[&str]) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_fourtap-ladder"))
        .args(arguments)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        // The same results on machines with a GPU, no traces in the user's cache, and no choices of theirs.
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("FOURTAP_CACHE_DIR", "off")
        .env("FOURTAP_TUNE", "off")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn every_idea_is_listed_with_what_can_be_set() {
    let (code, stdout, _) = said(&["ladder", "--list"]);
    assert_eq!(code, Some(0));
    for number in 1..=19 {
        let name = format!(" a{number:02}");
        assert!(stdout.contains(&name), "{name}: {stdout}");
    }
    for number in [1, 2, 3, 4, 5, 6, 7, 8, 10] {
        let name = format!(" d{number:02}");
        assert!(stdout.contains(&name), "{name}: {stdout}");
    }
    for name in [
        "s1-shuffle",
        "s2-precomputed",
        " shipped ",
        " shipped-dense ",
        " d09-flash ",
        " d09-gemm ",
        "THREADS=",
    ] {
        assert!(stdout.contains(name), "{name}: {stdout}");
    }
    let widest = stdout.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{stdout}");
}

#[test]
fn the_beginning_of_a_name_stands_for_all_that_begin_so() {
    let (code, stdout, _) = said(&["ladder", "--list", "s1", "a08"]);
    assert_eq!(code, Some(0));
    assert!(
        stdout.contains("s1-async") && stdout.contains(" a08 "),
        "{stdout}"
    );
    assert!(
        !stdout.contains("s2-") && !stdout.contains("a08-channels"),
        "{stdout}"
    );
}

#[test]
fn names_are_understood_as_the_ladder_is_written_down() {
    for (typed, meant) in [
        ("D6", "d06"),
        ("d6", "d06"),
        ("A1", "a01"),
        ("D07-lazy", "d07-lazy"),
    ] {
        let (code, stdout, stderr) = said(&["ladder", "--list", typed]);
        assert_eq!(code, Some(0), "{typed}: {stderr}");
        let rungs = stdout
            .lines()
            .filter(|line| line.contains(&format!(" {meant} ")));
        assert_eq!(rungs.count(), 1, "{typed}: {stdout}");
    }
    let (_, stdout, _) = said(&["ladder", "--list", "D9"]);
    for backend in ["flash", "cudnn", "efficient", "math", "gemm"] {
        assert!(stdout.contains(&format!("d09-{backend}")), "{stdout}");
    }
}

#[test]
fn slips_are_told_with_a_hint() {
    for (arguments, expected) in [
        (
            &["ladder", "a8-chanels"][..],
            "hint: did you mean a08-channels?",
        ),
        (
            &["ladder", "a05", "--set", "THREDS=128"],
            "--set THREDS=128: expected one of CACHE_KB, ITEMS, THREADS",
        ),
        (
            &["ladder", "a03", "--set", "THREADS=100"],
            "--set THREADS=100: expected one of [",
        ),
        (
            &["ladder", "D6", "--set", "BLOCK_M=64"],
            "--set BLOCK_M=64: expected one of KEYS, STAGES",
        ),
        (
            &["ladder", "D6", "--workload", "seed-full"],
            "--workload: expected one of dense attention, which d06 computes, such as dense-s512, ",
        ),
        (
            &["ladder", "a03", "--workload", "dense-s512"],
            "--workload: expected one of deformable attention, which a03 computes, such as seed-full, ",
        ),
        (
            &["ladder", "--workload", "dense-decode"],
            "expected a workload of deformable attention, found one of dense attention",
        ),
        (
            &["ladder", "--workload", "nothing"],
            "nothing: expected a built-in workload",
        ),
    ] {
        let (code, stdout, stderr) = said(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{expected}: {stderr}");
        assert!(stdout.is_empty(), "{stdout}");
    }
    for (arguments, expected) in [
        (
            &["ladder", "--device", "cpu"][..],
            "ladder: expected to compute on a CUDA device, found the CPU\nhint: leave --device out",
        ),
        (&["ladder", "--set", "THREADS"], "NAME=VALUE"),
        (
            &["ladder", "--devices", "all", "--device", "cuda:1"],
            "'--devices <WHICH>' cannot be used with '--device <DEVICE>'",
        ),
    ] {
        let (code, _, stderr) = said(arguments);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}

#[test]
fn the_rest_of_the_command_is_there_and_tune_knows_the_rungs() {
    let (code, stdout, _) = said(&["--help"]);
    assert_eq!(code, Some(0));
    for subcommand in [" bench ", " tune ", " report ", " ladder "] {
        assert!(stdout.contains(subcommand), "{subcommand}: {stdout}");
    }
    let (code, stdout, _) = said(&["tune", "--space"]);
    assert_eq!(code, Some(0));
    for kernel in ["cpu-msda-forward", "a08", "d06"] {
        assert!(stdout.contains(kernel), "{kernel}: {stdout}");
    }
    for (arguments, code, expected) in [
        (
            &["tune", "a08", "--device", "cpu"][..],
            2,
            "a08: expected to compute on a CUDA device, found the CPU",
        ),
        (&["tune", "a08-chanels"], 1, "did you mean a08-channels?"),
        (
            &["tune", "d06", "--workload", "seed-full", "--device", "cpu"],
            2,
            "expected a problem of dense attention",
        ),
    ] {
        let (found, _, stderr) = said(arguments);
        assert_eq!(found, Some(code), "{stderr}");
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
    let (code, stdout, _) = said(&["completions", "bash"]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("--no-sanitizer"), "{stdout}");
}
