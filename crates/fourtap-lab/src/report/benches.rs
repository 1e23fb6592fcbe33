//! What the sections about benchmarks share.

use super::chart::{Chart, Kind, Mark, Row, Shape};
use super::number::{self, milliseconds, percent, times};
use super::page::{Cell, Holds, TableOf};
use crate::record::{BenchRecord, Timing};

/// Benchmarks whose samples are shown one by one: those that are least certain.
const MOST_STRIPS: usize = 12;

/// Fewer samples than this show nothing.
const FEWEST_SAMPLES: usize = 3;

/// Somebody else's time for the same problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peer<'a> {
    /// Who.
    pub name: &'a str,
    /// Milliseconds.
    pub ms: f64,
    /// How and when, in words.
    pub measured: &'a str,
}

/// How many times faster than the fastest peer, hot.
pub fn times_best_peer(record: &BenchRecord) -> Option<f64> {
    let best = record.operator().peers(record).first().copied()?;
    Some(best.ms / record.median_ms()?)
}

/// What tells benchmarks of a workload and a pass apart: "uniform f16", and whatever is unusual.
pub fn data_label(record: &BenchRecord) -> String {
    let (distribution, dtype) = (&record.distribution, &record.dtypes.value);
    let pass = record.direction.name();
    let usual = format!("{}/{distribution}/{dtype}/{pass}", record.workload);
    let name = record.name();
    let unusual = name.strip_prefix(&usual).unwrap_or("");
    let unusual = unusual.replace("/coordinates-", ", coordinates ");
    let unusual = unusual.replace("/kernel-", ", kernel ").replace('/', ", ");
    format!("{distribution} {dtype}{unusual}")
}

/// With columns for the times, or in a word why there are none.
pub fn with_times<'a>(table: TableOf<'a, &'a BenchRecord>) -> TableOf<'a, &'a BenchRecord> {
    table
        .column("hot ms", Holds::Numbers, |it| {
            match it.verification.passed {
                true => Cell::number(it.median_ms(), milliseconds).strong(),
                false => Cell::from("wrong")
                    .with_detail("failed verification")
                    .strong(),
            }
        })
        .numbers("±", percent, |it| it.hot.as_ref().map(Timing::uncertainty))
        .numbers("cold ms", milliseconds, |it| {
            Some(it.cold.as_ref()?.median_ms)
        })
}

/// With columns for what ceilings allow, and for how exact and how much faster than the baseline a result is.
pub fn with_standing<'a>(table: TableOf<'a, &'a BenchRecord>) -> TableOf<'a, &'a BenchRecord> {
    table
        .numbers("of roof", percent, |it| {
            Some(it.roof.as_ref()?.hot_ms / it.median_ms()?)
        })
        .words("roof", |it| match &it.roof {
            Some(roof) if roof.suspicious => format!("{}, suspicious", roof.hot_limit),
            Some(roof) => roof.hot_limit.clone(),
            None => String::new(),
        })
        .numbers("× baseline", times, |it| it.times_baseline())
        .numbers("error", number::error, |it| {
            it.hot.as_ref().map(|_| it.verification.relative_error())
        })
}

/// A mark at a hot median, with its interval.
pub fn hot_mark(shape: Shape, hot: &Timing) -> Mark {
    Mark::new(shape, hot.median_ms).between(hot.ci_low_ms, hot.ci_high_ms)
}

/// The samples of the benchmarks that are least certain.
pub fn strips(records: &[&BenchRecord], labels: &'static [&'static str]) -> Option<Chart> {
    let timed = records.iter().enumerate();
    let mut timed: Vec<(usize, &Timing)> = timed
        .filter_map(|(index, record)| Some((index, record.hot.as_ref()?)))
        .filter(|(_, hot)| hot.samples_ms.len() >= FEWEST_SAMPLES && hot.median_ms > 0.0)
        .collect();
    timed.sort_by(|(_, a), (_, b)| b.uncertainty().total_cmp(&a.uncertainty()));
    let total = timed.len();
    timed.truncate(MOST_STRIPS);
    let row = |(of, hot): &(usize, &Timing)| {
        let share = |sample: f64| (1e5 * (sample / hot.median_ms - 1.0)).round() / 1e3;
        let samples = hot.samples_ms.iter().map(|sample| share(*sample));
        let mut marks: Vec<Mark> = samples.map(|at| Mark::new(Shape::Sample, at)).collect();
        marks[0].interval = Some((share(hot.ci_low_ms), share(hot.ci_high_ms)));
        Row::of(*of, marks)
    };
    let rows: Vec<Row> = timed.iter().map(row).collect();
    let shown = match total > rows.len() {
        true => format!(
            "The {} of {total} whose medians are least certain, one",
            rows.len()
        ),
        false => "The least certain median first, one".to_string(),
    };
    (!rows.is_empty()).then(|| Chart {
        title: "Variation of the timings".to_string(),
        caption: format!(
            "{shown} stroke per hot sample. Samples that lie far outside are triangles at the edge."
        ),
        kind: Kind::Strips,
        axis: "samples, % from their median; shaded: its 95 % interval".to_string(),
        labels,
        rows,
        ..Chart::default()
    })
}
