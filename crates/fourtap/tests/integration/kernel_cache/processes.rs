//! Processes and threads that want the same kernel at once, get stuck or are killed.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::child::{child_command, slow_build};
use super::kernels::{code, key, names_in, never, open, warnings};

#[test]
fn sixteen_processes_build_once() {
    processes_build_once(16);
}

#[test]
#[ignore = "long: 32 processes"]
fn thirty_two_processes_build_once() {
    processes_build_once(32);
}

fn processes_build_once(processes: usize) {
    let directory = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..processes)
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
    kill_processes(100);
}

#[test]
#[ignore = "long: 1,000 processes"]
fn a_thousand_killed_processes_leave_neither_wrong_code_nor_locks() {
    kill_processes(1000);
}

fn kill_processes(rounds: usize) {
    let seed = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path()).with_patience(Duration::from_secs(10));
    let mut left_behind = 0;
    for round in 0..rounds {
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
