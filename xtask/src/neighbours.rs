//! The library with arrays of other crates. Apart from the other tests, because the library is built anew for them.

use crate::chore::cargo;

/// Lints, tests and examples with arrays of ndarray.
pub fn test() -> Result<(), String> {
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
