//! What the device would allow, and what was reached.

use crate::cli::Direction;
use crate::operators::msda::{Msda, ProblemSizes};
use crate::record::{BenchRecord, CountersRecord, ProbeRecord, Unit, billions_a_second};
use crate::report::chart::{Chart, Kind, Level, Mark, Roof, Row, Shape};
use crate::report::number::{self, counted_as, milliseconds, percent, rate};
use crate::report::{Block, Part, Section, Table};

/// Ceilings measured in the same run differ by this much anyway.
const TOLERANCE: f64 = 1.02;

/// Bytes of a sector, in which the L2 cache counts.
const SECTOR: f64 = 32.0;

/// Which probes measure a level's bandwidth, on any device.
const MEMORY: [(Level, &[&str]); 3] = [
    (Level::L1, &["gather-128-l1", "gather-64-l1"]),
    (Level::L2, &["l2-read", "read-l2", "gather-128-l2"]),
    (Level::Dram, &["copy", "dram-read"]),
];

/// Which measure operations.
const OPERATIONS: [&str; 4] = ["fma-f32", "fma-f16x2", "tensor-mma-f16", "tensor-wgmma-f16"];

/// Why a point may lie above the roof of DRAM.
const CACHED: &str = "hot, what caches hold need not come from DRAM";

/// Why a point may lie above the roof of L1.
const LONGER: &str = "its rows are longer than the segments that the probe of this roof reads";

const LEAD: &str = "Both axes are logarithmic. Roofs are ceilings measured in the same run, not datasheet figures. A \
                    benchmark is one point per level of the memory hierarchy whose bytes are known: at L1 all that \
                    its samples read (hot), at DRAM what must move at least once (cold, where that was timed), and \
                    where hardware counters were read, what really moved. Nothing is clamped.";

const LEGEND: [(Shape, &str); 4] = [
    (Shape::L1, "L1, gathered bytes"),
    (Shape::L2Counted, "L2, bytes counted"),
    (Shape::Dram, "DRAM, least bytes"),
    (Shape::DramCounted, "DRAM, bytes counted"),
];

/// A benchmark at one level of memory.
struct Point {
    name: String,
    level: Level,
    /// Whether the hardware counted the bytes; else the model did.
    counted: bool,
    bytes: f64,
    /// Arithmetic intensity, FLOP/byte.
    intensity: f64,
    /// GFLOP/s.
    speed: f64,
    time: String,
    /// Of what the roof allows.
    share: Option<f64>,
    /// Above its roof for a known reason.
    explained: Option<&'static str>,
    /// Above a roof without a reason.
    suspicious: bool,
}

/// The section; none without both ceilings and benchmarks.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts {
        let roofs = roofs(&part.probes);
        let has_memory = roofs.iter().any(|roof| roof.level.is_some());
        if !has_memory || part.of(&Msda).is_empty() {
            continue;
        }
        blocks.extend(part.title.clone().map(Block::Heading));
        for direction in Direction::ALL {
            let points = points(part, direction, &roofs);
            if !points.is_empty() {
                blocks.push(Block::Table(table(direction.title(), &points, &roofs)));
            }
        }
    }
    Section::of("roofline", "Roofline", LEAD, blocks)
}

/// The best measured ceiling of each kind.
fn roofs(probes: &[&ProbeRecord]) -> Vec<Roof> {
    let best = |names: &[&str], unit: Unit, level: Option<Level>| {
        let measured = probes.iter().filter(|probe| {
            names.contains(&probe.name.as_str()) && probe.is_measured() && probe.unit == Some(unit)
        });
        let roof = |probe: &&ProbeRecord| {
            let rate = probe.rate.filter(|rate| rate.is_finite() && *rate > 0.0)?;
            Some(Roof {
                probe: probe.name.clone(),
                level,
                rate,
                words: match level {
                    Some(level) => format!("{} {}", level.name(), number::bandwidth(rate)),
                    None => number::operations(rate),
                },
            })
        };
        measured
            .filter_map(roof)
            .max_by(|a, b| a.rate.total_cmp(&b.rate))
    };
    let memory = MEMORY
        .iter()
        .filter_map(|(level, names)| best(names, Unit::GigabytesASecond, Some(*level)));
    let operations = OPERATIONS
        .iter()
        .filter_map(|name| best(&[name], Unit::GigaflopASecond, None));
    memory.chain(operations).collect()
}

fn table(pass: &str, points: &[Point], roofs: &[Roof]) -> Table {
    let doubt = |it: &Point| match it.explained {
        _ if it.suspicious => "suspicious: above a roof".to_string(),
        Some(reason) => format!("above the roof: {reason}"),
        None => String::new(),
    };
    Table::of(format!("{pass}, roofline"), points)
        .words("benchmark", |it| it.name.as_str())
        .words("bytes at", |it| match it.counted {
            true => format!("{}, counted", it.level.name()),
            false => it.level.name().to_string(),
        })
        .numbers(
            "bytes",
            |bytes| crate::units::bytes(bytes as u64),
            |it| Some(it.bytes),
        )
        .numbers("FLOP/byte", rate, |it| Some(it.intensity))
        .numbers("GFLOP/s", rate, |it| Some(it.speed))
        .words("time", |it| it.time.as_str())
        .numbers("of its roof", percent, |it| it.share)
        .sentences("doubt", doubt)
        .table()
        .searched_as("local f16")
        .folded(format!("{pass}: the points as a table"))
        .drawn(chart(pass, points, roofs))
}

fn chart(pass: &str, points: &[Point], roofs: &[Roof]) -> Chart {
    let row = |(of, point): (usize, &Point)| {
        Row::of(
            of,
            vec![Mark {
                height: Some(point.speed),
                suspicious: point.suspicious,
                ..Mark::new(point.shape(), point.intensity)
            }],
        )
    };
    let chart = Chart {
        title: format!("{pass}: arithmetic intensity and performance"),
        caption: caption(points),
        kind: Kind::Roofline,
        labels: &["benchmark", "bytes at"],
        rows: points.iter().enumerate().map(row).collect(),
        roofs: roofs.to_vec(),
        ..Chart::default()
    };
    chart.with_legend(&LEGEND)
}

fn caption(points: &[Point]) -> String {
    let lie = |count| counted_as(count, "point lies", "points lie");
    let suspicious = points.iter().filter(|it| it.suspicious);
    let suspicious = suspicious.map(|it| format!("{} ({})", it.name, it.level.name()));
    let suspicious: Vec<String> = suspicious.collect();
    let mut caption = match suspicious.len() {
        0 => "No point lies above its roof without a reason.".to_string(),
        count => format!(
            "Suspicious, ringed: {} above a roof, so a ceiling, the count of bytes or the result is wrong: {}.",
            lie(count),
            suspicious.join(", ")
        ),
    };
    for reason in [CACHED, LONGER] {
        let explained = points.iter().filter(|it| it.explained == Some(reason));
        match explained.count() {
            0 => {}
            count => {
                let lie = lie(count);
                caption += &format!(" {lie} above the roof for a known reason: {reason}.");
            }
        }
    }
    caption
}

impl Point {
    fn shape(&self) -> Shape {
        match (self.level, self.counted) {
            (Level::L1, _) => Shape::L1,
            (Level::L2, _) => Shape::L2Counted,
            (Level::Dram, false) => Shape::Dram,
            (Level::Dram, true) => Shape::DramCounted,
        }
    }
}

fn points(part: &Part<'_>, direction: Direction, roofs: &[Roof]) -> Vec<Point> {
    let mut points = vec![];
    let benches = part.of(&Msda).into_iter();
    for record in benches.filter(|it| it.direction == direction) {
        let (gathered, least) = (record.traffic.gathered_bytes, record.least_bytes());
        let mut bytes = vec![
            (Level::L1, false, gathered as f64),
            (Level::Dram, false, least as f64),
        ];
        for level in [Level::L2, Level::Dram] {
            let moved = counted_bytes(&part.counters, record, level);
            bytes.extend(moved.map(|moved| (level, true, moved)));
        }
        for (level, counted, bytes) in bytes {
            points.extend(point(record, level, counted, bytes, roofs));
        }
    }
    points
}

/// Bytes that one computation moved at a level, by the counters of all its kernels.
fn counted_bytes(counters: &[&CountersRecord], record: &BenchRecord, level: Level) -> Option<f64> {
    let same = |it: &&&CountersRecord| {
        it.workload == record.workload
            && it.distribution == record.distribution
            && it.problem == record.problem
            && it.dtypes == record.dtypes
            && it.direction == record.direction
    };
    let of_kernel = |it: &&CountersRecord| {
        let metric = |name: &str| it.metrics.get(name).copied();
        let bytes = match level {
            Level::Dram => metric("dram__bytes.sum").or_else(|| {
                Some(metric("dram__bytes_read.sum")? + metric("dram__bytes_write.sum")?)
            }),
            Level::L2 => metric("lts__t_bytes.sum")
                .or_else(|| metric("lts__t_sectors.sum").map(|sectors| SECTOR * sectors)),
            Level::L1 => None,
        };
        // The counters are sums over launches, and a computation launches each of its kernels once.
        bytes.map(|bytes| bytes / f64::from(it.launches.max(1)))
    };
    let mut kernels = counters.iter().filter(same).peekable();
    kernels.peek()?;
    kernels.map(of_kernel).sum()
}

fn point(
    record: &BenchRecord,
    level: Level,
    counted: bool,
    bytes: f64,
    roofs: &[Roof],
) -> Option<Point> {
    let cold = record.cold.as_ref().filter(|_| level == Level::Dram);
    let timing = cold.or(record.hot.as_ref())?;
    let temperature = if cold.is_some() { "cold" } else { "hot" };
    let intensity = record.traffic.flop as f64 / bytes;
    let speed = billions_a_second(record.traffic.flop, timing.median_ms);
    let usable = |number: f64| number.is_finite() && number > 0.0;
    if !usable(intensity) || !usable(speed) {
        return None;
    }
    let roof = roofs.iter().find(|roof| roof.level == Some(level));
    let share = roof.map(|roof| speed / roof.allows(intensity));
    let above = share.is_some_and(|share| share > TOLERANCE);
    let explained = roof.filter(|_| above && !counted);
    let explained = explained.and_then(|roof| match level {
        Level::Dram if cold.is_none() && caches_explain(record, roof) => Some(CACHED),
        Level::L1 if row_is_longer(record, roof) => Some(LONGER),
        _ => None,
    });
    let flat = roofs.iter().filter(|roof| roof.level.is_none());
    let most = flat.map(|roof| roof.rate).reduce(f64::max);
    let above_flat = most.is_some_and(|most| speed > TOLERANCE * most);
    Some(Point {
        name: record.name(),
        level,
        counted,
        bytes,
        intensity,
        speed,
        time: format!("{temperature} {} ms", milliseconds(timing.median_ms)),
        share,
        explained,
        suspicious: (above && explained.is_none()) || above_flat,
    })
}

/// Whether what the last cache can keep from one computation to the next is enough to pass the roof. Of a CPU nobody
/// recorded how much that is.
fn caches_explain(record: &BenchRecord, roof: &Roof) -> bool {
    let (Some(cuda), Some(median)) = (&record.device.cuda, record.median_ms()) else {
        return true;
    };
    let kept = u64::from(cuda.l2_bytes);
    let moved = record.least_bytes().saturating_sub(kept);
    billions_a_second(moved, median) <= TOLERANCE * roof.rate
}

/// Whether a benchmark reads more bytes in one piece than the probe of a roof does: in longer pieces L1 is faster.
fn row_is_longer(record: &BenchRecord, roof: &Roof) -> bool {
    let element = match record.dtypes.value.as_str() {
        "f64" => 8,
        "f32" => 4,
        _ => 2,
    };
    let segment = roof.probe.split('-').nth(1);
    let segment = segment.and_then(|bytes| bytes.parse().ok());
    let row = record.problem.of::<ProblemSizes>();
    let row = row.map_or(0, |sizes| sizes.channels.saturating_mul(element));
    segment.is_some_and(|segment: usize| row > segment)
}
