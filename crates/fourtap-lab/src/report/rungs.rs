//! The ladder of kernel ideas: every rung by time, what was published of it, and what single changes gain.

use std::collections::BTreeMap;

use super::chart::{Chart, DotChart, DotRow, Mark, Shape};
use super::counters::limit;
use super::number::{self, counted, milliseconds, or_dash, percent, times};
use super::page::{Block, Cell, Section, Table};
use super::part::Part;
use super::probes::outcome;
use super::speed::hot_in_words;
use crate::ladder::SHIPPED;
use crate::record::{ProblemSizes, RungRecord, billions_a_second};
use crate::{table, units};

/// What speeds are shown against: a thread a channel.
const PLAINEST: &str = "a01";

/// The case that published figures stand beside.
const PUBLISHED_BESIDE: &str = "seed-full, uniform";

/// Problems with fewer results than this give a large GPU a wave of threads or two: their times are those of launches.
const LARGE: usize = 1_000_000;

/// Names in a caption before the rest is counted.
const MOST_NAMES: usize = 6;

const LEAD: &str = "Every idea for a fast forward kernel is a rung, and all rungs compute the same: value in f16, \
    locations and weights in f32. A rung has a time only if it was right: small problems in every element, then rows \
    of the very result that was timed. An approximation is held to the error it states. What hung, crashed or came \
    out wrong stands last in its table, with the reason.";

const COLUMNS: &str = "× a01 is speed against the plainest rung, a thread a channel; shipped is the library's own \
    forward as a user calls it. Kept is the time without the steps that depend on value alone, for whoever calls \
    again with the same value. Gather is what the samples ask for, as a share of what L1 delivers at most; DRAM what \
    must move at least once, as a share of what DRAM delivers; both ceilings were measured in the same run. What \
    binds is said by hardware counters.";

/// A problem and what every rung did with it, the fastest first, those without a time last.
#[derive(Debug)]
struct Case<'a> {
    name: String,
    ranked: Vec<&'a RungRecord>,
}

impl<'a> Case<'a> {
    fn of(&self, rung: &str) -> Option<&'a RungRecord> {
        self.ranked.iter().copied().find(|it| it.rung == rung)
    }

    fn times_plainest(&self, record: &RungRecord) -> Option<f64> {
        table::times(record, &self.ranked, PLAINEST)
    }

    fn timed(&self) -> usize {
        self.ranked.iter().filter(|it| it.hot.is_some()).count()
    }
}

/// The section; none without rungs.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts.iter().filter(|part| !part.rungs.is_empty()) {
        blocks.extend(part.title.as_ref().map(Block::heading));
        add_part(&mut blocks, part);
    }
    if blocks.is_empty() {
        return None;
    }
    let leads = [LEAD, COLUMNS].map(Block::words);
    blocks.splice(0..0, leads);
    Some(Section {
        id: "rungs",
        title: "Kernel ideas",
        blocks,
    })
}

fn add_part(blocks: &mut Vec<Block>, part: &Part<'_>) {
    let cases = table::cases(part.rungs.iter().copied()).into_iter();
    let cases = cases.map(|(name, ranked)| Case { name, ranked });
    let (large, small): (Vec<_>, Vec<_>) = cases.partition(|case| is_large(case.ranked[0]));
    for (index, case) in large.iter().enumerate() {
        if case.timed() > 0 {
            let slug = format!("{}rungs-{}", part.prefix, slug(&case.name, index + 1));
            blocks.push(Block::Chart {
                chart: chart(case, &slug),
            });
        }
        blocks.push(folded(case));
    }
    let beside = large.iter().find(|case| case.name == PUBLISHED_BESIDE);
    if let Some(case) = beside.or(large.first()).or(small.first()) {
        add_published(blocks, part, case);
    }
    add_single_changes(blocks, part, if large.is_empty() { &small } else { &large });
    if !small.is_empty() {
        blocks.push(Block::heading("Small problems"));
        blocks.push(Block::words(
            "Sizes that figures were published for. They do not fill this device, so that what is ranked is how long \
             a launch takes rather than what a kernel does.",
        ));
        blocks.extend(small.iter().map(folded));
    }
}

/// Whether a problem fills a GPU.
pub fn is_large(record: &RungRecord) -> bool {
    let problem = &record.problem;
    let sizes = [
        problem.images,
        problem.queries,
        problem.heads,
        problem.channels,
    ];
    sizes.into_iter().fold(1, usize::saturating_mul) >= LARGE
}

/// A case's name as part of a file's; its number where it has other letters than such names should.
fn slug(name: &str, number: usize) -> String {
    let slug = name.replace(", ", "-");
    let is_plain = |it: char| it.is_ascii_alphanumeric() || it == '-';
    match slug.chars().all(is_plain) && slug.len() < 64 {
        true => slug,
        false => number.to_string(),
    }
}

fn chart(case: &Case<'_>, slug: &str) -> Chart {
    let shipped = case.of(SHIPPED).and_then(RungRecord::median_ms);
    let rows: Vec<DotRow> = case.ranked.iter().filter_map(|it| row(case, it)).collect();
    let has = |shape: Shape| {
        let mut marks = rows.iter().flat_map(|row| &row.marks);
        marks.any(|mark| mark.shape == shape)
    };
    let legend = [
        (Shape::Ours, "all steps, hot"),
        (Shape::Approximate, "an approximation, hot"),
        (Shape::Second, "kept: without what depends on value alone"),
    ];
    let legend = legend.into_iter().filter(|(shape, _)| has(*shape));
    let legend = legend.map(|(shape, words)| (shape, words.to_string()));
    let chart = DotChart {
        axis: "milliseconds".to_string(),
        reference: shipped.map(|time| (time, format!("shipped, {} ms", milliseconds(time)))),
        heads: ["hot".to_string(), "× a01".to_string()],
        legend: legend.collect(),
        rows,
    };
    let mut caption = format!(
        "{}. Hot medians with their 95 % confidence intervals on a logarithmic axis; to the left is faster.",
        in_words(&case.ranked[0].problem)
    );
    if shipped.is_some() {
        caption += " Lines lead to the time of what the library ships.";
    }
    let untimed = case.ranked.iter().filter(|it| it.hot.is_none());
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for record in untimed {
        let names = reasons.entry(outcome(record.outcome)).or_default();
        names.push(&record.rung);
    }
    if !reasons.is_empty() {
        let reasons = reasons.iter();
        let reasons = reasons.map(|(reason, names)| format!("{reason}: {}", listed(names)));
        let reasons: Vec<_> = reasons.collect();
        caption += &format!(" Without a time, {}.", reasons.join("; "));
    }
    let title = format!("{}: every rung by time", case.name);
    Chart::new(slug, &title, &caption, |layout| chart.draw(layout))
}

fn listed(names: &[&str]) -> String {
    let shown = names[..names.len().min(MOST_NAMES)].join(", ");
    match names.len().saturating_sub(MOST_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn in_words(problem: &ProblemSizes) -> String {
    format!(
        "{}, {} each, {}, {}, {}, {} a level",
        counted(problem.images, "image"),
        match problem.queries {
            1 => "1 query".to_string(),
            queries => format!("{} queries", number::grouped(queries as f64)),
        },
        counted(problem.heads, "head"),
        counted(problem.channels, "channel"),
        counted(problem.levels.len(), "level"),
        counted(problem.points, "point"),
    )
}

fn row(case: &Case<'_>, record: &RungRecord) -> Option<DotRow> {
    let hot = record.hot.as_ref()?;
    let mut marks = vec![];
    if let Some(prepared) = &record.prepared {
        marks.push(Mark {
            shape: Shape::Second,
            at: prepared.median_ms,
            interval: Some((prepared.ci_low_ms, prepared.ci_high_ms)),
            words: format!("kept: {} ms", milliseconds(prepared.median_ms)),
        });
    }
    marks.push(Mark {
        shape: match record.approximate {
            Some(_) => Shape::Approximate,
            None => Shape::Ours,
        },
        at: hot.median_ms,
        interval: Some((hot.ci_low_ms, hot.ci_high_ms)),
        words: hot_in_words(hot),
    });
    let against = case.times_plainest(record);
    Some(DotRow {
        group: String::new(),
        label: record.rung.clone(),
        detail: record.title.clone(),
        values: [
            format!("{} ms", milliseconds(hot.median_ms)),
            format!("{} ×", or_dash(against, times)),
        ],
        words: card(case, record).join("\n"),
        marks,
    })
}

/// What to know of a rung that has a time, a line a fact.
fn card(case: &Case<'_>, record: &RungRecord) -> Vec<String> {
    let mut words = vec![format!("{}: {}", record.rung, record.title)];
    words.extend(record.hot.as_ref().map(hot_in_words));
    let prepared = record.prepared.as_ref();
    words.extend(prepared.map(|it| format!("kept: {} ms", milliseconds(it.median_ms))));
    words.push(table::standing(record, &case.ranked));
    for other in [PLAINEST, SHIPPED]
        .into_iter()
        .filter(|it| *it != record.rung)
    {
        let against = table::times(record, &case.ranked, other);
        words.extend(against.map(|ratio| format!("against {other}: {} ×", times(ratio))));
    }
    if let Some((gather, dram)) = record.of_gather.zip(record.of_dram) {
        words.push(format!(
            "gather: {}, DRAM: {}",
            percent(gather),
            percent(dram)
        ));
    }
    words.extend(error(record).map(|it| format!("error: {}", number::error(it))));
    words.extend(record.binding.as_ref().map(|binding| {
        let busy = percent(binding.busy);
        format!("binds: {}, busy {busy}", limit(&binding.limit))
    }));
    words.push(chosen(record));
    words.retain(|line| !line.is_empty());
    words
}

/// How far an approximation was from the oracle.
fn error(record: &RungRecord) -> Option<f64> {
    record.approximate?;
    record.verification.as_ref().map(|it| it.relative_error())
}

/// The parameters, as they would be asked for.
fn chosen(record: &RungRecord) -> String {
    let each = record.parameters.iter();
    let each: Vec<_> = each
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    each.join(" ")
}

fn folded(case: &Case<'_>) -> Block {
    let (all, timed) = (case.ranked.len(), case.timed());
    let rungs = counted(all, "rung");
    let summary = match all - timed {
        0 => format!("{}: all about {rungs}", case.name),
        without => format!("{}: all about {rungs}, {without} without a time", case.name),
    };
    Block::Folded {
        summary,
        open: false,
        blocks: vec![Block::Table {
            table: everything(case),
        }],
    }
}

fn everything(case: &Case<'_>) -> Table {
    let heads = [
        "rung",
        "#place",
        "#hot ms",
        "#kept ms",
        "#× a01",
        "~against what it changes",
        "#gather",
        "#DRAM",
        "#registers",
        "#shared",
        "#spilled",
        "#works in",
        "#error",
        "~binds",
        "~checked",
        "~chosen",
    ];
    let mut table = Table::new(&format!("{}, every rung", case.name), &heads);
    table.searchable = true;
    table.example = "a03 refused";
    let fastest = case.ranked.first().and_then(|it| it.median_ms());
    for (index, record) in case.ranked.iter().enumerate() {
        let time = record.median_ms();
        let against = case.times_plainest(record);
        let mut times_plainest = Cell::number(or_dash(against, times), against);
        if let Some((fastest, time)) = fastest.zip(time) {
            times_plainest = times_plainest.with_share(fastest / time);
        }
        let kept = record.prepared.as_ref().map(|it| it.median_ms);
        let share = |share: Option<f64>| Cell::number(or_dash(share, percent), share);
        let of_launches = |bytes: Option<u32>| {
            let bytes = bytes.filter(|bytes| *bytes > 0).map(u64::from);
            Cell::number(or_dash(bytes, units::bytes), bytes.map(|it| it as f64))
        };
        let resources = record.resources();
        let registers = resources.map(|(registers, _)| f64::from(registers));
        let spilled = record.launches.iter().map(|it| it.local_bytes).max();
        let scratch = Some(record.scratch_bytes).filter(|bytes| *bytes > 0);
        let place = time.map(|_| (index + 1) as f64);
        table.rows.push(vec![
            Cell::words(&record.rung)
                .with_detail(&record.title)
                .strong(),
            Cell::number(or_dash(place, number::grouped), place),
            hot(record),
            Cell::number(or_dash(kept, milliseconds), kept),
            times_plainest,
            standing(case, record),
            share(record.of_gather),
            share(record.of_dram),
            Cell::number(or_dash(registers, number::grouped), registers),
            of_launches(resources.map(|(_, shared)| shared)),
            of_launches(spilled),
            Cell::number(or_dash(scratch, units::bytes), scratch.map(|it| it as f64)),
            approximation(record),
            binds(record),
            checked(record),
            Cell::default().with_detail(chosen(record)),
        ]);
    }
    table.without_empty_columns()
}

/// The time, or in a word why there is none.
fn hot(record: &RungRecord) -> Cell {
    match &record.hot {
        Some(hot) => Cell::number(milliseconds(hot.median_ms), Some(hot.median_ms))
            .with_detail(format!("± {}", percent(hot.uncertainty())))
            .strong(),
        None => Cell::words(outcome(record.outcome)).strong(),
    }
}

/// How it does against what it changes, or why there is no time.
fn standing(case: &Case<'_>, record: &RungRecord) -> Cell {
    Cell::words(match record.hot {
        Some(_) => table::standing(record, &case.ranked),
        None => table::verdict(record, &case.ranked),
    })
}

fn approximation(record: &RungRecord) -> Cell {
    let error = error(record);
    let cell = Cell::number(or_dash(error, number::error), error);
    match record.approximate {
        Some(stated) => cell.with_detail(format!("stated {}", number::error(stated))),
        None => cell,
    }
}

fn binds(record: &RungRecord) -> Cell {
    let Some(binding) = &record.binding else {
        return Cell::words("–");
    };
    Cell::number(
        format!("{}, busy {}", limit(&binding.limit), percent(binding.busy)),
        Some(binding.busy),
    )
    .with_detail(&binding.words)
}

fn checked(record: &RungRecord) -> Cell {
    let mut details = vec![];
    if let Some(small) = &record.small {
        details.push(format!("{} compared", counted(small.elements, "element")));
        if !small.refused.is_empty() {
            details.push(format!("refused: {}", small.refused.join("; ")));
        }
    }
    let clean = record
        .sanitizer
        .values()
        .filter(|it| *it == "clean")
        .count();
    match record.sanitizer.len() - clean {
        0 if clean == 0 => {}
        0 => details.push(format!("sanitizer: {} clean", counted(clean, "tool"))),
        _ => {
            // The tools mostly say the same; then it need not be read four times.
            let mut said: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (tool, words) in &record.sanitizer {
                said.entry(words).or_default().push(tool);
            }
            let said = said
                .iter()
                .map(|(words, tools)| format!("{}: {words}", tools.join(", ")));
            details.extend(said);
        }
    }
    let small = record.small.as_ref();
    let text = or_dash(small, |it| counted(it.right, "small problem"));
    Cell::number(text, small.map(|it| it.right as f64)).with_detail(details.join("; "))
}

/// The records a reader may take a rung's words from: the first of each, in the order of names.
fn distinct<'a>(part: &Part<'a>, test: impl Fn(&RungRecord) -> bool) -> Vec<&'a RungRecord> {
    let mut rungs: BTreeMap<&str, &RungRecord> = BTreeMap::new();
    for record in part.rungs.iter().copied().filter(|it| test(it)) {
        rungs.entry(&record.rung).or_insert(record);
    }
    rungs.into_values().collect()
}

fn add_published(blocks: &mut Vec<Block>, part: &Part<'_>, case: &Case<'_>) {
    let heads = [
        "rung",
        "~published",
        "#ours, ms",
        "#operations",
        "#× a01",
        "~why they differ",
    ];
    let mut table = Table::new("What was published, and what we found", &heads);
    for record in distinct(part, |it| it.claim.is_some()) {
        let Some(claim) = &record.claim else { continue };
        let ours = case.of(&record.rung);
        let speed = ours.and_then(|it| Some(billions_a_second(it.traffic.flop, it.median_ms()?)));
        let against = ours.and_then(|it| case.times_plainest(it));
        table.rows.push(vec![
            Cell::words(&record.rung)
                .with_detail(&record.title)
                .strong(),
            Cell::words(&claim.words),
            ours.map_or(Cell::words("–"), hot),
            Cell::number(or_dash(speed, number::operations), speed),
            Cell::number(or_dash(against, times), against),
            Cell::words(&claim.why),
        ]);
    }
    if table.rows.is_empty() {
        return;
    }
    blocks.push(Block::heading("What was published, and what we found"));
    blocks.push(Block::words(format!(
        "What others said of the same ideas, beside what came out here, on {}. Operations are counted by a model, 10 a \
         channel and sample.",
        case.name
    )));
    blocks.push(Block::Table {
        table: table.without_empty_columns(),
    });
}

fn add_single_changes(blocks: &mut Vec<Block>, part: &Part<'_>, cases: &[Case<'_>]) {
    // One that has no time was never set against anything, but belongs here by its name.
    let of_suite = |it: &RungRecord| {
        it.against.is_some() || (it.builds_on.is_some() && it.rung.starts_with('s'))
    };
    let rungs = distinct(part, of_suite);
    if rungs.is_empty() {
        return;
    }
    let columns: Vec<String> = cases.iter().map(|case| format!("#{}", case.name)).collect();
    let mut heads = vec!["rung", "changes"];
    heads.extend(columns.iter().map(String::as_str));
    heads.push("#published");
    let mut table = Table::new("What single changes gain", &heads);
    for record in rungs {
        let changes = record.against.as_ref().map(|it| &it.rung);
        let changes = changes.or(record.builds_on.as_ref());
        let claim = record.claim.as_ref().map_or("–", |it| it.words.as_str());
        let mut row = vec![
            Cell::words(&record.rung)
                .with_detail(&record.title)
                .strong(),
            Cell::words(changes.map_or("–", String::as_str)),
        ];
        row.extend(cases.iter().map(|case| gain(case.of(&record.rung))));
        row.push(Cell::words(claim));
        table.rows.push(row);
    }
    blocks.push(Block::heading("What single changes gain"));
    blocks.push(Block::words(
        "Each of these changes one thing in another rung, and both were timed in turns, so that no drift of clocks \
         passes for a gain. In percent of speed: the middle of all turns, below it the least and the most. Bold are \
         those whose turns all agree on the sign.",
    ));
    blocks.push(Block::Table {
        table: table.without_empty_columns(),
    });
}

/// What a single change gains, in percent of speed, over all turns.
fn gain(record: Option<&RungRecord>) -> Cell {
    let Some(record) = record else {
        return Cell::words("–");
    };
    let Some(against) = &record.against else {
        return match record.hot {
            Some(_) => Cell::words("–"),
            None => Cell::words(outcome(record.outcome)),
        };
    };
    let gain = |ratio: f64| 1.0 / ratio - 1.0;
    let (low, high) = (gain(against.high), gain(against.low));
    let middle = gain(against.ratio);
    let cell = Cell::number(signed(middle), Some(middle)).with_detail(format!(
        "{} to {}",
        signed(low),
        signed(high)
    ));
    match low > 0.0 || high < 0.0 {
        true => cell.strong(),
        false => cell,
    }
}

fn signed(share: f64) -> String {
    match share.is_finite() && share.abs() < 1e4 {
        true => format!("{:+.1} %", 100.0 * share),
        false => "–".to_string(),
    }
}
