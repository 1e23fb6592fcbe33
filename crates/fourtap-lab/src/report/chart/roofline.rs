//! Arithmetic intensity (FLOP/byte) against performance (FLOP/s), under the ceilings that were measured.

use super::drawing::{Anchor, Drawing, Layout, legend_places};
use super::scale::LogScale;
use crate::report::number;

/// Points under roofs.
#[derive(Clone, Debug)]
pub struct RooflineChart {
    /// What limits.
    pub roofs: Vec<Roof>,
    /// What was measured.
    pub points: Vec<Point>,
}

/// A ceiling.
#[derive(Clone, Debug, PartialEq)]
pub struct Roof {
    /// The probe that measured it.
    pub probe: String,
    /// Of which memory; none limits operations alone.
    pub level: Option<Level>,
    /// GB/s or GFLOP/s.
    pub rate: f64,
}

/// A level of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The first cache.
    L1,
    /// The second.
    L2,
    /// Memory.
    Dram,
}

/// A benchmark at one level of memory.
#[derive(Clone, Debug)]
pub struct Point {
    /// Whose bytes are counted.
    pub level: Level,
    /// Whether they were counted by the hardware; else by the model.
    pub counted: bool,
    /// Arithmetic intensity, FLOP/byte.
    pub intensity: f64,
    /// GFLOP/s.
    pub speed: f64,
    /// It lies above a roof without a reason.
    pub suspicious: bool,
    /// Everything in words, one line per fact.
    pub words: String,
}

impl Level {
    /// All, the nearest first.
    pub const ALL: [Level; 3] = [Level::L1, Level::L2, Level::Dram];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Level::L1 => "L1",
            Level::L2 => "L2",
            Level::Dram => "DRAM",
        }
    }

    fn class(self) -> &'static str {
        match self {
            Level::L1 => "l1",
            Level::L2 => "l2",
            Level::Dram => "dram",
        }
    }

    /// A square for L1, a triangle for L2, a disc for DRAM; hollow if counted.
    fn draw(self, drawing: &mut Drawing, (x, y): (f64, f64), counted: bool) {
        let filled = if counted { "counted" } else { "modelled" };
        let class = format!("point {} {filled}", self.class());
        match self {
            Level::L1 => drawing.rectangle(&class, (x - 3.7, y - 3.7), (7.4, 7.4)),
            Level::L2 => drawing.polygon(&class, (x, y), &[(0.0, -5.0), (4.8, 3.6), (-4.8, 3.6)]),
            Level::Dram => drawing.circle(&class, (x, y), 4.2),
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

    fn words(&self, layout: Layout) -> String {
        let words = match self.level {
            Some(level) => format!("{} {}", level.name(), number::bandwidth(self.rate)),
            None => number::operations(self.rate),
        };
        match (layout, self.level) {
            (Layout::Narrow, Some(_)) => words,
            _ => format!("{words} · {}", self.probe),
        }
    }
}

impl RooflineChart {
    /// Draws it.
    pub fn draw(&self, layout: Layout) -> Drawing {
        let width = layout.width();
        let (left, right) = (layout.choose(64.0, 44.0), width - 8.0);
        let legend = self.legend();
        let words = legend.iter().map(|(_, _, words)| words.as_str());
        let (places, legend_height) = legend_places(words, width);
        let top = legend_height + 32.0;
        let bottom = top + layout.choose(460.0, 380.0);
        let mut drawing = Drawing::new(width, bottom + 44.0);
        let flat = || self.roofs.iter().filter(|roof| roof.level.is_none());
        let steep = || self.roofs.iter().filter(|roof| roof.level.is_some());
        let across = self.points.iter().map(|point| point.intensity);
        // So far that every flat roof has a beginning, and the lowest meets the lowest bandwidth.
        let least = |rates: &mut dyn Iterator<Item = f64>| rates.reduce(f64::min);
        let most = |rates: &mut dyn Iterator<Item = f64>| rates.reduce(f64::max);
        let corner = least(&mut flat().map(|roof| roof.rate))
            .zip(least(&mut steep().map(|roof| roof.rate)))
            .map(|(operations, bytes)| operations / bytes);
        let beginning = most(&mut flat().map(|roof| roof.rate))
            .zip(most(&mut steep().map(|roof| roof.rate)))
            .map(|(operations, bytes)| 2.5 * operations / bytes);
        let shown = across.clone().chain(corner).chain(beginning);
        let x_scale = LogScale::around(shown, left, right);
        let up = self.points.iter().map(|point| point.speed);
        let lowest = across.fold(f64::INFINITY, f64::min);
        let roofs = flat().map(|roof| roof.rate);
        // With room for its name where no flat roof makes room above it.
        let roofs = roofs.chain(steep().map(|roof| 4.0 * roof.allows(lowest)));
        let y_scale = LogScale::around(up.chain(roofs), bottom, top);

        draw_axes(
            &mut drawing,
            layout,
            &x_scale,
            &y_scale,
            (left, right, top, bottom),
        );
        for ((level, counted, words), (x, y)) in legend.iter().zip(places) {
            level.draw(&mut drawing, (x, y), *counted);
            drawing.text("legend", (x + 12.0, y + 4.0), Anchor::Start, words);
        }
        let ends = Ends {
            bytes: most(&mut steep().map(|roof| roof.rate.log10())),
            operations: most(&mut flat().map(|roof| roof.rate.log10())),
        };
        for roof in &self.roofs {
            let words = roof.words(layout);
            draw_roof(&mut drawing, roof, &words, (&x_scale, &y_scale), &ends);
        }
        // What is suspicious lies on top.
        let (plain, strange): (Vec<_>, Vec<_>) =
            self.points.iter().partition(|point| !point.suspicious);
        for point in plain.into_iter().chain(strange) {
            let (Some(x), Some(y)) = (x_scale.at(point.intensity), y_scale.at(point.speed)) else {
                continue;
            };
            drawing.described("row mark", &point.words, |drawing| {
                drawing.circle("touch", (x, y), 9.0);
                point.level.draw(drawing, (x, y), point.counted);
                if point.suspicious {
                    drawing.circle("suspicious", (x, y), 9.0);
                }
            });
        }
        drawing
    }

    /// The signs in use and what they mean.
    fn legend(&self) -> Vec<(Level, bool, String)> {
        let mut legend = vec![];
        for level in Level::ALL {
            for counted in [false, true] {
                let shown = |point: &Point| point.level == level && point.counted == counted;
                if !self.points.iter().any(shown) {
                    continue;
                }
                let words = match (level, counted) {
                    (_, true) => format!("{}, bytes counted", level.name()),
                    (Level::L1, false) => "L1, gathered bytes".to_string(),
                    (_, false) => format!("{}, least bytes", level.name()),
                };
                legend.push((level, counted, words));
            }
        }
        legend
    }
}

fn draw_axes(
    drawing: &mut Drawing,
    layout: Layout,
    x_scale: &LogScale,
    y_scale: &LogScale,
    (left, right, top, bottom): (f64, f64, f64, f64),
) {
    for tick in x_scale.ticks(layout.choose(80.0, 56.0)) {
        let Some(x) = x_scale.at(tick) else { continue };
        drawing.line("grid", (x, top), (x, bottom));
        let words = number::tick(tick);
        drawing.text("tick", (x, bottom + 16.0), Anchor::Middle, &words);
    }
    for tick in y_scale.ticks(48.0) {
        let Some(y) = y_scale.at(tick) else { continue };
        drawing.line("grid", (left, y), (right, y));
        let words = match tick {
            tick if tick >= 1e6 => format!("{} P", number::tick(tick / 1e6)),
            tick if tick >= 1e3 => format!("{} T", number::tick(tick / 1e3)),
            tick => format!("{} G", number::tick(tick)),
        };
        drawing.text("tick", (left - 8.0, y + 4.0), Anchor::End, &words);
    }
    let below = (right, bottom + 36.0);
    drawing.text(
        "axis",
        below,
        Anchor::End,
        "arithmetic intensity (FLOP/byte)",
    );
    drawing.text(
        "axis",
        (0.0, top - 10.0),
        Anchor::Start,
        "performance
(FLOP/s)",
    );
}

/// Logarithms of the highest roofs of either kind, at which those of the other kind end.
struct Ends {
    bytes: Option<f64>,
    operations: Option<f64>,
}

/// How far across the chart the names of slanted roofs reach.
const NAME_END: f64 = 0.58;

fn draw_roof(
    drawing: &mut Drawing,
    roof: &Roof,
    words: &str,
    (x_scale, y_scale): (&LogScale, &LogScale),
    ends: &Ends,
) {
    let rate = roof.rate.log10();
    if !rate.is_finite() {
        return;
    }
    let (x_low, x_high) = x_scale.range();
    let (y_low, y_high) = y_scale.range();
    let Some(level) = roof.level else {
        let begin = ends.bytes.map_or(x_low, |bytes| x_low.max(rate - bytes));
        let (left, right, y) = (
            x_scale.at_log(begin.min(x_high)),
            x_scale.at_log(x_high),
            y_scale.at_log(rate),
        );
        drawing.line("roof flat", (left, y), (right, y));
        drawing.text("roof-name", (right, y - 6.0), Anchor::End, words);
        return;
    };
    // speed = rate * intensity is a straight line between logarithms; cut to what the axes show.
    let highest = ends.operations.map_or(y_high, |most| y_high.min(most));
    let (begin, end) = (x_low.max(y_low - rate), x_high.min(highest - rate));
    if begin >= end {
        return;
    }
    let place = |log: f64| (x_scale.at_log(log), y_scale.at_log(log + rate));
    let (from, to) = (place(begin), place(end));
    let class = format!("roof {}", level.class());
    drawing.line(&class, from, to);
    let angle = (from.1 - to.1).atan2(to.0 - from.0);
    // To the left of the flat roofs' names, which stand at the right end.
    let name_end = end.min(x_low + NAME_END * (x_high - x_low));
    let (along, above) = (place(name_end), 6.0);
    let end = (along.0 - above * angle.sin(), along.1 - above * angle.cos());
    drawing.slanted_text("roof-name", end, angle.to_degrees(), words);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(intensity: f64, speed: f64, suspicious: bool) -> Point {
        Point {
            level: Level::Dram,
            counted: false,
            intensity,
            speed,
            suspicious,
            words: "a point".to_string(),
        }
    }

    fn roof(level: Option<Level>, rate: f64) -> Roof {
        Roof {
            probe: "copy".to_string(),
            level,
            rate,
        }
    }

    #[test]
    fn a_point_above_its_roof_is_shown_where_it_lies() {
        let chart = |speed| RooflineChart {
            roofs: vec![roof(Some(Level::Dram), 100.0), roof(None, 1000.0)],
            points: vec![point(1.0, 10.0, false), point(1.0, speed, true)],
        };
        let svg = chart(5e5).draw(Layout::Wide).inside("x", "wide");
        assert!(svg.contains("suspicious"));
        assert_ne!(svg, chart(5e6).draw(Layout::Wide).inside("x", "wide"));
    }

    #[test]
    fn a_roof_allows_its_bandwidth_times_the_arithmetic_intensity() {
        assert_eq!(roof(Some(Level::L1), 100.0).allows(2.5), 250.0);
        assert_eq!(roof(None, 100.0).allows(2.5), 100.0);
    }

    #[test]
    fn extremes_have_finite_places() {
        let chart = RooflineChart {
            roofs: vec![roof(Some(Level::L1), 1e300), roof(None, 0.0)],
            points: vec![point(1e-300, 1e300, false), point(0.0, 1.0, false)],
        };
        for layout in [Layout::Wide, Layout::Narrow] {
            let svg = chart.draw(layout).inside("x", "wide");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
