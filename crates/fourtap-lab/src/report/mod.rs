//! Results as a page: HTML that needs nothing else, Markdown, and pictures.

pub mod chart;
mod counters;
mod date;
mod differences;
mod implementations;
mod markdown;
mod method;
pub mod number;
mod overview;
mod page;
mod part;
mod peer;
mod probes;
mod python;
mod rungs;
mod samples;
mod tuning;
mod variants;
mod warnings;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, context};

use crate::error::{Error, Result};
use crate::operators::OPERATORS;
use crate::output::Destination;
use crate::record::{Run, VERSION};
use page::Page;

pub use chart::Theme;
pub use date::date;
pub use page::{Block, Cell, Section, Table};
pub use part::Part;
pub use peer::{Peer, times_best_peer};
pub use samples::{hot_in_words, strips};
pub use variants::data_label;
pub use warnings::warnings;

/// What pages are made from: names, of which the ending says how words are escaped, and texts.
const TEMPLATES: [(&str, &str); 6] = [
    ("report.html", include_str!("../../templates/report.html")),
    ("blocks.html", include_str!("../../templates/blocks.html")),
    ("report.md", include_str!("../../templates/report.md")),
    ("style.css", include_str!("../../templates/style.css")),
    ("chart.css", include_str!("../../templates/chart.css")),
    ("report.js", include_str!("../../templates/report.js")),
];

/// A chart as a file.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What to call the file, without an ending.
    pub name: String,
    /// The chart as SVG that stands alone, on white.
    pub svg: String,
    chart: chart::Chart,
}

impl Plot {
    /// The same as PNG.
    pub fn png(&self) -> Result<Vec<u8>> {
        chart::png(&self.name, &self.svg)
    }

    /// As SVG without a background, for pages whose colour is light or dark.
    pub fn transparent(&self, theme: Theme) -> String {
        self.chart.transparent(theme)
    }
}

/// A report of some runs, in every form it can take.
#[derive(Debug)]
pub struct Report {
    page: Page,
}

/// Where to write an HTML page, which may replace one written before but nothing else.
pub fn destination(file: &Path) -> Result<Destination> {
    let ending = file.extension().and_then(|ending| ending.to_str());
    if !ending.is_some_and(|it| ["html", "htm"].contains(&it.to_ascii_lowercase().as_str())) {
        return Err(Error::HtmlFormat {
            file: file.to_path_buf(),
        });
    }
    Destination::new(file, file.parent().unwrap_or(file), is_page(file))
}

/// Whether a file is a page written here before.
fn is_page(file: &Path) -> bool {
    let mut beginning = Vec::new();
    let read = File::open(file).and_then(|file| file.take(4096).read_to_end(&mut beginning));
    read.is_ok() && String::from_utf8_lossy(&beginning).contains(GENERATOR)
}

/// What every page says of itself.
const GENERATOR: &str = r#"<meta name="generator" content="fourtap "#;

/// A report as one HTML file that needs no other.
pub fn html(runs: &[Run]) -> Result<String> {
    Report::new(runs).html()
}

impl Report {
    /// Of at least one run.
    pub fn new(runs: &[Run]) -> Self {
        let parts = part::parts(runs);
        let (title, subtitle) = overview::title(runs);
        let mut sections = vec![Some(overview::section(runs)), differences::section(runs)];
        sections.push(implementations::section(runs));
        sections.extend(OPERATORS.iter().map(|operator| operator.speed(&parts)));
        sections.extend(OPERATORS.iter().map(|operator| operator.roofline(&parts)));
        sections.extend([
            probes::section(&parts),
            variants::section(&parts),
            rungs::section(&parts),
            counters::section(&parts),
            tuning::section(&parts),
            python::section(runs),
            Some(method::section(&parts)),
        ]);
        Report {
            page: Page {
                title,
                subtitle,
                sections: sections.into_iter().flatten().collect(),
                version: VERSION,
            },
        }
    }

    /// As HTML.
    pub fn html(&self) -> Result<String> {
        let colours: Vec<_> = chart::COLOURS.to_vec();
        render(
            "report.html",
            context! { page => Serde(&self.page), colours },
        )
    }

    /// As Markdown; `plots` is where the pictures are, as seen from the page.
    pub fn markdown(&self, plots: Option<&str>) -> Result<String> {
        let text = render("report.md", context! { page => Serde(&self.page), plots })?;
        Ok(markdown::tidied(&text))
    }

    /// Every chart.
    pub fn plots(&self) -> Vec<Plot> {
        let mut plots = vec![];
        let sections = self.page.sections.iter();
        let mut blocks: Vec<&Block> = sections.flat_map(|section| &section.blocks).collect();
        blocks.reverse();
        while let Some(block) = blocks.pop() {
            match block {
                Block::Chart { chart } => plots.push(Plot {
                    name: chart.slug.clone(),
                    svg: chart.alone(),
                    chart: chart.clone(),
                }),
                Block::Folded { blocks: inner, .. } => blocks.extend(inner.iter().rev()),
                _ => {}
            }
        }
        plots
    }
}

/// From the file `page` to the folder `plots`, as a link.
pub fn link_between(page: &Path, plots: &Path) -> String {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or(path.to_path_buf());
    let (page, plots) = (absolute(page), absolute(plots));
    let from: Vec<_> = page.parent().unwrap_or(&page).components().collect();
    let to: Vec<_> = plots.components().collect();
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = from[shared..].iter().map(|_| "..".to_string());
    let down = to[shared..].iter();
    let down = down.map(|part| part.as_os_str().to_string_lossy().into_owned());
    let steps: Vec<String> = up.chain(down).collect();
    match steps.is_empty() {
        true => ".".to_string(),
        false => markdown::link(&steps.join("/")),
    }
}

fn render(name: &'static str, context: minijinja::Value) -> Result<String> {
    let failed = |error: minijinja::Error| Error::Report {
        template: name,
        reason: format!("{error:#}"),
    };
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    environment.set_syntax(syntax.build().map_err(failed)?);
    environment.set_auto_escape_callback(|name| match name.rsplit('.').next() {
        Some("html") => AutoEscape::Html,
        Some("md") => AutoEscape::Custom("markdown".into()),
        _ => AutoEscape::None,
    });
    environment.set_formatter(|output, state, value| match state.auto_escape() {
        AutoEscape::Custom(_) if !value.is_safe() => {
            Ok(output.write_str(&markdown::escaped(&value.to_string()))?)
        }
        // Its own escaping writes a slash, of which names are full, as seven characters.
        AutoEscape::Html if !value.is_safe() => {
            Ok(output.write_str(&chart::escaped(&value.to_string()))?)
        }
        _ => Ok(output.write_str(&value.to_string())?),
    });
    for (name, text) in TEMPLATES {
        environment.add_template(name, text).map_err(failed)?;
    }
    let template = environment.get_template(name).map_err(failed)?;
    template.render(context).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_the_page_to_the_plots() {
        let link = |page: &str, plots: &str| link_between(Path::new(page), Path::new(plots));
        assert_eq!(link("a.md", "plots"), "plots");
        assert_eq!(link("pages/a.md", "plots"), "../plots");
        assert_eq!(link("a.md", "."), ".");
        assert_eq!(link("/x/a.md", "/y/my plots"), "../y/my%20plots");
    }

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
