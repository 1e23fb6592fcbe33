//! What the command prints, word for word. `TRYCMD=overwrite cargo test -p fourtap-lab --test integration cli` accepts a change.

#[test]
fn prints_what_the_snapshots_say() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    trycmd::TestCases::new()
        .env("FOURTAP_CACHE_DIR", cache.path().to_string_lossy())
        // The same words on machines with a GPU.
        .env("CUDA_VISIBLE_DEVICES", "")
        .case("tests/cmd/*.trycmd")
        .run();
}
