//! This program again as a process of its own, which can be killed, limited or run as another user.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fourtap::cuda::jit::{Cache, JitError};

use super::kernels::{code, key};

/// This program again, in one of the roles of [`child`].
pub fn child_command(role: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    in_role(&mut command, role, directory);
    command
}

pub fn in_role(command: &mut Command, role: &str, directory: &Path) {
    command
        .args([
            "--exact",
            "kernel_cache::child::child",
            "--ignored",
            "--nocapture",
        ])
        .env("KERNEL_CACHE_ROLE", role)
        .env("KERNEL_CACHE_DIRECTORY", directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

/// What the other tests run in processes of their own.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
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
pub fn slow_build(directory: &Path) -> Result<Vec<u8>, JitError> {
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
