//! What the device would allow, and what was reached.

use crate::cli::Direction;
use crate::operators::msda::{Msda, ProblemSizes};
use crate::record::{BenchRecord, CountersRecord, ProbeRecord, Unit, billions_a_second};
use crate::report::chart::{Chart, Level, Point, Roof, RooflineChart};
use crate::report::number::{self, milliseconds, percent, rate};
use crate::report::{Block, Cell, Part, Section, Table};

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

/// A point, whether it lies above the roof, and why that may be.
struct PlacedPoint {
    point: Point,
    name: String,
    /// Above its roof for a known reason.
    explained: Option<&'static str>,
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
        blocks.extend(part.title.as_ref().map(Block::heading));
        for direction in Direction::ALL {
            let placed = placed(part, direction, &roofs);
            if !placed.is_empty() {
                add_pass(&mut blocks, part, direction, &roofs, placed);
            }
        }
    }
    if blocks.is_empty() {
        return None;
    }
    let lead = "Both axes are logarithmic. Roofs are ceilings measured in the same run, not datasheet figures. A \
                benchmark is one point per level of the memory hierarchy whose bytes are known: at L1 all that its \
                samples read (hot), at DRAM what must move at least once (cold, where that was timed), and where \
                hardware counters were read, what really moved. Nothing is clamped.";
    blocks.insert(0, Block::words(lead));
    Some(Section {
        id: "roofline",
        title: "Roofline",
        blocks,
    })
}

/// The best measured ceiling of each kind.
fn roofs(probes: &[&ProbeRecord]) -> Vec<Roof> {
    let best = |names: &[&str], unit: Unit, level: Option<Level>| {
        let measured = probes.iter().filter(|probe| {
            names.contains(&probe.name.as_str()) && probe.is_measured() && probe.unit == Some(unit)
        });
        let rates = measured.filter_map(|probe| {
            Some(Roof {
                probe: probe.name.clone(),
                level,
                rate: probe.rate.filter(|rate| rate.is_finite() && *rate > 0.0)?,
            })
        });
        rates.max_by(|a, b| a.rate.total_cmp(&b.rate))
    };
    let memory = MEMORY
        .iter()
        .filter_map(|(level, names)| best(names, Unit::GigabytesASecond, Some(*level)));
    let operations = OPERATIONS
        .iter()
        .filter_map(|name| best(&[name], Unit::GigaflopASecond, None));
    memory.chain(operations).collect()
}

fn add_pass(
    blocks: &mut Vec<Block>,
    part: &Part<'_>,
    direction: Direction,
    roofs: &[Roof],
    placed: Vec<PlacedPoint>,
) {
    let pass = match direction {
        Direction::Forward => "Forward",
        Direction::Backward => "Backward",
    };
    let suspicious: Vec<_> = placed
        .iter()
        .filter(|it| it.point.suspicious)
        .map(|it| format!("{} ({})", it.name, it.point.level.name()))
        .collect();
    let mut caption = match suspicious.as_slice() {
        [] => "No point lies above its roof without a reason.".to_string(),
        names => format!(
            "Suspicious, ringed: {} above a roof, so a ceiling, the count of bytes or the result is wrong: {}.",
            match names.len() {
                1 => "1 point lies".to_string(),
                count => format!("{count} points lie"),
            },
            names.join(", ")
        ),
    };
    for reason in [CACHED, LONGER] {
        let explained = |it: &&PlacedPoint| it.explained == Some(reason);
        let lie = match placed.iter().filter(explained).count() {
            0 => continue,
            1 => "1 point lies".to_string(),
            count => format!("{count} points lie"),
        };
        caption += &format!(" {lie} above the roof for a known reason: {reason}.");
    }
    let table = table(pass, &placed, roofs);
    let points = placed.into_iter().map(|it| it.point).collect();
    let chart = RooflineChart {
        roofs: roofs.to_vec(),
        points,
    };
    let slug = format!("{}roofline-{}", part.prefix, direction.name());
    let title = format!("{pass}: arithmetic intensity and performance");
    blocks.push(Block::Chart {
        chart: Chart::new(&slug, &title, &caption, |layout| chart.draw(layout)),
    });
    blocks.push(Block::Folded {
        summary: format!("{pass}: the points as a table"),
        open: false,
        blocks: vec![Block::Table { table }],
    });
}

fn table(pass: &str, placed: &[PlacedPoint], roofs: &[Roof]) -> Table {
    let heads = [
        "benchmark",
        "bytes at",
        "#FLOP/byte",
        "#GFLOP/s",
        "#of its roof",
    ];
    let mut table = Table::new(&format!("{pass}, roofline"), &heads);
    table.searchable = true;
    for PlacedPoint { point, name, .. } in placed {
        let share =
            roof_of(roofs, point.level).map(|roof| point.speed / roof.allows(point.intensity));
        let counted = if point.counted { ", counted" } else { "" };
        let doubt = if point.suspicious { ", suspicious" } else { "" };
        table.rows.push(vec![
            Cell::words(name),
            Cell::words(format!("{}{counted}", point.level.name())),
            Cell::number(rate(point.intensity), Some(point.intensity)),
            Cell::number(rate(point.speed), Some(point.speed)),
            Cell::number(format!("{}{doubt}", number::or_dash(share, percent)), share),
        ]);
    }
    table
}

fn roof_of(roofs: &[Roof], level: Level) -> Option<&Roof> {
    roofs.iter().find(|roof| roof.level == Some(level))
}

fn placed(part: &Part<'_>, direction: Direction, roofs: &[Roof]) -> Vec<PlacedPoint> {
    let mut placed = vec![];
    let benches = part.of(&Msda).into_iter();
    let of_pass = benches.filter(|it| it.direction == direction);
    for record in of_pass {
        let traffic = record.traffic;
        let (gathered, compulsory) = (traffic.gathered_bytes as f64, record.least_bytes() as f64);
        let mut bytes = vec![
            (Level::L1, false, gathered),
            (Level::Dram, false, compulsory),
        ];
        for level in [Level::L2, Level::Dram] {
            let moved = counted_bytes(&part.counters, record, level);
            bytes.extend(moved.map(|moved| (level, true, moved)));
        }
        for (level, counted, bytes) in bytes {
            placed.extend(place(record, level, counted, bytes, roofs));
        }
    }
    placed
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

fn place(
    record: &BenchRecord,
    level: Level,
    counted: bool,
    bytes: f64,
    roofs: &[Roof],
) -> Option<PlacedPoint> {
    let cold = record.cold.as_ref().filter(|_| level == Level::Dram);
    let timing = cold.or(record.hot.as_ref())?;
    let temperature = if cold.is_some() { "cold" } else { "hot" };
    let intensity = record.traffic.flop as f64 / bytes;
    let speed = billions_a_second(record.traffic.flop, timing.median_ms);
    let usable = |number: f64| number.is_finite() && number > 0.0;
    if !usable(intensity) || !usable(speed) {
        return None;
    }
    let roof = roof_of(roofs, level);
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
    let suspicious = (above && explained.is_none()) || above_flat;
    let mut words = vec![
        record.name(),
        format!(
            "{}: {} {}",
            level.name(),
            crate::units::bytes(bytes as u64),
            match (counted, level) {
                (true, _) => "counted by the hardware",
                (false, Level::L1) => "gathered",
                (false, _) => "at least",
            }
        ),
        format!("arithmetic intensity: {} FLOP/byte", rate(intensity)),
        format!("speed: {}", number::operations(speed)),
        format!("{temperature}: {} ms", milliseconds(timing.median_ms)),
    ];
    if let (Some(roof), Some(share)) = (roof, share) {
        words.push(format!("of the roof {}: {}", roof.probe, percent(share)));
    }
    match explained {
        _ if suspicious => words.push("suspicious: above a roof".to_string()),
        Some(reason) => words.push(format!("above the roof: {reason}")),
        None => {}
    }
    Some(PlacedPoint {
        name: record.name(),
        explained,
        point: Point {
            level,
            counted,
            intensity,
            speed,
            suspicious,
            words: words.join("\n"),
        },
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
