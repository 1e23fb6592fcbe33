//! Shapes and words of a chart, collected into SVG.

use std::fmt::Write;

/// Where a chart is shown. Scaling one drawing to a telephone would make its words too small to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// On a page of a desk's width.
    Wide,
    /// On a telephone.
    Narrow,
}

impl Layout {
    /// Width of the drawing.
    pub fn width(self) -> f64 {
        match self {
            Layout::Wide => 960.0,
            Layout::Narrow => 358.0,
        }
    }

    /// What fits each layout.
    pub fn choose<T>(self, wide: T, narrow: T) -> T {
        match self {
            Layout::Wide => wide,
            Layout::Narrow => narrow,
        }
    }
}

/// Where words begin, or end, or have their middle.
#[derive(Clone, Copy, Debug)]
pub enum Anchor {
    /// Begin.
    Start,
    /// Middle.
    Middle,
    /// End.
    End,
}

/// What lies below a chart that stands alone.
pub const PAPER: &str = "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n";

/// An SVG in the making.
#[derive(Clone, Debug)]
pub struct Drawing {
    width: f64,
    height: f64,
    body: String,
}

impl Drawing {
    /// An empty one.
    pub fn new(width: f64, height: f64) -> Self {
        Drawing {
            width,
            height,
            body: String::new(),
        }
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(format_args!(
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    /// A rectangle.
    pub fn rectangle(&mut self, class: &str, corner: (f64, f64), size: (f64, f64)) {
        let ((x, y), (width, height)) = (corner, size);
        let (width, height) = (width.max(0.0), height.max(0.0));
        self.push(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#
        ));
    }

    /// A circle.
    pub fn circle(&mut self, class: &str, (x, y): (f64, f64), radius: f64) {
        self.push(format_args!(
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius}"/>"#
        ));
    }

    /// A closed shape around a middle.
    pub fn polygon(&mut self, class: &str, (x, y): (f64, f64), corners: &[(f64, f64)]) {
        let corners: Vec<_> = corners
            .iter()
            .map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy))
            .collect();
        self.push(format_args!(
            r#"<polygon class="{class}" points="{}"/>"#,
            corners.join(" ")
        ));
    }

    /// Words.
    pub fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.push(format_args!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    /// A name that begins here, and behind it as much of `detail` as the room allows.
    pub fn name(&mut self, class: &str, (x, y): (f64, f64), room: f64, name: &str, detail: &str) {
        let size = 12.5;
        let name = fitting(name, room, size);
        // Names are bold, and so a little wider.
        let left = room - 0.6 * size * name.chars().count() as f64 - 6.0;
        let (name, detail) = (escaped(&name), escaped(&beginning(detail, left, size)));
        self.push(format_args!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}"><tspan class="name">{name}</tspan>"#
        ));
        if !detail.is_empty() {
            self.push(format_args!(
                r#"<tspan class="detail" dx="6">{detail}</tspan>"#
            ));
        }
        self.body += "</text>";
    }

    /// Words that end here, along a line that rises by this angle, in degrees.
    pub fn slanted_text(&mut self, class: &str, (x, y): (f64, f64), angle: f64, text: &str) {
        let text = escaped(text);
        self.push(format_args!(
            r#"<text class="{class}" text-anchor="end" transform="translate({x:.1} {y:.1}) rotate({:.1})">{text}</text>"#,
            -angle
        ));
    }

    /// A group that `inside` draws, with words that a pointer or the keyboard brings up.
    pub fn described(&mut self, class: &str, words: &str, inside: impl FnOnce(&mut Self)) {
        let words = escaped(words);
        self.push(format_args!(r#"<g class="{class}"><title>{words}</title>"#));
        inside(self);
        self.body += "</g>\n";
    }

    /// As part of a page, in one of its layouts.
    pub fn inside(&self, label: &str, layout: &str) -> String {
        let Drawing {
            width,
            height,
            body,
        } = self;
        let label = escaped(label);
        format!(
            "<svg class=\"chart {layout}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"group\" \
             aria-label=\"{label}\">\n{body}</svg>"
        )
    }

    /// As a file of its own, on white.
    pub fn alone(&self, title: &str, style: &str) -> String {
        let Drawing {
            width,
            height,
            body,
        } = self;
        let (title, margin) = (escaped(title), 24.0);
        let (full_width, full_height) = (width + 2.0 * margin, height + 3.0 * margin);
        let lower = 2.0 * margin;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"{full_width:.0}\" \
             height=\"{full_height:.0}\" viewBox=\"0 0 {full_width:.0} {full_height:.0}\" role=\"img\">\n\
             <title>{title}</title>\n<style>\n{style}</style>\n\
             {PAPER}\
             <text class=\"title\" x=\"{margin}\" y=\"32\">{title}</text>\n\
             <g transform=\"translate({margin} {lower})\">\n{body}</g>\n</svg>\n"
        )
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to memory cannot fail.
        let _ = self.body.write_fmt(element);
    }
}

/// Text that can stand anywhere in XML. Characters that XML cannot hold at all are replaced.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            '\n' => escaped.push('\n'),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            character if character.is_control() || turns_text(character) => {
                escaped.push('\u{fffd}');
            }
            character => escaped.push(character),
        }
    }
    escaped
}

/// Whether a character changes the direction of all that follows, which could make words say something else.
pub fn turns_text(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// As much of `text` as fits `width` at this size of letters. The end of a long name tells more than its beginning.
pub fn fitting(text: &str, width: f64, size: f64) -> String {
    // No font is at hand to measure with; letters are about this wide on average in any of those in use.
    let room = (width / (0.56 * size)).max(1.0) as usize;
    let count = text.chars().count();
    match count <= room {
        true => text.to_string(),
        false => std::iter::once('…')
            .chain(text.chars().skip(count - room + 1))
            .collect(),
    }
}

/// As much of the beginning of `text` as fits; nothing if that would be a letter or two.
pub fn beginning(text: &str, width: f64, size: f64) -> String {
    let room = (width / (0.56 * size)).max(0.0) as usize;
    match text.chars().count() <= room {
        true => text.to_string(),
        false if room < 4 => String::new(),
        false => text.chars().take(room - 1).chain(['…']).collect(),
    }
}

/// Where the signs of a legend go, as many in a line as fit, and how high the whole is.
pub fn legend_places<'a>(
    words: impl Iterator<Item = &'a str>,
    width: f64,
) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut y) = (0.0, 10.0);
    let mut places = vec![];
    for words in words {
        let needed = 19.0 + 6.7 * words.chars().count() as f64;
        if x > 0.0 && x + needed > width {
            (x, y) = (0.0, y + 22.0);
        }
        places.push((x + 7.0, y));
        x += needed + 20.0;
    }
    (places, y + 12.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_words_stay_words() {
        assert_eq!(
            escaped("</title><img onerror='x'>\u{0}\u{1b}\u{202e}&\""),
            "&lt;/title&gt;&lt;img onerror=&#39;x&#39;&gt;\u{fffd}\u{fffd}\u{fffd}&amp;&quot;"
        );
    }

    #[test]
    fn long_words_are_cut() {
        assert_eq!(fitting("detr-encoder", 100.0, 12.0), "detr-encoder");
        assert_eq!(fitting("detr-encoder", 40.0, 12.0), "…oder");
        assert_eq!(fitting("abc", 0.0, 12.0), "…");
        assert_eq!(beginning("detr-encoder", 40.0, 12.0), "detr…");
        assert_eq!(beginning("detr-encoder", 20.0, 12.0), "");
    }

    #[test]
    fn a_legend_that_is_too_long_for_a_line_takes_several() {
        let lines = |width| {
            let (places, _) = legend_places(["some words of some length"; 3].into_iter(), width);
            let mut heights: Vec<_> = places.iter().map(|(_, y)| *y as i32).collect();
            heights.dedup();
            heights.len()
        };
        assert_eq!((lines(960.0), lines(340.0)), (1, 3));
    }
}
