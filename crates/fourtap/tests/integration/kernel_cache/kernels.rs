//! Made-up kernels, and a cache of them whose warnings the test that opened it can read.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use fourtap::cuda::jit::{
    Architecture, Cache, CacheKey, Fingerprint, JitError, NvrtcBuild, NvrtcVersion, Program,
};

pub const VERSION: NvrtcVersion = NvrtcVersion {
    major: 13,
    minor: 0,
};

pub fn key(number: usize) -> CacheKey {
    let program = Program {
        name: format!("kernel_{number}"),
        source: format!("source of kernel {number}"),
        options: vec!["-DD=32".into()],
        architecture: Architecture::of_device(9, 0),
    };
    program.cache_key(NvrtcBuild {
        version: VERSION,
        id: Fingerprint::from_bytes([5; 32]),
    })
}

/// Code that differs from key to key in every part.
pub fn code(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 + number * 31) as u8).collect()
}

pub fn never() -> Result<Vec<u8>, JitError> {
    panic!("built although the cache has it")
}

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A cache whose warnings this thread collects.
pub fn open(directory: &Path) -> Cache {
    let cache = Cache::at(directory).unwrap();
    cache.with_warnings(|text| WARNINGS.with_borrow_mut(|all| all.push(text.to_owned())))
}

pub fn warnings() -> Vec<String> {
    WARNINGS.take()
}

pub fn only_entry(cache: &Cache) -> PathBuf {
    let entries = cache.entries().unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].path.clone()
}

pub fn names_in(directory: &Path) -> Vec<String> {
    let items = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = items
        .map(|item| item.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
