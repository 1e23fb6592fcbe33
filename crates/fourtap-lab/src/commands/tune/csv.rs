//! Attempts as a table for spreadsheets.

use std::io;

use crate::record::AttemptRecord;
use crate::tune::BuildResult;

const HEADS: [&str; 21] = [
    "kernel",
    "workload",
    "distribution",
    "dtype",
    "class",
    "device",
    "commit",
    "number",
    "generation",
    "how",
    "parents",
    "parameters",
    "registers",
    "stack_bytes",
    "build_ms",
    "outcome",
    "median_ms",
    "spread",
    "speed",
    "verdict",
    "words",
];

/// A row an attempt, by the rules of RFC 4180.
pub fn csv(attempts: &[AttemptRecord]) -> io::Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new()
        .terminator(csv::Terminator::CRLF)
        .from_writer(Vec::new());
    writer.write_record(HEADS)?;
    for attempt in attempts {
        let subject = &attempt.subject;
        let number = |number: Option<f64>| number.map_or(String::new(), |it| it.to_string());
        let built = |of: fn(&BuildResult) -> Option<u64>| {
            let number = attempt.built.as_ref().and_then(of);
            number.map_or(String::new(), |it| it.to_string())
        };
        let joined = |words: Vec<String>| words.join(" ");
        let parameters = attempt.parameters.iter();
        let row: [String; HEADS.len()] = [
            subject.kernel.clone(),
            subject.workload.clone(),
            subject.distribution.clone(),
            subject.dtype.clone(),
            subject.class.clone(),
            subject.device.in_words(),
            attempt.origin.commit.clone().unwrap_or_default(),
            attempt.number.to_string(),
            attempt.generation.to_string(),
            attempt.how.name().to_string(),
            joined(attempt.parents.iter().map(u32::to_string).collect()),
            joined(
                parameters
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect(),
            ),
            built(|it| it.registers().map(u64::from)),
            built(|it| it.registers().map(|_| it.stack_bytes().into())),
            built(|it| Some(it.milliseconds)),
            format!("{:?}", attempt.outcome).to_lowercase(),
            number(attempt.median_ms()),
            number(attempt.hot.as_ref().map(|hot| hot.spread)),
            number(attempt.speed),
            attempt.verdict.clone(),
            attempt.words.clone(),
        ];
        writer.write_record(&row)?;
    }
    writer.into_inner().map_err(|error| error.into_error())
}
