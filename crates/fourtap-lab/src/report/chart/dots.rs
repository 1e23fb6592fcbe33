//! A row a benchmark, marks along a logarithmic axis: what is fast, and against what.

use super::drawing::{Anchor, Drawing, Layout, fitting, legend_places};
use super::scale::LogScale;
use crate::report::number;

/// A chart of such rows.
#[derive(Clone, Debug)]
pub struct DotChart {
    /// What the axis counts.
    pub axis: String,
    /// A number to compare with, and its name.
    pub reference: Option<(f64, String)>,
    /// What the columns of numbers beside the marks are called.
    pub heads: [String; 2],
    /// The rows, those of one group together.
    pub rows: Vec<DotRow>,
    /// What the shapes mean.
    pub legend: Vec<(Shape, String)>,
}

/// A row of a [`DotChart`].
#[derive(Clone, Debug)]
pub struct DotRow {
    /// What it belongs to; empty in a chart without groups.
    pub group: String,
    /// What it is.
    pub label: String,
    /// What stands behind the label, which is a name then; mostly empty.
    pub detail: String,
    /// Numbers beside the marks.
    pub values: [String; 2],
    /// The marks; the last lies on top.
    pub marks: Vec<Mark>,
    /// Everything in words, one line per fact.
    pub words: String,
}

/// A number in a row.
#[derive(Clone, Debug)]
pub struct Mark {
    /// How it looks.
    pub shape: Shape,
    /// Where it lies.
    pub at: f64,
    /// Where it lies with confidence.
    pub interval: Option<(f64, f64)>,
    /// What it is, in words.
    pub words: String,
}

/// How a mark looks. Shapes differ, not only colours: the page may be printed in grey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// What this project computes: a disc with a line to the reference.
    Ours,
    /// Another way of this project: a ring.
    Second,
    /// What this project computes less exactly: a diamond with a line to the reference.
    Approximate,
    /// The fastest of others: a diamond.
    BestPeer,
    /// Others: a stroke.
    Peer,
    /// Faster than before: a triangle to the left.
    Faster,
    /// Slower than before: a triangle to the right.
    Slower,
    /// As before: a small ring.
    Same,
    /// Nobody knows: a square.
    Unclear,
}

const DIAMOND: [(f64, f64); 4] = [(-5.5, 0.0), (0.0, -5.5), (5.5, 0.0), (0.0, 5.5)];

impl Shape {
    /// Draws it.
    pub fn draw(self, drawing: &mut Drawing, (x, y): (f64, f64)) {
        match self {
            Shape::Ours => drawing.circle("ours", (x, y), 5.0),
            Shape::Second => drawing.circle("second", (x, y), 4.0),
            Shape::Same => drawing.circle("same", (x, y), 3.5),
            Shape::Peer => drawing.line("peer", (x, y - 5.0), (x, y + 5.0)),
            Shape::Approximate => drawing.polygon("approximate", (x, y), &DIAMOND),
            Shape::BestPeer => drawing.polygon("best-peer", (x, y), &DIAMOND),
            Shape::Faster => {
                drawing.polygon("faster", (x, y), &[(-6.0, 0.0), (5.0, -6.0), (5.0, 6.0)]);
            }
            Shape::Slower => {
                drawing.polygon("slower", (x, y), &[(6.0, 0.0), (-5.0, -6.0), (-5.0, 6.0)]);
            }
            Shape::Unclear => drawing.rectangle("unclear", (x - 4.0, y - 4.0), (8.0, 8.0)),
        }
    }
}

/// Where things lie in a layout.
struct Places {
    layout: Layout,
    plot: (f64, f64),
    columns: [f64; 2],
    row: f64,
    /// Extra height where a group begins.
    group: f64,
}

impl Places {
    fn of(layout: Layout) -> Self {
        match layout {
            Layout::Wide => Places {
                layout,
                plot: (360.0, 800.0),
                columns: [886.0, 958.0],
                row: 23.0,
                group: 12.0,
            },
            Layout::Narrow => Places {
                layout,
                plot: (8.0, 350.0),
                columns: [294.0, 356.0],
                row: 38.0,
                group: 34.0,
            },
        }
    }
}

impl DotChart {
    /// Draws it.
    pub fn draw(&self, layout: Layout) -> Drawing {
        let places = Places::of(layout);
        let (from, to) = places.plot;
        let numbers = self.rows.iter().flat_map(|row| {
            row.marks.iter().flat_map(|mark| {
                let (low, high) = mark.interval.unwrap_or((mark.at, mark.at));
                [mark.at, low, high]
            })
        });
        let reference = self.reference.iter().map(|(number, _)| *number);
        let scale = LogScale::around(numbers.chain(reference), from, to);

        let words = self.legend.iter().map(|(_, words)| words.as_str());
        let (legend, legend_height) = legend_places(words, layout.width());
        let top = legend_height + 58.0;
        let groups = self.group_starts().filter(|starts| *starts).count() as f64;
        let bottom = top + groups * places.group + self.rows.len() as f64 * places.row + 6.0;
        let mut drawing = Drawing::new(layout.width(), bottom + 36.0);

        for ((shape, words), (x, y)) in self.legend.iter().zip(legend) {
            shape.draw(&mut drawing, (x, y));
            let words = fitting(words, layout.width() - x - 12.0, 12.0);
            drawing.text("legend", (x + 12.0, y + 4.0), Anchor::Start, &words);
        }
        self.draw_axis(&mut drawing, &scale, &places, (top, bottom));
        let mut y = top;
        for (row, starts) in self.rows.iter().zip(self.group_starts()) {
            if starts {
                y += places.group;
                self.draw_group(&mut drawing, row, &places, y);
            }
            self.draw_row(&mut drawing, row, &scale, &places, y);
            y += places.row;
        }
        drawing
    }

    /// For each row whether it is the first of its group.
    fn group_starts(&self) -> impl Iterator<Item = bool> {
        (0..self.rows.len()).map(|index| {
            let group = &self.rows[index].group;
            !group.is_empty() && (index == 0 || *group != self.rows[index - 1].group)
        })
    }

    fn draw_axis(
        &self,
        drawing: &mut Drawing,
        scale: &LogScale,
        places: &Places,
        (top, bottom): (f64, f64),
    ) {
        let (from, to) = places.plot;
        let head = top - 26.0;
        drawing.text("axis", (from, head - 8.0), Anchor::Start, &self.axis);
        if places.layout == Layout::Wide {
            for (place, head_words) in places.columns.iter().zip(&self.heads) {
                drawing.text("axis", (*place, head + 12.0), Anchor::End, head_words);
            }
        }
        for tick in scale.ticks(places.layout.choose(64.0, 52.0)) {
            let Some(x) = scale.at(tick) else { continue };
            drawing.line("grid", (x, top - 6.0), (x, bottom));
            let words = number::tick(tick);
            drawing.text("tick", (x, head + 12.0), Anchor::Middle, &words);
            drawing.text("tick", (x, bottom + 16.0), Anchor::Middle, &words);
        }
        let Some((number, name)) = &self.reference else {
            return;
        };
        if let Some(x) = scale.at(*number) {
            drawing.line("reference", (x, top - 6.0), (x, bottom));
            let x = x.clamp(from + 30.0, to - 30.0);
            drawing.text("reference-name", (x, bottom + 31.0), Anchor::Middle, name);
        }
    }

    fn draw_group(&self, drawing: &mut Drawing, row: &DotRow, places: &Places, y: f64) {
        let width = places.layout.width();
        match places.layout {
            Layout::Wide => {
                let line = y - places.group / 2.0;
                drawing.line("rule", (0.0, line), (width, line));
                let name = fitting(&row.group, 134.0, 13.0);
                let middle = y + places.row / 2.0 + 4.0;
                drawing.text("group", (0.0, middle), Anchor::Start, &name);
            }
            Layout::Narrow => {
                let line = y - places.group + 6.0;
                drawing.line("rule", (0.0, line), (width, line));
                let name = fitting(&row.group, width, 14.0);
                drawing.text("group", (0.0, y - 6.0), Anchor::Start, &name);
            }
        }
    }

    fn draw_row(
        &self,
        drawing: &mut Drawing,
        row: &DotRow,
        scale: &LogScale,
        places: &Places,
        y: f64,
    ) {
        let (from, to) = places.plot;
        let width = places.layout.width();
        drawing.described("row", &row.words, |drawing| {
            drawing.rectangle("touch", (0.0, y), (width, places.row));
            let (label_x, label_room, text_y, mark_y) = match places.layout {
                Layout::Wide => {
                    let middle = y + places.row / 2.0;
                    let start = if row.group.is_empty() { 0.0 } else { 140.0 };
                    (start, from - start - 8.0, middle + 4.0, middle)
                }
                Layout::Narrow => (0.0, 200.0, y + 14.0, y + 27.0),
            };
            if row.detail.is_empty() {
                let label = fitting(&row.label, label_room, 12.5);
                drawing.text("label", (label_x, text_y), Anchor::Start, &label);
            } else {
                drawing.name(
                    "label",
                    (label_x, text_y),
                    label_room,
                    &row.label,
                    &row.detail,
                );
            }
            for (place, value) in places.columns.iter().zip(&row.values) {
                drawing.text("value", (*place, text_y), Anchor::End, value);
            }
            drawing.line("track", (from, mark_y), (to, mark_y));
            self.draw_stem(drawing, row, scale, mark_y);
            for mark in &row.marks {
                let Some(x) = scale.at(mark.at) else { continue };
                drawing.described("mark", &mark.words, |drawing| {
                    draw_mark(drawing, mark, scale, (x, mark_y));
                });
            }
        });
    }

    /// From the reference to what this project does, below all marks.
    fn draw_stem(&self, drawing: &mut Drawing, row: &DotRow, scale: &LogScale, y: f64) {
        let is_ours = |mark: &&Mark| matches!(mark.shape, Shape::Ours | Shape::Approximate);
        let ours = row.marks.iter().find(is_ours);
        let start = self
            .reference
            .as_ref()
            .and_then(|(number, _)| scale.at(*number));
        let end = ours.and_then(|mark| scale.at(mark.at));
        if let (Some(start), Some(end)) = (start, end) {
            drawing.line("stem", (start, y), (end, y));
        }
    }
}

fn draw_mark(drawing: &mut Drawing, mark: &Mark, scale: &LogScale, (x, y): (f64, f64)) {
    if let Some((low, high)) = mark.interval
        && let (Some(low), Some(high)) = (scale.at(low), scale.at(high))
        // Shorter than the mark is wide, it would only blur it.
        && (high - low).abs() > 6.0
    {
        drawing.line("whisker", (low, y), (high, y));
        for end in [low, high] {
            drawing.line("whisker", (end, y - 4.0), (end, y + 4.0));
        }
    }
    mark.shape.draw(drawing, (x, y));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(marks: Vec<Mark>) -> DotChart {
        DotChart {
            axis: "times".to_string(),
            reference: Some((1.0, "baseline".to_string())),
            heads: Default::default(),
            rows: vec![DotRow {
                group: "<a>".to_string(),
                label: "b".to_string(),
                detail: String::new(),
                values: Default::default(),
                marks,
                words: "c & d".to_string(),
            }],
            legend: vec![(Shape::Ours, "ours".to_string())],
        }
    }

    fn at(number: f64) -> Mark {
        Mark {
            shape: Shape::Ours,
            at: number,
            interval: Some((number, 2.0 * number)),
            words: String::new(),
        }
    }

    #[test]
    fn words_are_escaped() {
        let svg = chart(vec![at(2.0)]).draw(Layout::Wide).inside("x", "wide");
        assert!(svg.contains("&lt;a&gt;") && svg.contains("c &amp; d"));
        assert!(!svg.contains("<a>"));
    }

    #[test]
    fn numbers_without_a_place_are_left_out() {
        for number in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let svg = chart(vec![at(number)])
                .draw(Layout::Narrow)
                .inside("x", "narrow");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(!svg.contains(r#"class="mark""#), "{svg}");
        }
    }
}
