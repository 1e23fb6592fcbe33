//! What a report says, before it is HTML or Markdown.

use serde::Serialize;

use super::chart::Chart;

/// A whole report.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    /// What it is about.
    pub title: String,
    /// In a sentence.
    pub subtitle: String,
    /// Its sections; those without data are absent.
    pub sections: Vec<Section>,
    /// The version that made it.
    pub version: &'static str,
}

/// A section of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// To link to.
    pub id: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What it is made of.
    pub blocks: Vec<Block>,
}

/// A piece of a section.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Block {
    /// A smaller heading.
    Heading { text: String },
    /// A paragraph.
    Words { text: String },
    /// Few large numbers.
    Figures { figures: Vec<Figure> },
    /// Names and what they stand for.
    Facts { facts: Vec<(String, String)> },
    /// What a reader must know before believing anything.
    Warnings { warnings: Vec<String> },
    /// A chart.
    Chart { chart: Chart },
    /// A table.
    Table { table: Table },
    /// What is shown when asked for.
    Folded {
        summary: String,
        open: bool,
        blocks: Vec<Block>,
    },
}

/// A large number and what it is.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The number.
    pub number: String,
    /// What it counts.
    pub what: String,
    /// How it varies, or of what it is.
    pub detail: String,
}

/// A table; the same in HTML and Markdown.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// What it shows, for those who cannot see it.
    pub caption: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
    /// Whether readers may search and sort it.
    pub searchable: bool,
    /// Words worth searching for; empty where those of benchmarks are.
    pub example: &'static str,
}

/// A column of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// Its heading.
    pub head: String,
    /// Whether numbers stand in it.
    pub numeric: bool,
    /// Whether words stand in it that may take several lines.
    pub wide: bool,
}

/// A cell of a table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cell {
    /// What stands in it.
    pub text: String,
    /// What stands below, smaller.
    pub detail: Option<String>,
    /// What it is sorted by.
    pub sort: Option<f64>,
    /// The length of a bar below, from 0 to 1.
    pub share: Option<f64>,
    /// Whether it stands out.
    pub strong: bool,
}

impl Table {
    /// With these columns; those that begin with `#` hold numbers, with `~` long words.
    pub fn new(caption: &str, heads: &[&str]) -> Self {
        let column = |head: &&str| Column {
            head: head.trim_start_matches(['#', '~']).to_string(),
            numeric: head.starts_with('#'),
            wide: head.starts_with('~'),
        };
        Table {
            caption: caption.to_string(),
            columns: heads.iter().map(column).collect(),
            ..Table::default()
        }
    }

    /// Without columns in which nothing stands.
    pub fn without_empty_columns(mut self) -> Self {
        let empty = |cell: &Cell| cell.text.is_empty() || cell.text == "–";
        for index in (0..self.columns.len()).rev() {
            if self.rows.iter().all(|row| row.get(index).is_none_or(empty)) {
                self.columns.remove(index);
                for row in &mut self.rows {
                    row.remove(index);
                }
            }
        }
        self
    }
}

impl Cell {
    /// Words.
    pub fn words(text: impl Into<String>) -> Self {
        Cell {
            text: text.into(),
            ..Cell::default()
        }
    }

    /// A number, written as `text`.
    pub fn number(text: impl Into<String>, number: Option<f64>) -> Self {
        Cell {
            sort: number.filter(|number| number.is_finite()),
            ..Cell::words(text)
        }
    }

    /// With something smaller below.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// With a bar this long.
    pub fn with_share(mut self, share: f64) -> Self {
        self.share = share.is_finite().then(|| share.clamp(0.0, 1.0));
        self
    }

    /// Standing out.
    pub fn strong(mut self) -> Self {
        self.strong = true;
        self
    }
}

impl Block {
    /// A paragraph.
    pub fn words(text: impl Into<String>) -> Self {
        Block::Words { text: text.into() }
    }

    /// A smaller heading.
    pub fn heading(text: impl Into<String>) -> Self {
        Block::Heading { text: text.into() }
    }
}
