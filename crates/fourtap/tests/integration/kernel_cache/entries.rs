//! What was built once is found again, and an entry that is damaged or replaced is never believed.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use fourtap::cuda::jit::{JitError, State};

use super::kernels::{code, key, never, only_entry, open, warnings};

#[test]
fn a_second_get_does_not_build() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(&directory.path().join("a/b"));
    assert_eq!(
        cache.get_or_build(&key(1), || Ok(code(1, 50))),
        Ok(code(1, 50))
    );
    assert_eq!(
        cache.get_or_build(&key(2), || Ok(code(2, 0))),
        Ok(code(2, 0))
    );
    assert_eq!(cache.get_or_build(&key(1), never), Ok(code(1, 50)));
    assert_eq!(cache.get_or_build(&key(2), never), Ok(code(2, 0)));
    assert_eq!(warnings(), [""; 0]);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(cache.directory()), 0o700);
    assert_eq!(mode(&cache.entries().unwrap()[0].path), 0o600);
}

#[test]
fn a_failed_build_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    let error = JitError::Cubin {
        found: "nothing".into(),
    };
    let built = cache.get_or_build(&key(1), || Err(error.clone()));
    assert_eq!(built, Err(error));
    assert_eq!(cache.entries().unwrap(), []);
    assert_eq!(
        cache.get_or_build(&key(1), || Ok(code(1, 50))),
        Ok(code(1, 50))
    );
}

#[test]
fn damage_to_any_byte_is_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    let expected = code(1, 60);
    cache
        .get_or_build(&key(1), || Ok(expected.clone()))
        .unwrap();
    let path = only_entry(&cache);
    let sound = fs::read(&path).unwrap();

    let truncated = (0..sound.len()).map(|length| sound[..length].to_vec());
    let flipped = (0..sound.len()).map(|at| {
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << (at % 8);
        bytes
    });
    let longer = [sound.as_slice(), b"more"].concat();
    for damaged in truncated.chain(flipped).chain([longer]) {
        fs::write(&path, &damaged).unwrap();
        assert!(matches!(
            cache.entries().unwrap()[0].state,
            State::Damaged(_)
        ));
        let mut builds = 0;
        let built = cache.get_or_build(&key(1), || {
            builds += 1;
            Ok(expected.clone())
        });
        assert_eq!((built, builds), (Ok(expected.clone()), 1));
        let warnings = warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("kernel_1 is damaged") && !warnings[0].contains('\n'));
        assert_eq!(cache.get_or_build(&key(1), never).as_ref(), Ok(&expected));
    }
}

#[test]
fn an_entry_under_another_name_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    cache.get_or_build(&key(1), || Ok(code(1, 60))).unwrap();
    let first = only_entry(&cache);
    cache.get_or_build(&key(2), || Ok(code(2, 60))).unwrap();
    let entries = cache.entries().unwrap();
    fs::copy(&first, &entries[1].path).unwrap();
    assert_eq!(cache.verify(false).unwrap().len(), 1);
    let built = cache.get_or_build(&key(2), || Ok(code(2, 60)));
    assert_eq!(built, Ok(code(2, 60)));
    assert!(warnings()[0].contains("another kernel"));
}

#[test]
fn something_else_at_the_entrys_place_is_survived() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    cache.get_or_build(&key(1), || Ok(code(1, 60))).unwrap();
    let path = only_entry(&cache);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    for _ in 0..2 {
        let built = cache.get_or_build(&key(1), || Ok(code(1, 60)));
        assert_eq!(built, Ok(code(1, 60)));
    }
    // A directory cannot be replaced: two say damaged, one in all that the cache cannot be written to.
    assert_eq!(warnings().len(), 3);
    fs::remove_dir(&path).unwrap();

    let outside = directory.path().join("outside");
    fs::write(&outside, "precious").unwrap();
    symlink(&outside, &path).unwrap();
    let built = cache.get_or_build(&key(1), || Ok(code(1, 60)));
    assert_eq!(built, Ok(code(1, 60)));
    assert_eq!(cache.get_or_build(&key(1), never), Ok(code(1, 60)));
    assert_eq!(fs::read(&outside).unwrap(), b"precious");
}

#[test]
fn a_pipe_at_the_entrys_place_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    cache.get_or_build(&key(1), || Ok(code(1, 60))).unwrap();
    let path = only_entry(&cache);
    fs::remove_file(&path).unwrap();
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let built = cache.get_or_build(&key(1), || Ok(code(1, 60)));
    assert_eq!(built, Ok(code(1, 60)));
    assert!(warnings()[0].contains("not a file"));
    assert_eq!(cache.get_or_build(&key(1), never), Ok(code(1, 60)));
}

#[test]
fn a_build_removes_what_a_killed_one_left() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    cache.get_or_build(&key(1), || Ok(code(1, 60))).unwrap();
    let path = only_entry(&cache);
    let part = path.with_extension("Ab3.cubin-part");
    fs::rename(&path, &part).unwrap();
    cache.get_or_build(&key(2), || Ok(code(2, 60))).unwrap();
    assert!(part.exists(), "another kernel's part is not its to remove");
    cache.get_or_build(&key(1), || Ok(code(1, 60))).unwrap();
    assert!(!part.exists());
}
