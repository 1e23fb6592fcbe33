//! Results as a page: one HTML file that needs nothing else.
//!
//! A section is words and tables ([`page`]). A chart only says how rows of a table are drawn ([`chart`]); the page's own
//! script draws it, so without scripts a reader still has every figure.

mod benches;
pub mod chart;
mod counters;
mod date;
mod differences;
mod implementations;
pub mod number;
mod overview;
mod page;
mod part;
mod probes;
mod python;
mod rungs;
mod tuning;
mod warnings;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value, context};

use crate::error::{Error, Result};
use crate::operators::OPERATORS;
use crate::output::Destination;
use crate::record::{BenchRecord, Run, VERSION};

pub use benches::{Peer, data_label, hot_mark, strips, times_best_peer, with_standing, with_times};
pub use date::date;
pub use page::{Block, Section, Table};
pub use part::Part;
pub use warnings::warnings;

/// What pages are made from, by name.
const TEMPLATES: [(&str, &str); 6] = [
    ("report.html", include_str!("../../templates/report.html")),
    ("blocks.html", include_str!("../../templates/blocks.html")),
    ("method.html", include_str!("../../templates/method.html")),
    ("style.css", include_str!("../../templates/style.css")),
    ("chart.js", include_str!("../../templates/chart.js")),
    ("page.js", include_str!("../../templates/page.js")),
];

/// What every page says of itself.
const GENERATOR: &str = r#"<meta name="generator" content="fourtap "#;

/// Where to write an HTML page, which may replace one written before but nothing else.
pub fn destination(file: &Path) -> Result<Destination> {
    if !is_html(file) {
        return Err(Error::HtmlFormat {
            file: file.to_path_buf(),
        });
    }
    Destination::new(file, file.parent().unwrap_or(file), is_page(file))
}

/// Whether a file's name ends as that of a page.
pub fn is_html(file: &Path) -> bool {
    let ending = file.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|it| ["html", "htm"].contains(&it.to_ascii_lowercase().as_str()))
}

/// Whether a file is a page written here before.
fn is_page(file: &Path) -> bool {
    let mut beginning = Vec::new();
    let read = File::open(file).and_then(|file| file.take(4096).read_to_end(&mut beginning));
    read.is_ok() && String::from_utf8_lossy(&beginning).contains(GENERATOR)
}

/// The page about at least one run.
pub fn html(runs: &[Run]) -> Result<String> {
    let parts = part::parts(runs);
    let mut sections = vec![Some(overview::section(runs)), differences::section(runs)];
    sections.push(implementations::section(runs));
    sections.extend(OPERATORS.iter().map(|operator| operator.speed(&parts)));
    sections.extend(OPERATORS.iter().map(|operator| operator.roofline(&parts)));
    sections.extend([
        probes::section(&parts),
        rungs::section(&parts),
        counters::section(&parts),
        tuning::section(&parts),
        python::section(runs),
    ]);
    let sections: Vec<Section> = sections.into_iter().flatten().collect();
    let names: Vec<String> = runs.iter().map(Run::name).collect();
    let page = render(context! {
        title => overview::title(runs),
        subtitle => format!("Results of {}", names.join(" and ")),
        sections => Serde(&sections),
        method => method(runs),
        version => VERSION,
    });
    // Whatever a record says, nothing turns the text that follows or cannot be in a page at all.
    Ok(page?.replace(is_no_text, "\u{fffd}"))
}

/// What there is, for the words on how it was measured.
fn method(runs: &[Run]) -> Value {
    let benches = || runs.iter().flat_map(|run| &run.benches);
    let any = |test: fn(&BenchRecord) -> bool| benches().any(test);
    let peers = benches().flat_map(|it| it.operator().peers(it));
    let peers: BTreeSet<&str> = peers.map(|peer| peer.measured).collect();
    let counting = OPERATORS.iter().copied();
    let counting = counting.filter(|operator| benches().any(|it| it.operator() == *operator));
    context! {
        benches => any(|_| true),
        cold => any(|it| it.cold.is_some()),
        baseline => any(|it| it.beside("baseline").is_some()),
        peers => peers.into_iter().collect::<Vec<_>>().join("; "),
        counting => counting.map(|it| it.counting()).collect::<Vec<_>>().join(" "),
        rungs => runs.iter().any(|run| !run.rungs.is_empty()),
        tuned => runs.iter().any(|run| !run.tuned.is_empty()),
        probes => runs.iter().any(|run| !run.probes.is_empty()),
    }
}

fn render(context: Value) -> Result<String> {
    let failed = |error: minijinja::Error| Error::Report {
        reason: format!("{error:#}"),
    };
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    environment.set_syntax(syntax.build().map_err(failed)?);
    environment.set_auto_escape_callback(|name| match name.ends_with(".html") {
        true => AutoEscape::Html,
        false => AutoEscape::None,
    });
    // Its own escaping writes a slash, of which names are full, as seven characters.
    environment.set_formatter(|output, state, value| {
        let text = value.to_string();
        let is_plain = value.is_safe() || *state.auto_escape() == AutoEscape::None;
        Ok(output.write_str(&if is_plain { text } else { escaped(&text) })?)
    });
    for (name, text) in TEMPLATES {
        environment.add_template(name, text).map_err(failed)?;
    }
    let template = environment.get_template("report.html").map_err(failed)?;
    template.render(context).map_err(failed)
}

fn escaped(text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Characters that HTML cannot hold, or that change the direction of all that follows, which could make words say
/// something else.
fn is_no_text(character: char) -> bool {
    let turns = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (character.is_control() && character != '\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_can_be_made_of_records_in_memory() {
        let record = r#"{"kind": "probe", "schema": 2, "version": "0", "unix_time": 0, "name": "copy",
            "group": "ceiling", "what": "copies", "outcome": "works", "words": "it was seen to work",
            "device": {"kind": "cpu", "model": "a processor", "threads": 2}}"#;
        let run = Run::parse(Path::new("run.jsonl"), &record.replace('\n', " ")).unwrap();
        let page = html(&[run]).unwrap();
        assert!(page.contains("it was seen to work"), "{page}");
        assert!(page.contains("1 probe"), "{page}");
    }
}
