//! `fourtap report`: results in, a page and pictures out.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{note, print_json};
use crate::cli::ReportArgs;
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::output::Destination;
use crate::record::{Run, SCHEMA, VERSION};
use crate::report::{self, Report};
use crate::units;

/// The JSON record of the command.
#[derive(Debug, Serialize)]
struct ReportSummary<'a> {
    schema: u32,
    version: &'a str,
    command: &'a str,
    runs: Vec<String>,
    output: String,
    output_bytes: usize,
    plots: Vec<String>,
    benchmarks: usize,
    probes: usize,
    counters: usize,
    peers: usize,
    warnings: Vec<String>,
}

/// What kind of page to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Html,
    Markdown,
    /// One chart.
    Svg,
    /// One chart.
    Png,
}

impl Format {
    /// By the ending of a file's name.
    fn of(file: &Path, is_chart: bool) -> Result<Self> {
        let ending = file.extension().and_then(|ending| ending.to_str());
        match (ending.map(str::to_ascii_lowercase).as_deref(), is_chart) {
            (Some("html" | "htm"), false) => Ok(Format::Html),
            (Some("md" | "markdown"), false) => Ok(Format::Markdown),
            (Some("svg"), true) => Ok(Format::Svg),
            (Some("png"), true) => Ok(Format::Png),
            (_, false) => Err(Error::PageFormat {
                file: file.to_path_buf(),
            }),
            (_, true) => Err(Error::ChartFormat {
                file: file.to_path_buf(),
            }),
        }
    }
}

pub fn execute(arguments: &ReportArgs) -> Result<ExitCode> {
    let output = &arguments.output;
    let format = Format::of(output, arguments.chart.is_some())?;
    let page = destination(output, arguments)?;
    let runs: Vec<Run> = arguments
        .runs
        .iter()
        .map(|path| Run::read(path))
        .collect::<Result<_>>()?;
    let report = Report::new(&runs);
    let made = match format {
        Format::Html => report.html()?.into_bytes(),
        Format::Markdown => {
            let folder = arguments.plots.as_deref();
            let link = folder.map(|folder| report::link_between(output, folder));
            report.markdown(link.as_deref())?.into_bytes()
        }
        Format::Svg => chart(&report, arguments)?.1.into_bytes(),
        Format::Png => {
            let (name, svg) = chart(&report, arguments)?;
            report::chart::png(&name, &svg)?
        }
    };
    // Everything is made, and every place looked at, before anything is written.
    let pictures = pictures(&report, arguments)?;
    let mut plots = vec![];
    for (path, place, bytes) in pictures {
        place.write_bytes(&bytes)?;
        plots.push(path.display().to_string());
    }
    page.write_bytes(&made)?;

    let warnings: Vec<String> = runs.iter().flat_map(report::warnings).collect();
    if arguments.json {
        let count = |of: fn(&Run) -> usize| runs.iter().map(of).sum();
        print_json(&ReportSummary {
            schema: SCHEMA,
            version: VERSION,
            command: "report",
            runs: arguments
                .runs
                .iter()
                .map(|run| run.display().to_string())
                .collect(),
            output: output.display().to_string(),
            output_bytes: made.len(),
            plots,
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
    let size = units::bytes(made.len() as u64);
    let beside = match (plots.len(), &arguments.plots) {
        (count, Some(folder)) => format!("; {count} pictures in {}", folder.display()),
        _ => String::new(),
    };
    note(&format!("wrote {}, {size}{beside}", output.display()));
    Ok(ExitCode::SUCCESS)
}

/// The name of the chart asked for, and the chart without a background.
fn chart(report: &Report, arguments: &ReportArgs) -> Result<(String, String)> {
    let wanted = arguments.chart.as_deref().unwrap_or_default();
    let plots = report.plots();
    match plots.iter().find(|plot| plot.name == wanted) {
        Some(plot) => Ok((plot.name.clone(), plot.transparent(arguments.theme))),
        None => Err(Error::UnknownChart {
            name: wanted.to_string(),
            charts: plots.into_iter().map(|plot| plot.name).collect(),
        }),
    }
}

/// A place that is none of the runs.
fn destination(path: &Path, arguments: &ReportArgs) -> Result<Destination> {
    for run in &arguments.runs {
        Destination::new(path, run, arguments.force)?;
    }
    Destination::new(path, path.parent().unwrap_or(path), arguments.force)
}

/// Each chart twice, with the places they go to.
fn pictures(
    report: &Report,
    arguments: &ReportArgs,
) -> Result<Vec<(PathBuf, Destination, Vec<u8>)>> {
    let Some(folder) = &arguments.plots else {
        return Ok(vec![]);
    };
    let mut made = vec![];
    for plot in report.plots() {
        made.push((format!("{}.png", plot.name), plot.png()?));
        made.push((format!("{}.svg", plot.name), plot.svg.into_bytes()));
    }
    match fs::create_dir(folder) {
        Err(source) if !folder.is_dir() => {
            return Err(Error::Write {
                file: folder.clone(),
                source,
            });
        }
        _ => {}
    }
    made.into_iter()
        .map(|(name, bytes)| {
            let path = folder.join(name);
            let place = destination(&path, arguments)?;
            Ok((path, place, bytes))
        })
        .collect()
}
