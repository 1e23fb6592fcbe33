//! The library with arrays and tensors of other crates. Apart from the other tests, because the library is built anew for them.

use crate::chore::cargo;

/// Lints, tests, documentation and examples.
pub fn test() -> Result<(), String> {
    test_ndarray()?;
    test_candle()
}

fn test_ndarray() -> Result<(), String> {
    let with_ndarray = ["--locked", "-p", "fourtap", "--features", "ndarray"];
    cargo(["clippy"])
        .arguments(&with_ndarray)
        .arguments(&["--all-targets", "--", "-D", "warnings"])
        .step("lints with ndarray")?;
    cargo(["test"])
        .arguments(&with_ndarray)
        .arguments(&["--test", "integration", "ndarray_views"])
        .step("tests with ndarray")?;
    cargo(["test"])
        .arguments(&with_ndarray)
        .arguments(&["--doc", "from_ndarray"])
        .step("examples in documentation with ndarray")?;
    cargo(["run"])
        .arguments(&with_ndarray)
        .arguments(&["--example", "ndarray"])
        .step("example with ndarray")
}

fn test_candle() -> Result<(), String> {
    let candle = ["--locked", "-p", "fourtap-candle"];
    cargo(["clippy"])
        .arguments(&candle)
        .arguments(&["--all-targets", "--", "-D", "warnings"])
        .step("lints with candle")?;
    cargo(["test"])
        .arguments(&candle)
        .step("tests with candle")?;
    cargo(["doc", "--no-deps", "--document-private-items"])
        .arguments(&candle)
        .variable("RUSTDOCFLAGS", "-D warnings")
        .step("documentation with candle")?;
    cargo(["run"])
        .arguments(&candle)
        .arguments(&["--example", "fit"])
        .step("example with candle")
}
