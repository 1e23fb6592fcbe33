//! What calls from Python take.

use super::chart::{Bar, BarChart, BarGroup, BarLook, Chart};
use super::number::{self, error};
use super::page::{Block, Section};
use crate::record::{PythonRecord, Run};

/// The section; none without such records.
pub fn section(runs: &[Run]) -> Option<Section> {
    let records: Vec<&PythonRecord> = runs.iter().flat_map(|run| &run.python).collect();
    let mut kinds: Vec<(&str, &str)> = vec![];
    for record in &records {
        let kind = (record.benchmark.as_str(), record.device.as_str());
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    if kinds.is_empty() {
        return None;
    }
    let lead = "Microseconds of a call as a Python program sees it: medians, with the interval they lie in where a bar \
                is pointed at. Bars of a group begin at zero and share a scale.";
    let mut blocks = vec![Block::words(lead)];
    for (number, (benchmark, device)) in kinds.into_iter().enumerate() {
        let same = |it: &&&PythonRecord| it.benchmark == benchmark && it.device == device;
        let records: Vec<&PythonRecord> = records.iter().filter(same).copied().collect();
        let chart = BarChart {
            groups: groups(&records),
        };
        let title = format!("{} on {device}", benchmark.replace('_', " "));
        let slug = format!("python-{}", number + 1);
        let caption = "Shorter is faster.";
        blocks.push(Block::Chart {
            chart: Chart::new(&slug, &title, caption, |layout| chart.draw(layout)),
        });
    }
    Some(Section {
        id: "python",
        title: "Calls from Python",
        blocks,
    })
}

/// What was called, and by whom.
fn groups(records: &[&PythonRecord]) -> Vec<BarGroup> {
    let files = records.iter().any(|it| it.file != records[0].file);
    let mut groups: Vec<BarGroup> = vec![];
    for record in records {
        let title = title(record);
        let bar = bar(record, files);
        match groups.iter_mut().find(|group| group.title == title) {
            Some(group) => group.bars.push(bar),
            None => groups.push(BarGroup {
                title,
                bars: vec![bar],
            }),
        }
    }
    groups
}

fn title(record: &PythonRecord) -> String {
    let mut words = vec![record.what.clone()];
    words.extend(record.positions.map(|it| format!("{it} positions")));
    words.extend(record.channels.map(|it| format!("{it} channels")));
    words.extend(record.dtype.clone());
    words.extend((record.causal == Some(true)).then(|| "causal".to_string()));
    words.join(", ")
}

fn bar(record: &PythonRecord, with_file: bool) -> Bar {
    let mut label: Vec<String> = record.implementation.iter().cloned().collect();
    let levels = record.levels.as_ref();
    label.extend(levels.map(|it| format!("levels as {it}")));
    if with_file {
        label.push(record.file.clone());
    }
    let label = label.join(", ");
    let time = |time: f64| number::rate(time);
    let mut words = vec![
        title(record),
        label.clone(),
        format!(
            "{} us, from {} to {}",
            time(record.median_us),
            time(record.low_us),
            time(record.high_us)
        ),
    ];
    words.extend(record.verified.map(|it| format!("error: {}", error(it))));
    let is_ours = |it: &String| it.starts_with("fourtap");
    Bar {
        look: match record.implementation.as_ref().is_none_or(is_ours) {
            true => BarLook::Ours,
            false => BarLook::Other,
        },
        label,
        length: Some(record.median_us),
        value: format!("{} us", time(record.median_us)),
        doubt: String::new(),
        words: words.join("\n"),
    }
}
