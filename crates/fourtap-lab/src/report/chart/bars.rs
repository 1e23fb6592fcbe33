//! Horizontal bars from zero, in groups that each have a scale of their own: who takes how long.

use super::drawing::{Anchor, Drawing, Layout, fitting};

/// A chart of such groups.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// The groups, from top to bottom.
    pub groups: Vec<BarGroup>,
}

/// Bars that are compared with each other.
#[derive(Clone, Debug)]
pub struct BarGroup {
    /// What they are.
    pub title: String,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
}

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Whose.
    pub label: String,
    /// How long; none for one that has no number.
    pub length: Option<f64>,
    /// The number, and what to know of it.
    pub value: String,
    /// What must be known before the number is believed; empty where nothing must.
    pub doubt: String,
    /// How it looks.
    pub look: BarLook,
    /// Everything in words, a line a fact.
    pub words: String,
}

/// How a bar looks. Patterns differ, not only colours: the page may be printed in grey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarLook {
    /// This project's: in its colour.
    Ours,
    /// Somebody else's: grey.
    Other,
    /// Not to be compared with the others: hatched.
    Hatched,
}

/// Between the lines of a hatched bar.
const HATCH: f64 = 6.0;

/// Where things lie in a layout.
struct Places {
    layout: Layout,
    /// Where bars begin, and the room for the longest.
    plot: (f64, f64),
    row: f64,
    bar: f64,
    title: f64,
}

impl Places {
    fn of(layout: Layout) -> Self {
        match layout {
            Layout::Wide => Places {
                layout,
                plot: (230.0, 440.0),
                row: 28.0,
                bar: 18.0,
                title: 42.0,
            },
            Layout::Narrow => Places {
                layout,
                plot: (0.0, 340.0),
                row: 46.0,
                bar: 14.0,
                title: 42.0,
            },
        }
    }
}

impl BarChart {
    /// Draws it.
    pub fn draw(&self, layout: Layout) -> Drawing {
        let places = Places::of(layout);
        let rows: usize = self.groups.iter().map(|group| group.bars.len()).sum();
        let height = self.groups.len() as f64 * places.title + rows as f64 * places.row + 6.0;
        let mut drawing = Drawing::new(layout.width(), height);
        let mut y = 0.0;
        for group in &self.groups {
            drawing.text("group", (0.0, y + 28.0), Anchor::Start, &group.title);
            y += places.title;
            let longest = group.bars.iter().filter_map(|bar| bar.length);
            let longest = longest.fold(0.0, f64::max);
            for bar in &group.bars {
                draw_bar(&mut drawing, bar, longest, &places, y);
                y += places.row;
            }
        }
        drawing
    }
}

fn draw_bar(drawing: &mut Drawing, bar: &Bar, longest: f64, places: &Places, y: f64) {
    let (from, room) = places.plot;
    let width = places.layout.width();
    let middle = y + places.row / 2.0;
    let (label_y, label_room, bar_y) = match places.layout {
        Layout::Wide => (middle + 4.5, from - 14.0, middle - places.bar / 2.0),
        Layout::Narrow => (y + 14.0, 150.0, y + 21.0),
    };
    let length = bar.length.map_or(0.0, |length| room * length / longest);
    drawing.described("row", &bar.words, |drawing| {
        drawing.rectangle("touch", (0.0, y), (width, places.row));
        let class = match bar.look {
            BarLook::Ours => "label name",
            _ => "label",
        };
        let label = fitting(&bar.label, label_room, 12.5);
        drawing.text(class, (0.0, label_y), Anchor::Start, &label);
        if bar.length.is_some() {
            // Thinner than a pixel it would look as if there were none.
            let size = (length.max(1.5), places.bar);
            draw_look(drawing, bar.look, (from, bar_y), size);
        }
        let both = match (bar.value.is_empty(), bar.doubt.is_empty()) {
            (false, false) => format!("{}, {}", bar.value, bar.doubt),
            _ => format!("{}{}", bar.value, bar.doubt),
        };
        let (x, anchor, value_room) = match places.layout {
            Layout::Wide => {
                let x = from + length + 9.0;
                (x, Anchor::Start, width - x)
            }
            Layout::Narrow => (width, Anchor::End, width - label_room - 8.0),
        };
        let text = super::drawing::beginning(&both, value_room, 12.5);
        drawing.text(class, (x, label_y), anchor, &text);
    });
}

fn draw_look(drawing: &mut Drawing, look: BarLook, corner: (f64, f64), size: (f64, f64)) {
    let ((x, y), (width, height)) = (corner, size);
    match look {
        BarLook::Ours => drawing.rectangle("bar-ours", corner, size),
        BarLook::Other => drawing.rectangle("bar-other", corner, size),
        BarLook::Hatched => {
            // Lines, not a pattern: a browser draws no pattern whose definition stands in a chart that is hidden, as
            // the one for the other layout is.
            drawing.rectangle("bar-hatched", corner, size);
            let mut start = HATCH - height;
            while start < width {
                let low = (-start).max(0.0);
                let high = (width - start).min(height);
                drawing.line(
                    "hatch",
                    (x + start + low, y + height - low),
                    (x + start + high, y + height - high),
                );
                start += HATCH;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(length: Option<f64>, look: BarLook) -> Bar {
        Bar {
            label: "<a>".to_string(),
            length,
            value: "1 ms".to_string(),
            doubt: String::new(),
            look,
            words: "b".to_string(),
        }
    }

    fn drawn(bars: Vec<Bar>) -> String {
        let title = "forward".to_string();
        let groups = vec![BarGroup { title, bars }];
        BarChart { groups }.draw(Layout::Wide).inside("x", "wide")
    }

    #[test]
    fn the_longest_bar_takes_all_the_room_and_others_their_share() {
        let svg = drawn(vec![
            bar(Some(1.0), BarLook::Ours),
            bar(Some(4.0), BarLook::Other),
        ]);
        assert!(
            svg.contains(r#"class="bar-ours" x="230.0" y="47.0" width="110.0""#),
            "{svg}"
        );
        assert!(svg.contains(r#"width="440.0""#), "{svg}");
        assert!(svg.contains("&lt;a&gt;") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn lines_of_a_hatched_bar_stay_inside_it() {
        let svg = drawn(vec![bar(Some(1.0), BarLook::Hatched)]);
        let ends = |name: &str| -> Vec<f64> {
            let lines = svg.split("<line").skip(1);
            let value = |line: &str| line.split(&format!("{name}=\"")).nth(1).map(str::to_string);
            lines
                .filter_map(value)
                .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
                .collect()
        };
        let (xs, ys) = (
            [ends("x1"), ends("x2")].concat(),
            [ends("y1"), ends("y2")].concat(),
        );
        assert!(xs.len() > 100);
        assert!(xs.iter().all(|x| (230.0..=670.0).contains(x)), "{xs:?}");
        assert!(ys.iter().all(|y| (47.0..=65.0).contains(y)), "{ys:?}");
    }

    #[test]
    fn an_implementation_without_a_time_has_no_bar() {
        let svg = drawn(vec![bar(None, BarLook::Other)]);
        assert!(!svg.contains("bar-other"), "{svg}");
    }
}
