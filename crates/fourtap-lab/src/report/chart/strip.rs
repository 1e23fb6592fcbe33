//! Every sample of some timings, as distances from their median.

use super::drawing::{Anchor, Drawing, Layout, fitting};
use super::scale::LinearScale;
use crate::report::number;

/// Beyond this a sample is drawn at the edge, so that one outlier does not squeeze all others together; words say how
/// many there are.
const EDGE: f64 = 0.25;

/// Timings below one another.
#[derive(Clone, Debug)]
pub struct StripChart {
    /// A row a benchmark.
    pub rows: Vec<StripRow>,
}

/// One benchmark's timings.
#[derive(Clone, Debug)]
pub struct StripRow {
    /// What was timed.
    pub label: String,
    /// Distances from the median, as shares of it.
    pub samples: Vec<f64>,
    /// The confidence interval of the median, likewise.
    pub interval: (f64, f64),
    /// Everything in words, one line per fact.
    pub words: String,
}

impl StripRow {
    /// How many samples lie beyond the edge of the chart.
    pub fn beyond(&self) -> usize {
        let beyond = |sample: &&f64| sample.abs() > EDGE;
        self.samples.iter().filter(beyond).count()
    }
}

impl StripChart {
    /// Draws it.
    pub fn draw(&self, layout: Layout) -> Drawing {
        let width = layout.width();
        let (from, to) = layout.choose((300.0, 952.0), (8.0, 350.0));
        let height = layout.choose(26.0, 42.0);
        let top = 44.0;
        let bottom = top + height * self.rows.len() as f64;
        let reach = |row: &StripRow| {
            let samples = row.samples.iter().copied();
            let all = samples.chain([row.interval.0, row.interval.1]);
            all.filter(|share| share.is_finite())
                .fold(0.0, |reach: f64, share| reach.max(share.abs()))
        };
        let reach = self.rows.iter().map(reach).fold(0.01, f64::max);
        let reach = (1.1 * reach).min(EDGE);
        let scale = LinearScale {
            low: -100.0 * reach,
            high: 100.0 * reach,
            from,
            to,
        };
        let mut drawing = Drawing::new(width, bottom + 26.0);
        let axis = "samples, % from their median; shaded: its 95 % interval";
        drawing.text("axis", (from, 12.0), Anchor::Start, axis);
        for tick in scale.ticks(layout.choose(70.0, 56.0)) {
            let x = scale.at(tick);
            let class = if tick == 0.0 { "reference" } else { "grid" };
            drawing.line(class, (x, top - 6.0), (x, bottom));
            let words = match tick > 0.0 {
                true => format!("+{}", number::tick(tick)),
                false => number::tick(tick),
            };
            drawing.text("tick", (x, top - 12.0), Anchor::Middle, &words);
        }
        for (index, row) in self.rows.iter().enumerate() {
            let y = top + height * index as f64;
            draw_row(&mut drawing, row, &scale, layout, (y, height));
        }
        drawing
    }
}

fn draw_row(
    drawing: &mut Drawing,
    row: &StripRow,
    scale: &LinearScale,
    layout: Layout,
    (y, height): (f64, f64),
) {
    let place = |share: f64| {
        let percent = (100.0 * share).clamp(scale.low, scale.high);
        percent.is_finite().then(|| scale.at(percent))
    };
    drawing.described("row", &row.words, |drawing| {
        drawing.rectangle("touch", (0.0, y), (layout.width(), height));
        let (room, text_y, middle) = match layout {
            Layout::Wide => (scale.from - 14.0, y + 17.0, y + 13.0),
            Layout::Narrow => (layout.width(), y + 14.0, y + 29.0),
        };
        let label = fitting(&row.label, room, 12.5);
        drawing.text("label", (0.0, text_y), Anchor::Start, &label);
        if let (Some(low), Some(high)) = (place(row.interval.0), place(row.interval.1)) {
            drawing.rectangle("interval", (low, middle - 7.0), (high - low, 14.0));
        }
        for sample in &row.samples {
            let Some(x) = place(*sample) else { continue };
            match sample.abs() > EDGE {
                true => {
                    let side = 5.0 * sample.signum();
                    drawing.polygon(
                        "beyond",
                        (x, middle),
                        &[(side, 0.0), (0.0, -4.0), (0.0, 4.0)],
                    );
                }
                false => drawing.line("sample", (x, middle - 5.0), (x, middle + 5.0)),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlier_is_drawn_at_the_edge_and_counted() {
        let row = StripRow {
            label: "a".to_string(),
            samples: vec![-0.01, 0.0, 0.02, 30.0, f64::NAN],
            interval: (-0.01, 0.02),
            words: "b".to_string(),
        };
        assert_eq!(row.beyond(), 1);
        let chart = StripChart { rows: vec![row] };
        let svg = chart.draw(Layout::Wide).inside("x", "wide");
        assert_eq!(svg.matches(r#"class="sample""#).count(), 3);
        assert_eq!(svg.matches(r#"class="beyond""#).count(), 1);
        assert!(!svg.contains("NaN"), "{svg}");
    }
}
