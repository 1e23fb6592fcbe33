//! Clearing, pruning and verifying remove what they should and nothing else.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use fourtap::cuda::jit::{Architecture, PruneLimits};

use super::kernels::{VERSION, code, key, names_in, never, open};

#[test]
fn clear_leaves_foreign_files_alone() {
    let parent = tempfile::tempdir().unwrap();
    let outside = parent.path().join("outside");
    fs::write(&outside, "precious").unwrap();
    let cache = open(&parent.path().join("cache"));
    for number in 0..3 {
        cache
            .get_or_build(&key(number), || Ok(code(number, 100)))
            .unwrap();
    }
    let entries = cache.entries().unwrap();
    let size: u64 = entries.iter().map(|entry| entry.size).sum();
    assert_eq!(cache.size(), Ok(size));
    let stem = entries[0].path.with_extension("");
    fs::write(stem.with_extension("Ab3.cubin-part"), "half an ent").unwrap();

    let foreign = cache.directory();
    fs::write(foreign.join("notes.txt"), "").unwrap();
    fs::write(foreign.join("notes.cubin-entry"), "").unwrap();
    let hash = "0".repeat(64);
    let link = format!("link-{hash}.cubin-entry");
    symlink(&outside, foreign.join(&link)).unwrap();
    let folder = format!("folder-{hash}.cubin-entry");
    fs::create_dir(foreign.join(&folder)).unwrap();

    let cleared = cache.clear().unwrap();
    assert_eq!((cleared.entries, cleared.bytes, cleared.busy), (3, size, 0));
    let left = [&folder, &link, "notes.cubin-entry", "notes.txt"];
    assert_eq!(names_in(foreign), left);
    assert_eq!(fs::read(&outside).unwrap(), b"precious");
}

#[test]
fn prune_removes_what_was_unused_for_longest() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    let hour = Duration::from_secs(3600);
    for number in 0..4 {
        cache
            .get_or_build(&key(number), || Ok(code(number, 1000)))
            .unwrap();
    }
    let entries = cache.entries().unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(names, ["kernel_0", "kernel_1", "kernel_2", "kernel_3"]);
    assert_eq!(entries[0].architecture, Some(Architecture::of_device(9, 0)));
    assert_eq!(entries[0].nvrtc, Some(VERSION));
    for (entry, hours) in entries.iter().zip(1..) {
        let file = File::open(&entry.path).unwrap();
        file.set_modified(SystemTime::now() - hour * hours).unwrap();
    }
    // The oldest becomes the youngest by being used.
    cache.get_or_build(&key(3), never).unwrap();

    let removed = |limits| -> Vec<String> {
        let removed = cache.prune(limits).unwrap();
        removed.into_iter().map(|entry| entry.name).collect()
    };
    assert_eq!(removed(PruneLimits::default()), [""; 0]);
    let max_age = Some(hour * 5 / 2);
    let limits = PruneLimits {
        max_age,
        max_bytes: None,
    };
    assert_eq!(removed(limits), ["kernel_2"]);
    let limits = PruneLimits {
        max_bytes: Some(entries[0].size * 2),
        max_age,
    };
    assert_eq!(removed(limits), ["kernel_1"]);
    // Two entries and their locks are left, each in use.
    assert_eq!(names_in(directory.path()).len(), 4);
    let limits = PruneLimits {
        max_bytes: Some(0),
        max_age: None,
    };
    assert_eq!(removed(limits), ["kernel_0", "kernel_3"]);
    assert_eq!(names_in(directory.path()), [""; 0]);
}

#[test]
fn verify_lists_and_removes_the_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    for number in 0..3 {
        cache
            .get_or_build(&key(number), || Ok(code(number, 1000)))
            .unwrap();
    }
    let path = cache.entries().unwrap()[1].path.clone();
    fs::write(&path, "junk").unwrap();
    for remove in [false, true] {
        let damaged = cache.verify(remove).unwrap();
        assert_eq!(damaged.len(), 1);
        assert_eq!(damaged[0].name, "kernel_1");
        assert_eq!(path.exists(), !remove);
    }
    assert_eq!(cache.verify(true), Ok(vec![]));
    assert_eq!(cache.entries().unwrap().len(), 2);
}
