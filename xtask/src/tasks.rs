//! The tasks by name, with their help and the options that they take.

use crate::{bundle, c_library, false_alarms, packs, parts, python, rust, site, test};

/// A task of `cargo xtask`.
pub struct Task {
    pub name: &'static str,
    /// What may stand after the name.
    usage: &'static str,
    /// Lines of help.
    help: &'static [&'static str],
    options: Options,
    pub run: fn(&[String]) -> Result<(), String>,
}

/// What a task does with the words after its name.
enum Options {
    /// It takes these and no other words.
    Only(&'static [&'static str]),
    /// Words go to what it runs, or the task looks at them itself.
    Passed,
}

/// What was asked for on the command line.
pub enum Request<'a> {
    /// Help for one task or, without one, for all.
    Help(Option<&'static Task>),
    /// To run a task with these words.
    Run(&'static Task, &'a [String]),
}

pub const TASKS: [Task; 10] = [
    Task {
        name: "test",
        usage: "[--all | --changed] [--rust] [TEST...]",
        help: &[
            "everything that catches mistakes: formatting, lints, features, tests, documentation, Python.",
            "--all adds the long-running parts, --changed those of them whose files have changed since they were",
            "last tested; --rust leaves Python out; TEST and other options go to the test programs.",
            "Needs no GPU. Installs NVRTC, PyTorch and transformers (6 GB) once per machine, into the user's",
            "cache folder or FOURTAP_ENVIRONMENTS.",
        ],
        options: Options::Passed,
        run: test::run,
    },
    Task {
        name: "changed",
        usage: "",
        help: &["the parts that test --changed would run"],
        options: Options::Only(&[]),
        run: |_| {
            for part in parts::chosen(parts::Choice::Changed)? {
                println!("{}", part.name);
            }
            Ok(())
        },
    },
    Task {
        name: "miri",
        usage: "",
        help: &[
            "the CPU code on small problems under Miri; needs a nightly toolchain with the components miri and rust-src",
        ],
        options: Options::Only(&[]),
        run: |_| rust::miri(),
    },
    Task {
        name: "wheel",
        usage: "[OPTION...]",
        help: &[
            "the Python package for this system, on Linux for any with glibc 2.28, into target/wheels.",
            "Options go to `maturin build`",
        ],
        options: Options::Passed,
        run: |options| python::wheel(options).map(|wheel| println!("{}", wheel.display())),
    },
    Task {
        name: "packs",
        usage: "[--arch sm_80,sm_90a] [--only TEXT] [--jobs N] [--test]",
        help: &[
            "the Python package fourtap-kernels, the kernels of usual calls compiled for all architectures or",
            "those named, into target/packs/dist; --test installs one with two kernels beside fourtap",
        ],
        options: Options::Passed,
        run: packs::run,
    },
    Task {
        name: "c-library",
        usage: "[--test]",
        help: &[
            "the library for C and C++ with its header and files for pkg-config and CMake, into target/c;",
            "--test builds the examples with it",
        ],
        options: Options::Only(&["--test"]),
        run: |options| match options.is_empty() {
            true => c_library::build().map(|prefix| println!("{}", prefix.display())),
            false => c_library::test(),
        },
    },
    Task {
        name: "site",
        usage: "[OPTION...]",
        help: &[
            "the documentation as a site, into target/site; every link is checked. Options go to `mkdocs build`",
        ],
        options: Options::Passed,
        run: site::build,
    },
    Task {
        name: "gpu-bundle",
        usage: "",
        help: &[
            "one folder with all that must be run on a GPU, for machines without Rust or network",
        ],
        options: Options::Only(&[]),
        run: |_| bundle::make(),
    },
    Task {
        name: "compare-pytorch",
        usage: "[dense] [OPTION...]",
        help: &[
            "time fourtap and PyTorch's grid_sample side by side on the CPU; compare-pytorch dense: dense attention",
            "and scaled_dot_product_attention. Options go to crates/fourtap-lab/scripts/compare_pytorch.py or",
            "compare_sdpa.py",
        ],
        options: Options::Passed,
        run: python::compare,
    },
    Task {
        name: "false-alarms",
        usage: "[turns] [single] [slowed] [OPTION...]",
        help: &[
            "how often a build compared with itself is called slower or faster on this machine: in turns",
            "(turns), by single runs (single), and made slower on purpose (slowed); --pairs N of each,",
            "--slowdown 0.1, --program FOURTAP (built with fault-injection), --output FOLDER",
        ],
        options: Options::Passed,
        run: false_alarms::run,
    },
];

impl<'a> Request<'a> {
    /// What these words ask for. A task that would ignore a word is not run: it may take an hour.
    pub fn new(words: &'a [String]) -> Result<Self, String> {
        let Some((name, rest)) = words.split_first() else {
            return Ok(Request::Help(None));
        };
        if is_help(name) || name == "help" {
            return match rest.first() {
                Some(name) => Ok(Request::Help(Some(task(name)?))),
                None => Ok(Request::Help(None)),
            };
        }
        let task = task(name)?;
        // What follows a `--` is for a program that the task runs.
        if rest.iter().take_while(|word| *word != "--").any(is_help) {
            return Ok(Request::Help(Some(task)));
        }
        match (&task.options, rest) {
            (Options::Only([]), [word, ..]) => {
                Err(format!("{name}: expected nothing more, found {word:?}"))
            }
            (Options::Only(known), words) => {
                match words.iter().find(|word| !known.contains(&word.as_str())) {
                    Some(word) => Err(format!(
                        "{name}: expected {}, found {word:?}",
                        known.join(" or ")
                    )),
                    None => Ok(Request::Run(task, rest)),
                }
            }
            (Options::Passed, _) => Ok(Request::Run(task, rest)),
        }
    }
}

fn is_help(word: impl AsRef<str>) -> bool {
    matches!(word.as_ref(), "--help" | "-h")
}

fn task(name: &str) -> Result<&'static Task, String> {
    let found = TASKS.iter().find(|task| task.name == name);
    found.ok_or_else(|| format!("there is no task {name:?}\n\n{}", help(None)))
}

/// Help for one task or for all.
pub fn help(task: Option<&Task>) -> String {
    match task {
        Some(task) => {
            let lines: Vec<_> = task.help.iter().map(|line| format!("  {line}\n")).collect();
            format!("cargo xtask {}\n\n{}", task.called(), lines.concat())
        }
        None => {
            let mut text = "cargo xtask TASK\n\n".to_string();
            for task in &TASKS {
                let indented = task.help.join("\n                     ");
                let called = task.called();
                text += &match called.len() {
                    ..=18 => format!("  {called:<18} {indented}\n"),
                    _ => format!("  {called}\n                     {indented}\n"),
                };
            }
            text + "\n`cargo xtask TASK --help` shows one of them.\n"
        }
    }
}

impl Task {
    /// The name and what may follow.
    fn called(&self) -> String {
        format!("{} {}", self.name, self.usage)
            .trim_end()
            .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| word.to_string()).collect()
    }

    #[test]
    fn every_task_answers_help_without_running() {
        for task in &TASKS {
            for ask in [
                &[task.name, "--help"][..],
                &[task.name, "-h"],
                &[task.name, "--all", "--help"],
                &["help", task.name],
            ] {
                let ask = words(ask);
                let Ok(Request::Help(Some(about))) = Request::new(&ask) else {
                    panic!("{ask:?} gives no help");
                };
                assert_eq!(about.name, task.name);
                assert!(help(Some(about)).contains(task.help[0]));
            }
            assert!(help(None).contains(task.help[0]), "{}", task.name);
        }
    }

    #[test]
    fn help_for_a_test_program_is_passed_on() {
        let ask = words(&["test", "--rust", "--", "--help"]);
        assert!(matches!(Request::new(&ask), Ok(Request::Run(..))));
    }

    #[test]
    fn a_task_that_passes_nothing_on_refuses_unknown_words() {
        for (ask, expected) in [
            (
                ["miri", "--quick"],
                "miri: expected nothing more, found \"--quick\"",
            ),
            (
                ["changed", "--al"],
                "changed: expected nothing more, found \"--al\"",
            ),
            (
                ["gpu-bundle", "x"],
                "gpu-bundle: expected nothing more, found \"x\"",
            ),
            (
                ["c-library", "--tset"],
                "c-library: expected --test, found \"--tset\"",
            ),
        ] {
            let ask = words(&ask);
            assert_eq!(Request::new(&ask).err().as_deref(), Some(expected));
        }
        assert!(matches!(
            Request::new(&words(&["c-library", "--test"])),
            Ok(Request::Run(..))
        ));
    }

    #[test]
    fn an_unknown_task_lists_those_that_there_are() {
        let refused = Request::new(&words(&["tets"])).err().unwrap_or_default();
        assert!(
            refused.starts_with("there is no task \"tets\""),
            "{refused}"
        );
        assert!(refused.contains("compare-pytorch"), "{refused}");
    }
}
