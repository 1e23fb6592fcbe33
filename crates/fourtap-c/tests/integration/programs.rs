//! Programs in C and C++, the examples among them, built by the system's compiler against the header, with the shared and the static library, plain and under
//! AddressSanitizer, print the numbers that they say. Skipped without a compiler, unless `FOURTAP_REQUIRE_CC` is set.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Each program, and what it prints.
const PROGRAMS: [(&str, &str); 4] = [
    ("tests/integration/forks.c", "the child computed the same\n"),
    ("examples/first.c", "15\n"),
    (
        "examples/gradients.c",
        "0.25 0.375 0.375\n8 15\n\
         level_start_index[1]: expected a start from 0 to 1, so that 2 pixels fit, found 2\n",
    ),
    (
        "examples/attention.cpp",
        "10 15, log-sum-exp 0.000 0.693\n15, workspace of 0 bytes\n\
         interpolation: expected a fourtap_interpolation, found 7\n",
    ),
];

/// What a static library of Rust needs of the system.
const SYSTEM_LIBRARIES: [&str; 4] = ["-lpthread", "-ldl", "-lm", "-lgcc_s"];

#[test]
fn with_the_shared_library() {
    let folder = libraries();
    let here = format!("-Wl,-rpath,{}", folder.display());
    let library = [
        format!("-L{}", folder.display()),
        "-lfourtap_c".into(),
        here,
    ];
    build_and_run(&library, &[]);
}

#[test]
fn with_the_static_library() {
    let library = libraries().join("libfourtap_c.a");
    let library = [library.display().to_string()];
    build_and_run(&library, &SYSTEM_LIBRARIES);
}

#[test]
fn under_address_sanitizer() {
    let library = libraries().join("libfourtap_c.a");
    let library = [library.display().to_string(), "-fsanitize=address".into()];
    build_and_run(&library, &SYSTEM_LIBRARIES);
}

/// Where Cargo has put the library beside this test.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().to_path_buf()
}

fn build_and_run(library: &[String], more: &[&str]) {
    if !cfg!(target_os = "linux") {
        eprintln!("skipped: the options are those of compilers on Linux");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (source, expected) in PROGRAMS {
        let Some(program) = build(folder.path(), source, library, more) else {
            return;
        };
        let output = Command::new(program).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{source}: {words}");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            expected,
            "{source}"
        );
    }
}

/// The program, without a warning; none if there is no compiler.
fn build(folder: &Path, source: &str, library: &[String], more: &[&str]) -> Option<PathBuf> {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = Path::new(source);
    let (compiler, standard) = match source.extension().is_some_and(|it| it == "cpp") {
        true => ("c++", "-std=c++11"),
        false => ("cc", "-std=c99"),
    };
    let program = folder.join(source.file_stem().expect("a file"));
    let build = Command::new(compiler)
        .args([
            standard,
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-g",
            "-I",
        ])
        .arg(crate_folder.join("include"))
        .arg(crate_folder.join(source))
        .arg("-o")
        .arg(&program)
        .args(library)
        .args(more)
        .output();
    let output = match build {
        Ok(output) => output,
        Err(error) => {
            let required = std::env::var_os("FOURTAP_REQUIRE_CC").is_some();
            assert!(!required, "{compiler}: {error}");
            eprintln!("skipped: {compiler}: {error}");
            return None;
        }
    };
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {words}", source.display());
    Some(program)
}
