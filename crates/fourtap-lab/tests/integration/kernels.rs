//! `fourtap cache` and `fourtap bake`: looking after compiled kernels, none of which needs a GPU.

use std::fs;
use std::path::Path;

use crate::common::{self, Outcome, command, fourtap};
use fourtap::cuda::jit::{
    Architecture, Cache, Fingerprint, Nvrtc, NvrtcBuild, NvrtcVersion, Pack, Program,
};
use tempfile::TempDir;

/// A cache of kernels by these names.
fn cache_of(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path()).unwrap();
    for name in names {
        let program = Program {
            name: name.to_string(),
            source: name.to_string(),
            options: Vec::new(),
            architecture: Architecture::of_device(9, 0),
        };
        let key = program.cache_key(NvrtcBuild {
            version: NvrtcVersion {
                major: 13,
                minor: 0,
            },
            id: Fingerprint::from_bytes([5; 32]),
        });
        cache.get_or_build(&key, || Ok(vec![7; 1000])).unwrap();
    }
    folder
}

fn on_cache(folder: &Path, arguments: &[&str]) -> Outcome {
    let mut command = command(folder);
    command.env("FOURTAP_CACHE_DIR", folder);
    let output = command.arg("cache").args(arguments).output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let outcome = on_cache(folder, arguments);
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
    assert_eq!(outcome.stderr, "", "{arguments:?}");
    outcome.stdout
}

fn record(folder: &Path, arguments: &[&str]) -> serde_json::Value {
    let text = succeeds(folder, &[arguments, &["--json"]].concat());
    serde_json::from_str(&text).unwrap()
}

/// The cache's file for the kernel of this name.
fn file_of(folder: &Path, name: &str) -> std::path::PathBuf {
    let record = record(folder, &["list"]);
    let kernels = record["kernels"].as_array().unwrap();
    let kernel = kernels.iter().find(|kernel| kernel["name"] == name);
    kernel.unwrap()["file"].as_str().unwrap().into()
}

#[test]
fn lists_and_counts_kernels() {
    let folder = cache_of(&["forward-a", "forward-b"]);
    let listed = succeeds(folder.path(), &["list"]);
    for part in ["forward-a", "forward-b", "sm_90a", "13.0", "2 kernels, "] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    assert!(listed.lines().all(
        |line| line.chars().count() <= 100 || line.contains(&*folder.path().to_string_lossy())
    ));
    let size = record(folder.path(), &["size"]);
    assert_eq!(size["count"], 2);
    assert!(size["bytes"].as_u64() >= Some(2000));
}

#[test]
fn says_which_kernel_is_damaged_and_removes_it_when_told() {
    let folder = cache_of(&["sound", "broken"]);
    let file = file_of(folder.path(), "broken");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();

    let outcome = on_cache(folder.path(), &["verify"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome.stdout.starts_with("1 of 2 kernels damaged\n"),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.contains("hint: remove them with --remove"),
        "{outcome:?}"
    );
    assert!(succeeds(folder.path(), &["list"]).contains("damaged"));

    let removed = succeeds(folder.path(), &["verify", "--remove"]);
    assert!(
        removed.starts_with("1 of 2 kernels damaged, and removed\n"),
        "{removed}"
    );
    assert_eq!(
        succeeds(folder.path(), &["verify"]),
        "0 of 1 kernel damaged\n"
    );
}

#[test]
fn prunes_to_a_size_and_clears() {
    let folder = cache_of(&["a", "b", "c"]);
    let kept = record(folder.path(), &["prune", "--max-age", "30d"]);
    assert_eq!(kept["count"], 0);
    let removed = record(folder.path(), &["prune", "--max-size", "2.5kB"]);
    assert_eq!(removed["count"], 1, "{removed}");
    let cleared = record(folder.path(), &["clear"]);
    assert_eq!(
        (&cleared["count"], &cleared["busy"]),
        (&2.into(), &0.into())
    );
    assert!(succeeds(folder.path(), &["list"]).starts_with("0 kernels, 0 B in "));
}

#[test]
fn looking_at_a_cache_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    for arguments in [
        &["cache", "list"][..],
        &["cache", "size"],
        &["cache", "verify"],
        &["cache", "prune", "--max-size", "1MB"],
        &["cache", "clear"],
        &["doctor"],
    ] {
        let mut command = common::command(folder.path());
        command.env_remove("FOURTAP_CACHE_DIR").env("HOME", &home);
        let command = command.env_remove("XDG_CACHE_HOME").args(arguments);
        let outcome = common::outcome(command);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(outcome.stdout.contains("0 kernels"), "{outcome:?}");
        assert!(!home.exists(), "{arguments:?}");
    }
}

#[test]
fn says_that_the_cache_is_off() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = fourtap(folder.path(), ["cache", "list"]);
    common::fails("off", &outcome, "hint: FOURTAP_CACHE_DIR is empty or off");
}

/// Whether the command will find NVRTC, as this process does. `FOURTAP_REQUIRE_NVRTC` makes none a failure.
fn there_is_nvrtc() -> bool {
    let found = Nvrtc::get();
    let required = std::env::var_os("FOURTAP_REQUIRE_NVRTC").is_some();
    assert!(found.is_ok() || !required, "{found:?}");
    found.is_ok()
}

const BAKE: [&str; 13] = [
    "bake",
    "--arch",
    "sm_90a",
    "--channels",
    "32",
    "--heads",
    "8",
    "--levels",
    "4",
    "--points",
    "4",
    "-o",
    "kernels.pack",
];

#[test]
fn bakes_a_pack_of_sound_kernels() {
    if !there_is_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kernels.pack"), "replaced").unwrap();
    let arguments = BAKE
        .iter()
        .chain(&["--dtype", "f16", "--jobs", "2", "--json"]);
    let outcome = fourtap(folder.path(), arguments);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let record: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let pack = Pack::open(&folder.path().join("kernels.pack")).unwrap();
    pack.verify().unwrap();
    let names: Vec<_> = pack.list().map(|entry| entry.name.as_str()).collect();
    assert_eq!(record["kernels"].as_array().unwrap().len(), names.len());
    // One thread per channel, dense and strided; gather for many rows and for few; every step of backward.
    for part in [
        "forward-channel-f16",
        "strided",
        "forward-gather-f16-d32-l4-p4",
        "split2",
        "backward-sort",
        "backward-value-channel-f16",
        "backward-value-matrix-f16",
        "backward-value-search-f16",
        "backward-samples-channel-f16",
        "backward-samples-gather-f16-d32-l4-p4",
        "backward-samples-matrix-f16-d32-l4-p4",
        // From projections: points and boxes.
        "references-f32",
        "boxes-f32",
    ] {
        assert!(
            names.iter().any(|name| name.contains(part)),
            "{part}: {names:?}"
        );
    }
    assert_eq!(
        common::names(folder.path()).len(),
        1,
        "nothing else is left"
    );
}

#[test]
fn refuses_to_bake_nonsense() {
    if !there_is_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bake = |from: &str, to: &str| {
        let arguments = BAKE.map(|one| if one == from { to } else { one });
        fourtap(folder.path(), arguments)
    };
    let wrong = [
        ("sm_90a", "sm_90", Some(2), "--arch sm_90: expected sm_90a"),
        (
            "sm_90a",
            "sm_20",
            Some(1),
            "--arch: sm_20: expected an architecture NVRTC",
        ),
        ("sm_90a", "hopper", Some(2), "for '--arch <NAME>'"),
        ("32", "0", Some(2), "for '--channels <D>'"),
        (
            "kernels.pack",
            ".",
            Some(1),
            ".: expected a file, found a folder",
        ),
        (
            "kernels.pack",
            "no/where",
            Some(1),
            "hint: make the folder first",
        ),
    ];
    for (from, to, code, expected) in wrong {
        let outcome = bake(from, to);
        assert_eq!(outcome.code, code, "{to}: {outcome:?}");
        assert!(outcome.stderr.contains(expected), "{to}: {outcome:?}");
        assert_eq!(
            common::names(folder.path()).len(),
            0,
            "{to}: something was left behind"
        );
    }
}
