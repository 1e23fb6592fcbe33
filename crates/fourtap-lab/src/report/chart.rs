//! Charts as descriptions: templates/chart.js draws them from these and from the cells of their tables.

use serde::Serialize;

/// A chart of some rows of a table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Chart {
    pub title: String,
    /// How to read it.
    pub caption: String,
    pub kind: Kind,
    /// What the axis counts.
    pub axis: String,
    /// A number to compare with, and its name.
    pub reference: Option<(f64, String)>,
    /// The column whose cells say which rows stand together; empty in a chart without groups.
    pub group: &'static str,
    /// The columns rows are named by.
    pub labels: &'static [&'static str],
    /// Columns whose numbers stand beside the marks, and the units.
    pub values: Vec<(String, &'static str)>,
    /// What the shapes mean.
    pub legend: Vec<(Shape, String)>,
    /// From top to bottom.
    pub rows: Vec<Row>,
    /// Ceilings, of a roofline.
    pub roofs: Vec<Roof>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Marks of each row along one logarithmic axis.
    #[default]
    Dots,
    /// Every sample of each row, in percent of the middle.
    Strips,
    /// A bar for each row from zero; each group has a scale of its own.
    Bars,
    /// Points by arithmetic intensity and performance, below ceilings.
    Roofline,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Which row of the table it is, counted from 0.
    pub of: usize,
    /// The last lies on top.
    pub marks: Vec<Mark>,
    /// What stands behind a bar.
    pub text: String,
}

/// A number in a row.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Mark {
    pub shape: Shape,
    pub at: f64,
    /// Where it lies with confidence; of samples the first has that of their median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
    /// How high it lies, in a roofline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<f64>,
    /// Whether it is ringed: it lies above a roof without a reason.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub suspicious: bool,
}

/// How a mark looks. Shapes differ, not only colours: the page may be printed in grey.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// What this project computes: a disc with a line to the reference.
    #[default]
    Ours,
    /// Another way of this project: a ring.
    Second,
    /// What this project computes less exactly: a diamond with a line to the reference.
    Approximate,
    /// The fastest of others: a diamond.
    BestPeer,
    /// Others: a stroke.
    Peer,
    /// Than before: a triangle to the left.
    Faster,
    /// Than before: a triangle to the right.
    Slower,
    /// As before: a small ring.
    Same,
    /// Nobody knows: a square.
    Unclear,
    /// One of many: a thin stroke.
    Sample,
    BarOurs,
    /// Somebody else's: grey.
    BarOther,
    /// Not to be compared with the others: hatched.
    BarHatched,
    /// A square.
    L1,
    /// A hollow triangle.
    L2Counted,
    /// A disc.
    Dram,
    /// A ring.
    DramCounted,
}

/// A ceiling.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Roof {
    /// The probe that measured it.
    pub probe: String,
    /// Of which memory; none limits operations alone.
    pub level: Option<Level>,
    /// GB/s or GFLOP/s.
    pub rate: f64,
    /// The rate in words.
    pub words: String,
}

/// A level of memory, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    L1,
    L2,
    Dram,
}

impl Row {
    /// Without text.
    pub fn of(of: usize, marks: Vec<Mark>) -> Self {
        Row {
            of,
            marks,
            ..Row::default()
        }
    }
}

impl Mark {
    pub fn new(shape: Shape, at: f64) -> Self {
        Mark {
            shape,
            at,
            ..Mark::default()
        }
    }

    pub fn between(mut self, low: f64, high: f64) -> Self {
        self.interval = Some((low, high));
        self
    }
}

impl Chart {
    /// Of those signs that a row has.
    pub fn with_legend(mut self, legend: &[(Shape, &str)]) -> Self {
        let marks = || self.rows.iter().flat_map(|row| &row.marks);
        let used = legend
            .iter()
            .filter(|(shape, _)| marks().any(|mark| mark.shape == *shape));
        self.legend = used
            .map(|(shape, words)| (*shape, words.to_string()))
            .collect();
        self
    }

    /// None without rows.
    pub fn if_any(self) -> Option<Self> {
        (!self.rows.is_empty()).then_some(self)
    }
}

impl Level {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Level::L1 => "L1",
            Level::L2 => "L2",
            Level::Dram => "DRAM",
        }
    }
}

impl Roof {
    /// The most GFLOP/s it allows at this arithmetic intensity.
    pub fn allows(&self, intensity: f64) -> f64 {
        match self.level {
            Some(_) => self.rate * intensity,
            None => self.rate,
        }
    }
}
