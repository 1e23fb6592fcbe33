//! From a search to what calls go by.

use fourtap::DType;
use fourtap::tuning::{self, Choice, Entry, Space};

use super::Subject;
use crate::record::{Origin, TuneSubject, TunedRecord};
use crate::report;
use crate::target::Device;

/// What a search found, as an entry of a table; in words if it is of a kernel that is not here.
pub fn entry(tuned: &TunedRecord) -> Result<Entry, String> {
    let subject = &tuned.subject;
    let space = Space::named(&subject.kernel);
    let space =
        space.ok_or_else(|| format!("a kernel that can be tuned, found {}", subject.kernel))?;
    let dtype = DType::ALL.into_iter().find(|it| it.name() == subject.dtype);
    let kept = tuned.kept().map(|kept| &kept.parameters);
    let settings = kept.into_iter().flatten();
    let settings: Vec<(&String, u32)> = settings.map(|(name, value)| (name, *value)).collect();
    let Origin {
        version,
        commit,
        unix_time,
        ..
    } = &tuned.origin;
    let commit = commit.as_ref().map(|it| format!(", commit {it}"));
    Ok(Entry {
        device: device(&subject.device),
        space,
        class: subject.class.parse()?,
        dtype: dtype.ok_or_else(|| format!("an element type, found {}", subject.dtype))?,
        choice: space.choice(&settings)?,
        provenance: format!(
            "{}; tuned on {}/{}, {}, fourtap {version}{}",
            tuned.verdict,
            subject.workload,
            subject.distribution,
            report::date(*unix_time),
            commit.unwrap_or_default(),
        ),
    })
}

/// What tables say already of a subject, yours and the library's own.
pub fn known(subject: &Subject, recorded: &TuneSubject) -> crate::error::Result<Vec<Choice>> {
    let (class, here) = (subject.workload.class()?, device(&recorded.device));
    let tables = tuning::active().tables();
    let entries = tables.flat_map(|(_, table)| table.entries());
    let same = |entry: &&Entry| {
        entry.space.kernel == subject.space.kernel
            && (entry.class, entry.dtype) == (class, subject.dtype)
            && entry.device == here
    };
    Ok(entries.filter(same).map(|it| it.choice.clone()).collect())
}

/// What tables know a device by.
fn device(device: &Device) -> String {
    let model = device.model.as_deref().unwrap_or("unknown processor");
    match device.threads {
        None => model.to_string(),
        Some(1) => format!("{model}, 1 thread"),
        Some(threads) => format!("{model}, {threads} threads"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourtap::cpu::{Cpu, Simd};

    #[test]
    fn this_processor_is_known_by_the_name_calls_look_for() {
        let here = Device::of_cpu(Simd::best());
        assert_eq!(device(&here), Cpu::new().tuning_device());
    }
}
