//! What the command prints, word for word. `TRYCMD=overwrite cargo test --test cli` accepts a change.

#[test]
fn prints_what_the_snapshots_say() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd");
}
