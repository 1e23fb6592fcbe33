//! The search itself: attempts one after another, finals, and what is kept.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fourtap::tuning::Choice;
use indicatif::{MultiProgress, ProgressBar};

use super::csv::csv;
use super::keep;
use super::workbench::Workbench;
use super::{places, recorded, subjects};
use crate::cli::SearchArgs;
use crate::commands::{note, print, progress};
use crate::devices::{lock, on_each};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::output::Destination;
use crate::record::{
    AttemptRecord, Finalist, Line, Origin, Outcome, Run, Timing, TuneSubject, TunedRecord,
};
use crate::report;
use crate::sink::{PartialRecord, Sink};
use crate::table;
use crate::tune::{
    Candidate, CandidateOrigin, Engine, Finals, Gpu, Plan, Points, Search, Subject, entry, hints,
    known,
};

/// Most time of the finals.
const FINALS: Duration = Duration::from_secs(20);

/// The share of a budget that attempts may take; the rest is for the finals.
const SEARCHING: f64 = 0.8;

pub fn execute(arguments: &SearchArgs) -> Result<ExitCode> {
    // Every name is looked up and every file opened before the first, perhaps long, search.
    let places = places(arguments)?;
    let subjects = subjects(arguments, places[0].as_ref())?;
    let points = subjects.iter().map(|subject| points(subject, arguments));
    let points = points.collect::<Result<Vec<Points>>>()?;
    let file = match arguments.dry_run {
        true => None,
        false => Some(keep::file()?),
    };
    let known = match arguments.resume {
        true => Run::so_far(arguments.json.as_deref())?,
        false => Run::default(),
    };
    let torn = match arguments.resume {
        true => PartialRecord::Remove,
        false => PartialRecord::Refuse,
    };
    let page = arguments.report.as_deref().map(report::destination);
    let page = page.transpose()?;
    let csv_file = arguments.csv.as_deref();
    let sheet = csv_file.map(|file| Destination::new(file, file.parent().unwrap_or(file), true));
    let sheet = sheet.transpose()?;
    let sink = Sink::open(arguments.json.as_deref(), torn)?;
    let is_printed = !matches!(sink, Sink::Stdout);
    let session = SearchSession {
        arguments,
        searches: places.len().min(subjects.len()),
        bars: MultiProgress::new(),
        sink: Mutex::new(sink),
        known,
    };
    // One at a time says what it found, and changes the table.
    let ending = Mutex::new(());
    let items = subjects.into_iter().zip(&points).collect();
    let found = on_each(&places, items, |place, (mut subject, points)| {
        if let Some(device) = place {
            subject.engine = subject.engine.on(Gpu::of(device.facts()));
        }
        let (tuned, attempts) = session.tune(&subject, points)?;
        let _ending = lock(&ending);
        if is_printed {
            session
                .bars
                .suspend(|| print(table::tuned(&tuned, &attempts)))?;
        }
        // What is best for another crate's kernel is worth printing, but no call uses it.
        let is_library = !matches!(subject.engine, Engine::External(..));
        if let Some(file) = file.as_ref().filter(|_| is_library) {
            let entry = entry(&tuned).map_err(|expected| Error::Setting {
                setting: tuned.verdict.clone(),
                expected,
            })?;
            let changed = keep::keep(file, entry, tuned.winner > 0)?;
            session.bars.suspend(|| match (changed, tuned.winner) {
                (true, 0) => note(&format!("removed an older choice from {}", file.display())),
                (true, _) => note(&format!("kept in {}", file.display())),
                (false, _) => {}
            });
        }
        Ok((tuned, attempts))
    })?;
    let mut run = Run {
        path: arguments
            .json
            .clone()
            .unwrap_or_else(|| "fourtap tune".into()),
        ..Run::default()
    };
    for (tuned, attempts) in found {
        run.tuned.push(tuned);
        run.attempts.extend(attempts);
    }
    if let (Some(sheet), Some(file)) = (sheet, csv_file) {
        let rows = csv(&run.attempts).map_err(|source| Error::Write {
            file: file.to_path_buf(),
            source,
        })?;
        sheet.write_bytes(&rows)?;
    }
    if let (Some(page), Some(file)) = (page, &arguments.report) {
        page.write_bytes(report::html(&[run])?.as_bytes())?;
        note(&format!("wrote {}", file.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The choices there are about a subject.
fn points(subject: &Subject, arguments: &SearchArgs) -> Result<Points> {
    let carried = |choice: &Choice| subject.carried(choice);
    // Kernels of other crates do not declare what changes bits.
    let allow_rounding_changes =
        arguments.allow_rounding_changes || matches!(subject.engine, Engine::External(..));
    Points::new(
        subject.space,
        &arguments.set,
        allow_rounding_changes,
        carried,
    )
    .map_err(|expected| {
        let words = arguments.set.iter();
        let words: Vec<_> = words
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        Error::Setting {
            setting: words.join(","),
            expected,
        }
    })
}

/// Searches, as many at a time as there are devices for.
struct SearchSession<'a> {
    arguments: &'a SearchArgs,
    /// How many at a time.
    searches: usize,
    /// Of each of them.
    bars: MultiProgress,
    sink: Mutex<Sink>,
    /// What an interrupted search has found.
    known: Run,
}

impl SearchSession<'_> {
    fn tune(
        &self,
        subject: &Subject,
        points: &Points,
    ) -> Result<(TunedRecord, Vec<AttemptRecord>)> {
        let arguments = self.arguments;
        let seed = arguments.problem.seed;
        let named = recorded(subject, seed)?;
        let mut bench = Workbench::new(subject, arguments, self.searches);
        let plan = Plan {
            generations: arguments.generations,
            population: arguments.population as usize,
            top_k: arguments.top_k as usize,
            seed,
        };
        let mut search = Search::new(points, plan, hints(points, subject));
        let most = (plan.population * plan.generations as usize).min(points.all.len());
        let bar = self.bars.add(progress(most as u64));
        let begun = Instant::now();
        let is_over = || {
            let budget = arguments.budget?;
            let over = begun.elapsed().as_secs_f64() >= SEARCHING * budget.as_secs_f64();
            over.then_some("its time budget was spent")
        };
        let mut stopped = None;
        let (mut attempts, mut generations) = (Vec::new(), 0);
        let mut usual = None;
        'search: loop {
            let generation = search.next_generation();
            if generation.is_empty() {
                break;
            }
            generations += 1;
            for candidate in &generation {
                if self.known_attempt(&named, candidate).is_none() {
                    bench.begin(candidate);
                }
            }
            for candidate in generation {
                // Without the defaults nothing could be compared.
                stopped = is_over().filter(|_| candidate.how != CandidateOrigin::Default);
                if stopped.is_some() {
                    break 'search;
                }
                let record = self.attempted(&named, &mut bench, &candidate, usual, &bar)?;
                let time = record.median_ms();
                if candidate.how == CandidateOrigin::Default {
                    usual = time;
                }
                if usual.is_none() {
                    return Err(Error::Defaults {
                        subject: subject.name(),
                        found: record.words,
                    });
                }
                search.answer(candidate, time);
                attempts.push(record);
                bar.inc(1);
            }
        }
        // What calls go by already has to be beaten too, unless all that was settled before.
        let known = match self.known_end(&named) {
            Some(_) => Vec::new(),
            None => known(subject, &named)?,
        };
        for choice in &known {
            let Some(candidate) = search.besides(choice, CandidateOrigin::Table) else {
                continue;
            };
            if self.known_attempt(&named, &candidate).is_none() {
                bench.begin(&candidate);
            }
            let record = self.attempted(&named, &mut bench, &candidate, usual, &bar)?;
            search.answer(candidate, record.median_ms());
            attempts.push(record);
        }
        bar.set_message(format!("{}: finals", subject.name()));
        let tuned = match self.known_end(&named) {
            Some(tuned) => tuned,
            None => {
                let budget = arguments.budget.unwrap_or(Duration::MAX);
                let left = budget.saturating_sub(begun.elapsed()).min(FINALS);
                let finalists = finalists(&search, points, plan.top_k, &known);
                let choices: Vec<_> = finalists.iter().map(|it| it.choice.clone()).collect();
                let finals = bench.tester.finals(&choices, left)?;
                let finals = finals.map_err(|found| Error::Finals {
                    subject: subject.name(),
                    found,
                })?;
                let ended = stopped.or(search.why_over()).unwrap_or("it ended");
                let tuned = TunedRecord {
                    origin: Origin::here(),
                    points: points.all.len(),
                    refused: points.refused.clone(),
                    attempts: attempts.len(),
                    right: search.ranked().len(),
                    generations,
                    ended: ended.to_string(),
                    ..concluded(&finalists, &finals, points, named)
                };
                lock(&self.sink).put(&Line::Tuned(Box::new(tuned.clone())))?;
                tuned
            }
        };
        bar.finish_and_clear();
        Ok((tuned, attempts))
    }

    /// The record of an interrupted search.
    fn known_attempt(&self, subject: &TuneSubject, candidate: &Candidate) -> Option<AttemptRecord> {
        let (parameters, here) = (map(&candidate.choice), Origin::here());
        let same = |record: &&AttemptRecord| {
            record.subject == *subject
                && record.parameters == parameters
                && record.origin.is_same_code(&here)
        };
        let record = self.known.attempts.iter().find(same)?;
        Some(AttemptRecord {
            number: candidate.number,
            ..record.clone()
        })
    }

    /// The record of an attempt: one of an interrupted search, or a new one.
    fn attempted(
        &self,
        subject: &TuneSubject,
        bench: &mut Workbench,
        candidate: &Candidate,
        usual: Option<f64>,
        bar: &ProgressBar,
    ) -> Result<AttemptRecord> {
        if let Some(record) = self.known_attempt(subject, candidate) {
            return Ok(record);
        }
        bar.set_message(format!(
            "{}: generation {}, {}",
            subject.name(),
            candidate.generation,
            candidate.how.name()
        ));
        let (built, found) = bench.attempt(candidate)?;
        let time = found.hot.as_ref().map(|hot| hot.median_ms);
        let speed = time.map(|time| usual.unwrap_or(time) / time);
        let verdict = match (speed, candidate.how) {
            (Some(_), CandidateOrigin::Default) => "the defaults".to_string(),
            (Some(speed), _) => format!("{speed:.3} speedup over the defaults"),
            (None, _) => match found.outcome {
                Outcome::Wrong => "disqualified: wrong".to_string(),
                Outcome::Hung => "disqualified: hung".to_string(),
                Outcome::Crashed => "disqualified: crashed".to_string(),
                _ => "disqualified: failed".to_string(),
            },
        };
        let record = AttemptRecord {
            origin: Origin::here(),
            subject: subject.clone(),
            number: candidate.number,
            generation: candidate.generation,
            how: candidate.how,
            parents: candidate.parents.clone(),
            parameters: map(&candidate.choice),
            built,
            outcome: found.outcome,
            words: found.words,
            verification: found.verification,
            hot: found.hot,
            speed,
            verdict,
        };
        lock(&self.sink).put(&Line::Attempt(Box::new(record.clone())))?;
        Ok(record)
    }

    fn known_end(&self, subject: &TuneSubject) -> Option<TunedRecord> {
        let here = Origin::here();
        let mut ends = self.known.tuned.iter();
        let same = |it: &&TunedRecord| it.subject == *subject && it.origin.is_same_code(&here);
        ends.find(same).cloned()
    }
}

/// The defaults, what is known already, and the fastest of the others.
fn finalists(
    search: &Search<'_>,
    points: &Points,
    top_k: usize,
    known: &[Choice],
) -> Vec<Candidate> {
    let ranked = search.ranked();
    let ranked = ranked.iter().map(|(candidate, _)| *candidate);
    let (defaults, others): (Vec<_>, Vec<_>) = ranked.partition(|it| it.choice == points.defaults);
    let mut finalists = defaults;
    for (place, other) in others.into_iter().enumerate() {
        if place < top_k || known.contains(&other.choice) {
            finalists.push(other);
        }
    }
    finalists.into_iter().cloned().collect()
}

/// What the finals say, in a record.
fn concluded(
    finalists: &[Candidate],
    finals: &Finals,
    points: &Points,
    subject: TuneSubject,
) -> TunedRecord {
    let distance = |candidate: &Candidate| {
        let pairs = candidate.choice.values().iter();
        let pairs = pairs.zip(points.defaults.values());
        pairs.filter(|(a, b)| a != b).count()
    };
    let distances: Vec<_> = finalists.iter().map(distance).collect();
    let settled = finals.settled(&distances);
    let rows = finalists.iter().zip(&finals.samples_ms).enumerate();
    let finals: Vec<Finalist> = rows
        .map(|(index, (candidate, samples))| {
            let (speed, speed_low, speed_high) = settled.speeds[index];
            Finalist {
                number: candidate.number,
                parameters: map(&candidate.choice),
                hot: Timing::of(samples.clone()),
                speed,
                speed_low,
                speed_high,
                equals_fastest: settled.equal.contains(&index),
            }
        })
        .collect();
    let mut tuned = TunedRecord {
        origin: Origin::here(),
        subject,
        points: 0,
        refused: BTreeMap::new(),
        attempts: 0,
        right: 0,
        generations: 0,
        ended: String::new(),
        finals,
        winner: settled.winner,
        verdict: String::new(),
    };
    tuned.verdict = match tuned.kept() {
        Some(kept) if tuned.winner > 0 => format!(
            "{} is {:.3} times as fast as the defaults ({:.3} to {:.3})",
            tuned.differences(kept),
            kept.speed,
            kept.speed_low,
            kept.speed_high
        ),
        _ => "nothing is faster than the defaults with confidence".to_string(),
    };
    tuned
}

fn map(choice: &Choice) -> BTreeMap<String, u32> {
    let values = choice.values().iter();
    values
        .map(|(name, value)| (name.to_string(), *value))
        .collect()
}
