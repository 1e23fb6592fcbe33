//! Directories that are unsafe, gone, read-only or full.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use fourtap::cuda::jit::{Cache, ClearSummary, JitError, PruneLimits};

use super::child::{child_command, in_role};
use super::kernels::{code, key, names_in, never, open, warnings};

/// A user that is neither root nor the one who runs the tests.
const NOBODY: u32 = 65534;

#[test]
fn a_removed_directory_comes_back() {
    let parent = tempfile::tempdir().unwrap();
    let cache = open(&parent.path().join("cache"));
    cache.get_or_build(&key(2), || Ok(code(2, 60))).unwrap();
    fs::remove_dir_all(cache.directory()).unwrap();
    cache.get_or_build(&key(1), || Ok(code(1, 60))).unwrap();
    assert_eq!(cache.get_or_build(&key(1), never), Ok(code(1, 60)));
    assert_eq!(warnings(), [""; 0]);
}

#[test]
fn only_a_kernel_creates_the_directory() {
    let parent = tempfile::tempdir().unwrap();
    let cache = open(&parent.path().join("home/.cache/fourtap/kernels"));
    assert_eq!(cache.entries().unwrap(), []);
    assert_eq!(cache.size(), Ok(0));
    assert_eq!(cache.verify(true).unwrap(), []);
    assert_eq!(cache.prune(PruneLimits::default()).unwrap(), []);
    assert_eq!(cache.clear(), Ok(ClearSummary::default()));
    assert_eq!(names_in(parent.path()), [""; 0]);
    cache.get_or_build(&key(1), || Ok(code(1, 60))).unwrap();
    assert_eq!(cache.entries().unwrap().len(), 1);
    assert_eq!(warnings(), [""; 0]);
}

#[test]
fn a_directory_that_appears_later_is_checked_before_it_is_read() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("cache");
    let cache = open(&path);
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    let built = cache.get_or_build(&key(1), || Ok(code(1, 60)));
    assert_eq!(built, Ok(code(1, 60)));
    assert_eq!(names_in(&path), [""; 0]);
    assert_eq!(warnings().len(), 1);
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
