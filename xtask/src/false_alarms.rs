//! How often comparisons of one build with itself raise an alarm on this machine, as it is, and whether a slowdown that
//! is put in is caught.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::chore::{cargo, root};

/// Small, so that a turn holds many computations even where others take most of the processor.
const WORKLOAD: &str = "xtask/false-alarms.toml";

/// What is done so many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// A build against itself, in turns.
    Turns,
    /// Single runs of a build, each compared with the one before.
    Single,
    /// A build made slower on purpose, against itself, in turns.
    Slowed,
}

struct Asked {
    trials: Vec<Trial>,
    pairs: usize,
    slowdown: String,
    program: Option<PathBuf>,
    output: PathBuf,
}

/// `false-alarms [turns] [single] [slowed] [--pairs N] [--slowdown SHARE] [--program FOURTAP] [--output FOLDER]`.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let asked = parsed(arguments)?;
    fs::create_dir_all(&asked.output).map_err(|error| error.to_string())?;
    let program = match &asked.program {
        Some(program) => program.clone(),
        None => {
            let features = ["--features", "fault-injection"];
            let build = cargo(["build", "--release", "-p", "fourtap-lab"]);
            build.arguments(&features).run()?;
            root().join("target/release/fourtap")
        }
    };
    for trial in &asked.trials {
        let (name, verdicts) = match trial {
            Trial::Turns => ("turns", in_turns(&asked, &program, "turns.jsonl", "0")?),
            Trial::Slowed => (
                "slowed",
                in_turns(&asked, &program, "slowed.jsonl", &asked.slowdown)?,
            ),
            Trial::Single => ("single", single(&asked, &program)?),
        };
        let of = |verdict: &str| verdicts.iter().filter(|it| *it == verdict).count();
        println!(
            "{name}: {} comparisons: {} SLOWER, {} FASTER, {} SAME, {} UNCLEAR",
            verdicts.len(),
            of("SLOWER"),
            of("FASTER"),
            of("SAME"),
            of("UNCLEAR")
        );
    }
    Ok(())
}

fn parsed(arguments: &[String]) -> Result<Asked, String> {
    let mut asked = Asked {
        trials: vec![],
        pairs: 50,
        slowdown: "0.1".to_string(),
        program: None,
        output: root().join("target/false-alarms"),
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word}: expected a value"));
        match word.as_str() {
            "turns" => asked.trials.push(Trial::Turns),
            "single" => asked.trials.push(Trial::Single),
            "slowed" => asked.trials.push(Trial::Slowed),
            "--pairs" => {
                let count = value()?.parse();
                asked.pairs = count.map_err(|error| format!("--pairs: {error}"))?;
            }
            "--slowdown" => asked.slowdown.clone_from(value()?),
            "--program" => asked.program = Some(value()?.into()),
            "--output" => asked.output = value()?.into(),
            other => return Err(format!("false-alarms: there is no {other:?}")),
        }
    }
    if asked.trials.is_empty() {
        asked.trials = vec![Trial::Turns, Trial::Single, Trial::Slowed];
    }
    Ok(asked)
}

/// The same benchmark for every trial.
fn bench(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdout(Stdio::null());
    command.args(["bench", WORKLOAD, "--quick", "--threads", "1"]);
    command.args(["--direction", "forward", "--distribution", "local"]);
    command.args(["--dtype", "f32", "--device", "cpu"]);
    command
}

/// Verdicts of a build, made slower by this share, against itself.
fn in_turns(
    asked: &Asked,
    program: &Path,
    file: &str,
    slowdown: &str,
) -> Result<Vec<String>, String> {
    let file = asked.output.join(file);
    // The other one is the same program, but not slower.
    let plain = asked.output.join("plain.sh");
    let script = format!(
        "#!/bin/sh\nFOURTAP_SLOWDOWN=0 exec '{}' \"$@\"\n",
        program.display()
    );
    write_script(&plain, &script).map_err(|error| error.to_string())?;
    for pair in 0..asked.pairs {
        let mut command = bench(program);
        command.env("FOURTAP_SLOWDOWN", slowdown);
        command.arg("--against").arg(&plain);
        command.arg("--json").arg(&file);
        succeeded(&mut command)?;
        eprintln!("{} of {}", pair + 1, asked.pairs);
    }
    fs::remove_file(&plain).map_err(|error| error.to_string())?;
    verdicts(&file, asked.pairs)
}

/// Verdicts of single runs, each compared with the one before.
fn single(asked: &Asked, program: &Path) -> Result<Vec<String>, String> {
    let file = asked.output.join("single.jsonl");
    let [before, after] = ["before.jsonl", "after.jsonl"].map(|name| asked.output.join(name));
    let unwritable = |error: std::io::Error| error.to_string();
    succeeded(bench(program).arg("--json").arg(&before))?;
    for pair in 0..asked.pairs {
        succeeded(bench(program).arg("--json").arg(&after))?;
        let mut compare = Command::new(program);
        let compare = compare.arg("compare").args([&before, &after]).arg("--json");
        let compared = compare.output().map_err(unwritable)?;
        let mut all = OpenOptions::new();
        let mut all = all
            .create(true)
            .append(true)
            .open(&file)
            .map_err(unwritable)?;
        all.write_all(&compared.stdout).map_err(unwritable)?;
        fs::rename(&after, &before).map_err(unwritable)?;
        eprintln!("{} of {}", pair + 1, asked.pairs);
    }
    fs::remove_file(&before).map_err(unwritable)?;
    verdicts(&file, asked.pairs)
}

fn succeeded(command: &mut Command) -> Result<(), String> {
    match command.stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("{command:?} ended with {other:?}")),
    }
}

/// The last so many verdicts of a file.
fn verdicts(file: &Path, count: usize) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let verdict = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        Some(line["verdict"].as_str()?.to_string())
    };
    let all: Vec<String> = text.lines().filter_map(verdict).collect();
    Ok(all[all.len().saturating_sub(count)..].to_vec())
}

fn write_script(path: &Path, text: &str) -> std::io::Result<()> {
    fs::write(path, text)?;
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(())
}
