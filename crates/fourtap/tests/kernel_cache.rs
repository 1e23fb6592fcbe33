//! The cache of compiled kernels gives right code whatever happens to its files and its processes.
#![cfg(all(feature = "cuda", unix))]

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use fourtap::cuda::jit::{
    Architecture, Cache, CacheKey, JitError, NvrtcVersion, Program, PruneLimits, State,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

const VERSION: NvrtcVersion = NvrtcVersion {
    major: 13,
    minor: 0,
};
/// A user that is neither root nor the one who runs the tests.
const NOBODY: u32 = 65534;

fn key(number: usize) -> CacheKey {
    let program = Program {
        name: format!("kernel_{number}"),
        source: format!("source of kernel {number}"),
        options: vec!["-DD=32".into()],
        architecture: Architecture::of_device(9, 0),
    };
    program.cache_key(VERSION)
}

/// Code that differs from key to key in every part.
fn code(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 + number * 31) as u8).collect()
}

fn never() -> Result<Vec<u8>, JitError> {
    panic!("built although the cache has it")
}

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A cache whose warnings this thread collects.
fn open(directory: &Path) -> Cache {
    let cache = Cache::at(directory).unwrap();
    cache.with_warnings(|text| WARNINGS.with_borrow_mut(|all| all.push(text.to_owned())))
}

fn warnings() -> Vec<String> {
    WARNINGS.take()
}

fn only_entry(cache: &Cache) -> PathBuf {
    let entries = cache.entries().unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].path.clone()
}

fn names_in(directory: &Path) -> Vec<String> {
    let items = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = items
        .map(|item| item.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// This program again, in one of the roles of [`child`].
fn child_command(role: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    in_role(&mut command, role, directory);
    command
}

fn in_role(command: &mut Command, role: &str, directory: &Path) {
    command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("KERNEL_CACHE_ROLE", role)
        .env("KERNEL_CACHE_DIRECTORY", directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

/// Not a test of its own: what the other tests run in processes of their own.
#[test]
fn child() {
    let Ok(role) = std::env::var("KERNEL_CACHE_ROLE") else {
        return;
    };
    let directory = PathBuf::from(std::env::var_os("KERNEL_CACHE_DIRECTORY").unwrap());
    match role.as_str() {
        "once" => {
            let cache = Cache::at(&directory.join("cache")).unwrap();
            while !directory.join("go").exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let built = cache.get_or_build(&key(0), || slow_build(&directory));
            assert_eq!(built, Ok(code(0, 1000)));
        }
        "forever" => {
            let cache = Cache::at(&directory).unwrap();
            println!("ready");
            for round in 0.. {
                let number = round % 4;
                let build = || Ok(code(number, 300_000));
                let built = cache.get_or_build(&key(number), build);
                assert_eq!(built, Ok(code(number, 300_000)));
                if number == 3 {
                    cache.clear().unwrap();
                }
            }
        }
        "unwritable" => {
            let cache = Cache::at(&directory).unwrap();
            for number in 0..3 {
                let mut builds = 0;
                let built = cache.get_or_build(&key(number), || {
                    builds += 1;
                    Ok(code(number, 100_000))
                });
                assert_eq!(built, Ok(code(number, 100_000)));
                println!("kernel {number}: {builds} builds");
            }
        }
        other => panic!("no role {other}"),
    }
}

/// Leaves a mark in a file, then takes a while.
fn slow_build(directory: &Path) -> Result<Vec<u8>, JitError> {
    let mut options = File::options();
    let mut marks = options
        .append(true)
        .create(true)
        .open(directory.join("builds"))
        .unwrap();
    marks.write_all(b"x").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    Ok(code(0, 1000))
}

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

#[test]
fn a_removed_directory_comes_back() {
    let parent = tempfile::tempdir().unwrap();
    let cache = open(&parent.path().join("cache"));
    fs::remove_dir(cache.directory()).unwrap();
    cache.get_or_build(&key(1), || Ok(code(1, 60))).unwrap();
    assert_eq!(cache.get_or_build(&key(1), never), Ok(code(1, 60)));
    assert_eq!(warnings(), [""; 0]);
}

#[test]
fn sixteen_processes_build_once() {
    let directory = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..16)
        .map(|_| child_command("once", directory.path()).spawn().unwrap())
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    fs::write(directory.path().join("go"), "").unwrap();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stderr, b"");
    }
    assert_eq!(fs::read(directory.path().join("builds")).unwrap(), b"x");
}

#[test]
fn sixteen_threads_build_once() {
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let cache = open(&directory.path().join("cache"));
                let built = cache.get_or_build(&key(0), || slow_build(directory.path()));
                assert_eq!(built, Ok(code(0, 1000)));
            });
        }
    });
    assert_eq!(fs::read(directory.path().join("builds")).unwrap(), b"x");
}

#[test]
fn patience_with_a_stuck_process_ends() {
    let directory = tempfile::tempdir().unwrap();
    let slow = open(directory.path());
    let (begun, wait) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            slow.get_or_build(&key(1), || {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(600));
                Ok(code(1, 60))
            })
        });
        wait.recv().unwrap();
        let hasty = open(directory.path()).with_patience(Duration::from_millis(30));
        let start = Instant::now();
        let built = hasty.get_or_build(&key(1), || Ok(code(1, 60)));
        assert_eq!(built, Ok(code(1, 60)));
        assert!(start.elapsed() < Duration::from_millis(500));
        assert!(warnings()[0].contains("cannot lock"));
        let cleared = hasty.clear().unwrap();
        assert_eq!((cleared.entries, cleared.busy), (1, 1));
    });
    assert_eq!(
        open(directory.path()).get_or_build(&key(1), never),
        Ok(code(1, 60))
    );
}

#[test]
fn killed_processes_leave_neither_wrong_code_nor_locks() {
    let seed = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path()).with_patience(Duration::from_secs(10));
    let mut left_behind = 0;
    for round in 0..200 {
        let mut child = child_command("forever", directory.path()).spawn().unwrap();
        await_ready(&mut child);
        std::thread::sleep(Duration::from_micros(rng.random_range(0..30_000)));
        child.kill().unwrap();
        child.wait().unwrap();

        let parts = names_in(directory.path());
        left_behind += parts.iter().filter(|name| name.ends_with("-part")).count();
        assert_eq!(cache.verify(false), Ok(vec![]), "round {round}");
        let number = rng.random_range(0..4);
        let start = Instant::now();
        let built = cache.get_or_build(&key(number), || Ok(code(number, 300_000)));
        assert!(built == Ok(code(number, 300_000)), "round {round}");
        assert!(start.elapsed() < Duration::from_secs(5), "round {round}");
        assert_eq!(warnings(), [""; 0], "round {round}");
    }
    assert!(left_behind > 0, "no child was killed while it wrote");
    let cleared = cache.clear().unwrap();
    assert_eq!(cleared.busy, 0);
    assert_eq!(names_in(directory.path()), [""; 0]);
}

/// Waits until the child is past its start, which is not what is to be killed.
fn await_ready(child: &mut std::process::Child) {
    use std::io::{BufRead, BufReader};
    let output = child.stdout.as_mut().unwrap();
    let ready = BufReader::new(output)
        .lines()
        .any(|line| line.unwrap().ends_with("ready"));
    assert!(ready);
}

#[test]
fn directories_others_can_write_to_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    fs::create_dir(&path).unwrap();
    for (mode, safe) in [
        (0o700, true),
        (0o755, true),
        (0o770, false),
        (0o720, false),
        (0o702, false),
        (0o1777, false),
    ] {
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        match Cache::at(&path) {
            Ok(_) => assert!(safe, "{mode:o}"),
            Err(error) => {
                assert!(!safe, "{mode:o}");
                let text = error.to_string();
                assert!(matches!(error, JitError::CacheUnsafe { .. }), "{text}");
                assert!(text.contains(&format!("{mode:04o}")), "{text}");
            }
        }
    }
    // Root may give its directory away; others look at one of root's.
    let foreign = match chown(&path, Some(NOBODY), None) {
        Ok(()) => path.as_path(),
        Err(_) => Path::new("/usr"),
    };
    fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap_or_default();
    let error = Cache::at(foreign).unwrap_err();
    assert!(error.to_string().contains("owned by user"), "{error}");
}

#[test]
fn a_file_in_the_directorys_place_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Cache::at(file.path()).unwrap_err();
    let name = file.path().to_str().unwrap();
    assert!(error.to_string().contains(name), "{error}");
}

fn builds_despite(mut command: Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    for number in 0..3 {
        let line = format!("kernel {number}: 1 builds");
        assert!(stdout.contains(&line), "{stdout}");
    }
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("fourtap: warning: cannot"), "{stderr}");
}

#[test]
fn a_read_only_directory_costs_one_warning() {
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let directory = parent.path().join("cache");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o500)).unwrap();
    let mut command = child_command("unwritable", &directory);
    // To root nothing is read-only.
    if fs::metadata(&directory).unwrap().uid() == 0 {
        chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
        command.uid(NOBODY).gid(NOBODY);
        let mut probe = Command::new(std::env::current_exe().unwrap());
        probe.arg("--list").stdout(Stdio::null());
        if probe.uid(NOBODY).gid(NOBODY).status().is_err() {
            println!("skipped: only root may run this test's program");
            return;
        }
    }
    builds_despite(command);
    assert_eq!(names_in(&directory), [""; 0]);
}

#[test]
fn a_full_disk_costs_one_warning() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    // Files may not grow beyond 8 or 16 KiB, and trying is an error instead of death.
    command
        .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap());
    in_role(&mut command, "unwritable", directory.path());
    builds_despite(command);
    let names = names_in(directory.path());
    assert!(
        names.iter().all(|name| name.ends_with("-lock")),
        "{names:?}"
    );
}

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
