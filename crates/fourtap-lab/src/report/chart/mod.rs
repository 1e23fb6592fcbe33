//! Charts as SVG, drawn here: in a page their colours are the page's, alone they bring their own.

mod bars;
mod dots;
mod drawing;
mod picture;
mod roofline;
mod scale;
mod strip;

use serde::Serialize;

pub use bars::{Bar, BarChart, BarGroup, BarLook};
pub use dots::{DotChart, DotRow, Mark, Shape};
pub use drawing::{Drawing, Layout, PAPER, escaped, turns_text};
pub use picture::png;
pub use roofline::{Level, Point, Roof, RooflineChart};
pub use strip::{StripChart, StripRow};

/// The colour of the page a chart without a background is shown on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Theme {
    /// Light.
    #[default]
    Light,
    /// Dark.
    Dark,
}

/// Colours of the page in daylight, and of charts that stand alone; templates/style.css has those of the night.
pub const COLOURS: [(&str, &str); 9] = [
    ("--paper", "#ffffff"),
    ("--raised", "#f6f7f6"),
    ("--ink", "#16201d"),
    ("--muted", "#55605c"),
    ("--line", "#d5dad7"),
    ("--faint", "#e9eceb"),
    ("--accent", "#0b6b5f"),
    ("--wash", "#d3ebe6"),
    ("--peer", "#6f5a1e"),
];

/// How charts look, in terms of those colours.
const STYLE: &str = include_str!("../../../templates/chart.css");

/// A chart, drawn for wide and for narrow places.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    /// As part of a file's name.
    pub slug: String,
    /// What it shows.
    pub title: String,
    /// How to read it.
    pub caption: String,
    /// Drawn for a page on a desk.
    pub wide: String,
    /// Drawn for a telephone.
    pub narrow: String,
    #[serde(skip)]
    drawing: Drawing,
}

impl Chart {
    /// What `draw` draws, in every form.
    pub fn new(slug: &str, title: &str, caption: &str, draw: impl Fn(Layout) -> Drawing) -> Self {
        let wide = draw(Layout::Wide);
        Chart {
            slug: slug.to_string(),
            title: title.to_string(),
            caption: caption.to_string(),
            wide: wide.inside(title, "wide"),
            narrow: draw(Layout::Narrow).inside(title, "narrow"),
            drawing: wide,
        }
    }

    /// As a file of its own, on white.
    pub fn alone(&self) -> String {
        let style = style_with(COLOURS.into_iter());
        self.drawing.alone(&self.title, &style)
    }

    /// As a file of its own without a background.
    pub fn transparent(&self, theme: Theme) -> String {
        let style = match theme {
            Theme::Light => style_with(COLOURS.into_iter()),
            Theme::Dark => style_with(dark_colours()),
        };
        // The style of paper would only be a rule for what is not there.
        let svg = self.drawing.alone(&self.title, &style);
        svg.replace(PAPER, "")
    }
}

/// Colours of the page at night, as its style says them.
fn dark_colours() -> impl Iterator<Item = (&'static str, &'static str)> {
    let style = include_str!("../../../templates/style.css");
    let declarations = style.split([';', '{', '}']);
    declarations
        .filter_map(|declaration| declaration.trim().split_once(": "))
        .filter(|(name, colour)| name.starts_with("--") && colour.starts_with('#'))
}

/// The style with colours written out: programs that draw SVG know no variables.
fn style_with(colours: impl Iterator<Item = (&'static str, &'static str)>) -> String {
    colours.fold(STYLE.to_string(), |style, (name, colour)| {
        style.replace(&format!("var({name})"), colour)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_chart_that_stands_alone_needs_no_page() {
        for style in [style_with(COLOURS.into_iter()), style_with(dark_colours())] {
            assert!(!style.contains("var("), "{style}");
        }
    }

    #[test]
    fn a_chart_without_a_background_has_none() {
        let chart = Chart::new("a", "b", "c", |_| Drawing::new(10.0, 10.0));
        assert!(chart.alone().contains("class=\"paper\""));
        for theme in [Theme::Light, Theme::Dark] {
            assert!(!chart.transparent(theme).contains("class=\"paper\""));
        }
        assert_ne!(
            chart.transparent(Theme::Light),
            chart.transparent(Theme::Dark)
        );
    }

    #[test]
    fn words_can_be_read_by_day_and_by_night() {
        let day: BTreeMap<&str, &str> = COLOURS.into_iter().collect();
        let night: BTreeMap<&str, &str> = dark_colours().collect();
        assert!(night.keys().eq(day.keys()), "{night:?}");
        for colours in [day, night] {
            for ink in ["--ink", "--muted", "--accent", "--peer"] {
                for paper in ["--paper", "--raised"] {
                    let [a, b] = [ink, paper].map(|name| luminance(colours[name]));
                    let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                    assert!(contrast >= 4.5, "{ink} on {paper}: {contrast}");
                }
            }
        }
    }

    /// As the guidelines for accessible pages define it.
    fn luminance(colour: &str) -> f64 {
        let channel = |place: usize| {
            let value = u8::from_str_radix(&colour[place..place + 2], 16).unwrap();
            let value = f64::from(value) / 255.0;
            match value <= 0.04045 {
                true => value / 12.92,
                false => ((value + 0.055) / 1.055).powf(2.4),
            }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }
}
