//! Timings, sample by sample.

use super::chart::{Chart, StripChart, StripRow};
use super::number::{counted, milliseconds, percent};
use crate::record::{BenchRecord, Timing};

/// Benchmarks whose samples are shown one by one: those that are least certain.
const MOST_STRIPS: usize = 12;

/// Fewer samples than this show nothing.
const FEWEST_SAMPLES: usize = 3;

/// The samples of the benchmarks that are least certain.
pub fn strips(records: &[&BenchRecord], slug: &str) -> Option<Chart> {
    let mut timed: Vec<_> = records
        .iter()
        .filter_map(|record| Some((record, record.hot.as_ref()?)))
        .filter(|(_, hot)| hot.samples_ms.len() >= FEWEST_SAMPLES && hot.median_ms > 0.0)
        .collect();
    timed.sort_by(|(_, a), (_, b)| b.uncertainty().total_cmp(&a.uncertainty()));
    let total = timed.len();
    timed.truncate(MOST_STRIPS);
    let rows: Vec<_> = timed
        .into_iter()
        .map(|(record, hot)| strip(record, hot))
        .collect();
    if rows.is_empty() {
        return None;
    }
    let beyond: usize = rows.iter().map(StripRow::beyond).sum();
    let mut caption = match total > rows.len() {
        true => format!(
            "The {} benchmarks of {total} whose medians are least certain, one stroke per hot sample.",
            rows.len()
        ),
        false => "One stroke per hot sample, the least certain median first.".to_string(),
    };
    if beyond > 0 {
        caption += &format!(
            " {} far outside, at the edge as a triangle.",
            match beyond {
                1 => "1 sample lies".to_string(),
                beyond => format!("{beyond} samples lie"),
            }
        );
    }
    let chart = StripChart { rows };
    let title = "Variation of the timings";
    Some(Chart::new(slug, title, &caption, |layout| {
        chart.draw(layout)
    }))
}

fn strip(record: &BenchRecord, hot: &Timing) -> StripRow {
    let share = |sample: f64| sample / hot.median_ms - 1.0;
    StripRow {
        label: record.name(),
        samples: hot.samples_ms.iter().copied().map(share).collect(),
        interval: (share(hot.ci_low_ms), share(hot.ci_high_ms)),
        words: format!("{}\n{}", record.name(), hot_in_words(hot)),
    }
}

/// A hot time, with all that is known of it.
pub fn hot_in_words(hot: &Timing) -> String {
    format!(
        "hot: {} ms ± {} ({})",
        milliseconds(hot.median_ms),
        percent(hot.uncertainty()),
        counted(hot.samples_ms.len(), "sample")
    )
}
