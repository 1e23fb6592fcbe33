//! `fourtap report`: results in, a page out.

use serde::Serialize;

use super::{note, print_json};
use crate::cli::ReportArgs;
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::output::Destination;
use crate::record::{Run, SCHEMA, VERSION};
use crate::{report, units};

/// The JSON record of the command.
#[derive(Debug, Serialize)]
struct ReportSummary<'a> {
    schema: u32,
    version: &'a str,
    command: &'a str,
    runs: Vec<String>,
    output: String,
    output_bytes: usize,
    benchmarks: usize,
    probes: usize,
    counters: usize,
    peers: usize,
    warnings: Vec<String>,
}

pub fn execute(arguments: &ReportArgs) -> Result<ExitCode> {
    let page = destination(arguments)?;
    let runs: Vec<Run> = arguments
        .runs
        .iter()
        .map(|path| Run::read(path))
        .collect::<Result<_>>()?;
    let html = report::html(&runs)?;
    page.write_bytes(html.as_bytes())?;

    let output = arguments.output.display().to_string();
    let warnings: Vec<String> = runs.iter().flat_map(report::warnings).collect();
    if arguments.json {
        let count = |of: fn(&Run) -> usize| runs.iter().map(of).sum();
        let paths = arguments.runs.iter();
        print_json(&ReportSummary {
            schema: SCHEMA,
            version: VERSION,
            command: "report",
            runs: paths.map(|run| run.display().to_string()).collect(),
            output,
            output_bytes: html.len(),
            benchmarks: count(|run| run.benches.len()),
            probes: count(|run| run.probes.len()),
            counters: count(|run| run.counters.len()),
            peers: count(|run| run.peers.len()),
            warnings,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    for warning in &warnings {
        note(&format!("warning: {warning}"));
    }
    note(&format!(
        "wrote {output}, {}",
        units::bytes(html.len() as u64)
    ));
    Ok(ExitCode::SUCCESS)
}

/// A page's place, which is none of the runs.
fn destination(arguments: &ReportArgs) -> Result<Destination> {
    let file = &arguments.output;
    if !report::is_html(file) {
        return Err(Error::PageFormat { file: file.clone() });
    }
    for run in &arguments.runs {
        Destination::new(file, run, arguments.force)?;
    }
    Destination::new(file, file.parent().unwrap_or(file), arguments.force)
}
