//! `fourtap ladder` where there is no GPU: what it lists, and what it says about what it cannot do.

mod common;

use common::fourtap;

fn said(arguments: &[&str]) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let outcome = fourtap(folder.path(), arguments);
    (outcome.code, outcome.stdout, outcome.stderr)
}

#[test]
fn every_idea_is_listed_with_what_can_be_set() {
    let (code, stdout, _) = said(&["ladder", "--list"]);
    assert_eq!(code, Some(0));
    for number in 1..=19 {
        let name = format!(" a{number:02}");
        assert!(stdout.contains(&name), "{name}: {stdout}");
    }
    for name in ["s1-shuffle", "s2-precomputed", "shipped", "THREADS="] {
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
    ] {
        let (code, _, stderr) = said(arguments);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}
