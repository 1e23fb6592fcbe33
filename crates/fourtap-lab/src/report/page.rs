//! What a page says, before it is HTML: sections made of words, tables and charts of tables' rows.

use serde::Serialize;

use super::chart::Chart;
use super::number::DASH;

/// A section of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// To link to.
    pub id: &'static str,
    pub title: &'static str,
    pub blocks: Vec<Block>,
}

impl Section {
    /// Of these blocks below a paragraph, which may be empty; none if there are none.
    pub fn of(
        id: &'static str,
        title: &'static str,
        lead: &str,
        mut blocks: Vec<Block>,
    ) -> Option<Self> {
        if blocks.is_empty() {
            return None;
        }
        if !lead.is_empty() {
            blocks.insert(0, Block::Words(lead.to_string()));
        }
        Some(Section { id, title, blocks })
    }
}

/// A piece of a section.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", content = "content", rename_all = "lowercase")]
pub enum Block {
    /// A smaller heading.
    Heading(String),
    Words(String),
    /// Few large numbers.
    Figures(Vec<Figure>),
    /// Names and what they stand for.
    Facts(Vec<(&'static str, String)>),
    /// What a reader must know before believing anything.
    Warnings(Vec<String>),
    /// A table, below the charts that draw its rows.
    Table(Table),
}

/// A large number and what it is.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub number: String,
    pub what: String,
    /// How it varies, or of what it is.
    pub detail: String,
}

/// A table. Its charts have no words of their own: labels, numbers and what a pointer brings up are its cells.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// What it shows, for those who cannot see it.
    pub caption: String,
    /// What to press to see it; empty if it is always shown.
    pub summary: String,
    /// Words worth searching for; empty if it cannot be searched and sorted.
    pub example: &'static str,
    pub charts: Vec<Chart>,
    /// The columns, all of one length.
    pub columns: Vec<Column>,
}

/// A column of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    pub head: String,
    /// What stands in it, as a class of the page's style.
    pub holds: Holds,
    /// A cell for each row.
    pub cells: Vec<Cell>,
}

/// What stands in a column.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Holds {
    Words,
    Numbers,
    /// Sentences that may take several lines.
    Sentences,
}

/// A cell of a table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cell {
    pub text: String,
    /// What stands below, smaller.
    pub detail: String,
    /// What it is sorted by.
    pub sort: Option<f64>,
    /// The length of a bar below, from 0 to 1.
    pub share: Option<f64>,
    pub strong: bool,
}

/// A table in the making, column by column.
#[derive(Debug)]
pub struct TableOf<'a, R> {
    rows: &'a [R],
    table: Table,
}

impl Table {
    /// With a row for each of these.
    pub fn of<'a, R>(caption: impl Into<String>, rows: &'a [R]) -> TableOf<'a, R> {
        let caption = caption.into();
        let table = Table {
            caption,
            ..Table::default()
        };
        TableOf { rows, table }
    }

    /// That readers may search and sort.
    pub fn searched_as(mut self, example: &'static str) -> Self {
        self.example = example;
        self
    }

    /// Not shown until these words are pressed.
    pub fn folded(mut self, summary: impl Into<String>) -> Self {
        self.summary = summary.into();
        self
    }

    /// Below this chart.
    pub fn drawn(mut self, chart: impl Into<Option<Chart>>) -> Self {
        self.charts.extend(chart.into());
        self
    }
}

impl<'a, R> TableOf<'a, R> {
    /// A column of words.
    pub fn words<C: Into<Cell>>(self, head: &str, cell: impl Fn(&'a R) -> C) -> Self {
        self.column(head, Holds::Words, cell)
    }

    /// A column of sentences.
    pub fn sentences<C: Into<Cell>>(self, head: &str, cell: impl Fn(&'a R) -> C) -> Self {
        self.column(head, Holds::Sentences, cell)
    }

    /// A column of numbers, each written by `write`.
    pub fn numbers(
        self,
        head: &str,
        write: impl Fn(f64) -> String,
        number: impl Fn(&'a R) -> Option<f64>,
    ) -> Self {
        self.column(head, Holds::Numbers, |row| {
            Cell::number(number(row), &write)
        })
    }

    /// A column; one in which nothing stands is left out.
    pub fn column<C: Into<Cell>>(
        mut self,
        head: &str,
        holds: Holds,
        cell: impl Fn(&'a R) -> C,
    ) -> Self {
        let cells: Vec<Cell> = self.rows.iter().map(|row| cell(row).into()).collect();
        if !cells.iter().all(Cell::is_empty) {
            let head = head.to_string();
            self.table.columns.push(Column { head, holds, cells });
        }
        self
    }

    /// The whole.
    pub fn table(self) -> Table {
        self.table
    }
}

impl Cell {
    /// A number, or a dash.
    pub fn number(number: Option<f64>, write: impl Fn(f64) -> String) -> Self {
        Cell {
            text: number.map_or(DASH.to_string(), write),
            sort: number.filter(|number| number.is_finite()),
            ..Cell::default()
        }
    }

    /// With something smaller below.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// With a bar this long.
    pub fn with_share(mut self, share: Option<f64>) -> Self {
        let share = share.filter(|share| share.is_finite());
        self.share = share.map(|share| share.clamp(0.0, 1.0));
        self
    }

    /// Standing out.
    pub fn strong(self) -> Self {
        self.strong_if(true)
    }

    /// Standing out where something holds.
    pub fn strong_if(mut self, strong: bool) -> Self {
        self.strong = strong;
        self
    }

    fn is_empty(&self) -> bool {
        (self.text.is_empty() || self.text == DASH) && self.detail.is_empty()
    }
}

impl<S: Into<String>> From<S> for Cell {
    fn from(text: S) -> Self {
        Cell {
            text: text.into(),
            ..Cell::default()
        }
    }
}
