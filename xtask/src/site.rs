//! The documentation as a site: pages from docs/, the Python API from docstrings.

use crate::environment;

/// As last seen to work together; about 80 MB. Ruff formats signatures.
const PACKAGES: [&str; 4] = [
    "mkdocs==1.6.1",
    "mkdocs-material==9.8.1",
    "mkdocstrings-python==2.0.10",
    "ruff==0.17.4",
];

/// Builds it into target/site. A link or an anchor that leads nowhere fails.
pub fn build(options: &[String]) -> Result<(), String> {
    let environment = environment::of_packages("site", &PACKAGES)?;
    environment
        .python(&["-m", "mkdocs", "build", "--config-file", "site/mkdocs.yml"])
        .arguments(options)
        // The theme's notice that it is maintained until May 2027, of which CONTRIBUTING.md speaks.
        .variable("NO_MKDOCS_2_WARNING", "1")
        .run()
}
