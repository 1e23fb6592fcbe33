//! Tables of measured tuning choices.

use std::fmt::Write;
use std::path::Path;

use super::{Choice, Class, Space};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The best choice for a class of problems on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The device it was measured on, as in "NVIDIA H200"; for a processor with the number of threads.
    pub device: String,
    /// The kernel and its parameters.
    pub space: &'static Space,
    /// The class of problems.
    pub class: Class,
    /// The element type.
    pub dtype: DType,
    /// The chosen values.
    pub choice: Choice,
    /// How, when and by what command it was measured, and its speedup, as text.
    pub provenance: String,
}

/// A line that this version of the library does not know, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedLine {
    /// Its line number.
    pub line: usize,
    /// The reason.
    pub why: String,
    text: String,
}

/// Entries, at most one per kernel, class, type and device. As text, one per line, with tabs between fields; lines that
/// begin with `#` are comments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    entries: Vec<Entry>,
    skipped_lines: Vec<SkippedLine>,
}

/// The first line of a table.
const FORM: &str = "# fourtap tuning, form 1";
const FIELDS: &str = "# device\tkernel\tclass\ttype\tchoice\tprovenance";

impl Entry {
    /// Whether results are bitwise equal to those with the kernel's defaults.
    pub fn keeps_bits(&self) -> bool {
        self.space.keeps_bits(&self.choice)
    }

    fn answers_like(&self, other: &Entry) -> bool {
        self.device == other.device
            && self.space.kernel == other.space.kernel
            && self.class == other.class
            && self.dtype == other.dtype
            && self.keeps_bits() == other.keeps_bits()
    }
}

impl Table {
    /// Parses a text; `origin` names it in errors. A malformed line is an error; an entry for a kernel, parameter or value
    /// that this version does not have is skipped.
    pub fn parse(origin: &Path, text: &str) -> Result<Self> {
        let refused = |line: usize, expected: &str, found: &str| Error::Tuning {
            file: origin.to_path_buf(),
            line,
            expected: expected.to_string(),
            found: found.to_string(),
        };
        let first = text.lines().next().unwrap_or_default();
        if first.trim_end() != FORM {
            return Err(refused(1, &format!("'{FORM}'"), &format!("'{first}'")));
        }
        let mut table = Table::default();
        for (index, line) in text.lines().enumerate() {
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            let number = index + 1;
            let fields: Vec<&str> = line.split('\t').collect();
            let [device, kernel, class, dtype, choice, provenance] = fields[..] else {
                let found = format!("{} of them", fields.len());
                return Err(refused(number, "six fields with tabs between", &found));
            };
            let class = class
                .parse::<Class>()
                .map_err(|words| refused(number, "a class", &words))?;
            let Some(dtype) = DType::ALL.into_iter().find(|it| it.name() == dtype) else {
                return Err(refused(number, "an element type", dtype));
            };
            let chosen = settings(choice).map_err(|found| {
                refused(
                    number,
                    "values as in task_bytes=65536, blanks between",
                    &found,
                )
            })?;
            let entry = known(kernel, &chosen).map(|(space, choice)| Entry {
                device: device.to_string(),
                space,
                class,
                dtype,
                choice,
                provenance: provenance.to_string(),
            });
            match entry {
                Ok(entry) => table.put(entry),
                Err(why) => table.skipped_lines.push(SkippedLine {
                    line: number,
                    why,
                    text: line.to_string(),
                }),
            }
        }
        Ok(table)
    }

    /// The table as text. Skipped lines are kept: another version may know them.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FORM}\n{FIELDS}\n");
        for entry in &self.entries {
            let Entry {
                device,
                space,
                class,
                dtype,
                choice,
                provenance,
            } = entry;
            let [device, provenance] = [device, provenance].map(|field| one_field(field));
            let kernel = space.kernel;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{device}\t{kernel}\t{class}\t{dtype}\t{choice}\t{provenance}"
            );
        }
        for line in &self.skipped_lines {
            text += &line.text;
            text.push('\n');
        }
        text
    }

    /// Adds an entry, replacing one for the same kernel, class, type and device.
    pub fn put(&mut self, entry: Entry) {
        match self.entries.iter_mut().find(|it| it.answers_like(&entry)) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
    }

    /// Removes the entry for the same kernel, class, type and device. Returns whether there was one.
    pub fn remove(&mut self, entry: &Entry) -> bool {
        let count = self.entries.len();
        self.entries.retain(|it| !it.answers_like(entry));
        self.entries.len() < count
    }

    /// All entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Lines that this version does not know.
    pub fn skipped_lines(&self) -> &[SkippedLine] {
        &self.skipped_lines
    }

    /// The entry for such problems on the device that `is_here` accepts. With `allow_rounding_changes` also one whose
    /// results may differ from the defaults' in their last bits, which is then preferred.
    pub fn find(
        &self,
        kernel: &str,
        (class, dtype): (Class, DType),
        is_here: impl Fn(&str) -> bool,
        allow_rounding_changes: bool,
    ) -> Option<&Entry> {
        let fits = |entry: &&Entry| {
            entry.class == class
                && entry.dtype == dtype
                && entry.space.kernel == kernel
                && (allow_rounding_changes || entry.keeps_bits())
                && is_here(&entry.device)
        };
        self.entries
            .iter()
            .filter(fits)
            .min_by_key(|entry| entry.keeps_bits())
    }
}

/// The space and the choice, if this version has them.
fn known(
    kernel: &str,
    chosen: &[(&str, u32)],
) -> std::result::Result<(&'static Space, Choice), String> {
    let space = Space::named(kernel);
    let space = space.ok_or_else(|| format!("no kernel here is called {kernel}"))?;
    let choice = space.choice(chosen);
    choice
        .map(|choice| (space, choice))
        .map_err(|words| format!("expected {words}"))
}

fn settings(text: &str) -> std::result::Result<Vec<(&str, u32)>, String> {
    fn setting(word: &str) -> Option<(&str, u32)> {
        let (name, value) = word.split_once('=')?;
        Some((name, value.parse().ok()?))
    }
    let words = text.split_whitespace();
    words
        .map(|word| setting(word).ok_or_else(|| word.to_string()))
        .collect()
}

/// Replaces tabs and line breaks by blanks.
fn one_field(text: &str) -> String {
    text.replace(|letter: char| letter.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(choice: &[(&str, u32)]) -> Entry {
        let space = Space::named("cpu-msda-forward").unwrap();
        Entry {
            device: "A processor, 2 threads".to_string(),
            space,
            class: "d32-l4-p4-rows17".parse().unwrap(),
            dtype: DType::F32,
            choice: space.choice(choice).unwrap(),
            provenance: "1.1 times as fast".to_string(),
        }
    }

    fn parse(text: &str) -> Result<Table> {
        Table::parse(Path::new("tuning.tsv"), text)
    }

    fn find(table: &Table, allow_rounding_changes: bool) -> Option<&Entry> {
        let Entry { class, dtype, .. } = entry(&[]);
        let here = |device: &str| device == "A processor, 2 threads";
        table.find(
            "cpu-msda-forward",
            (class, dtype),
            here,
            allow_rounding_changes,
        )
    }

    #[test]
    fn written_and_read_again_it_is_the_same() {
        let mut table = Table::default();
        table.put(entry(&[("task_bytes", 65536)]));
        table.put(entry(&[("vector_bits", 128)]));
        assert_eq!(parse(&table.to_text()).unwrap(), table);
        assert_eq!(table.entries().len(), 2);
    }

    #[test]
    fn an_entry_takes_the_place_of_an_older_one() {
        let mut table = Table::default();
        table.put(entry(&[("task_bytes", 65536)]));
        let newer = entry(&[("task_bytes", 131072)]);
        table.put(newer.clone());
        assert_eq!(table.entries(), std::slice::from_ref(&newer));
        assert!(table.remove(&entry(&[])));
        assert!(!table.remove(&entry(&[])));
        assert!(find(&table, true).is_none());
    }

    #[test]
    fn rounding_changes_are_found_only_where_allowed() {
        let (same, other) = (
            entry(&[("task_bytes", 65536)]),
            entry(&[("vector_bits", 128)]),
        );
        let mut table = Table::default();
        table.put(other.clone());
        assert_eq!(find(&table, false), None);
        table.put(same.clone());
        assert_eq!(find(&table, false), Some(&same));
        assert_eq!(find(&table, true), Some(&other));
    }

    #[test]
    fn only_the_same_device_class_and_type_are_served() {
        let mut table = Table::default();
        table.put(entry(&[("task_bytes", 65536)]));
        let of = (entry(&[]).class, DType::F32);
        let anywhere = |_: &str| true;
        assert!(table.find("cpu-msda-forward", of, anywhere, true).is_some());
        assert!(
            table
                .find("cpu-msda-backward", of, anywhere, true)
                .is_none()
        );
        assert!(
            table
                .find("cpu-msda-forward", of, |_| false, true)
                .is_none()
        );
        let of = (of.0, DType::F16);
        assert!(table.find("cpu-msda-forward", of, anywhere, true).is_none());
        let of = ("d32-l4-p4-rows16".parse().unwrap(), DType::F32);
        assert!(table.find("cpu-msda-forward", of, anywhere, true).is_none());
    }

    #[test]
    fn lines_of_another_version_are_skipped_and_kept() {
        let line = |kernel: &str, choice: &str| {
            format!("somewhere\t{kernel}\td32-l4-p4-rows17\tf32\t{choice}\tfound\n")
        };
        let text = [
            FORM.to_string() + "\n",
            line("cpu-poem", "rhyme=1"),
            line("cpu-msda-forward", "task_bytes=3"),
            line("cpu-msda-forward", "rhyme=1"),
            line("cpu-msda-forward", "task_bytes=65536"),
        ]
        .concat();
        let table = parse(&text).unwrap();
        assert_eq!((table.entries().len(), table.skipped_lines().len()), (1, 3));
        assert_eq!(
            table.skipped_lines()[0].why,
            "no kernel here is called cpu-poem"
        );
        assert_eq!(table.skipped_lines()[1].line, 3);
        assert!(table.to_text().contains("rhyme=1"));
        assert_eq!(parse(&table.to_text()).unwrap().skipped_lines().len(), 3);
    }

    #[test]
    fn what_is_no_entry_is_an_error_with_its_line() {
        let good = "a\tcpu-msda-forward\td32-l4-p4-rows17\tf32\ttask_bytes=65536\tb";
        assert!(parse(&format!("{FORM}\n{good}\n")).is_ok());
        for (bad, found) in [
            ("a poem".to_string(), "1 of them"),
            (good.replace("rows17", "rowsx"), "rowsx"),
            (good.replace("f32", "f33"), "f33"),
            (good.replace("=65536", ""), "task_bytes"),
            (good.replace("65536", "-1"), "task_bytes=-1"),
        ] {
            let error = parse(&format!("{FORM}\n\n{bad}\n"))
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with("tuning.tsv, line 3: expected "),
                "{error}"
            );
            assert!(error.contains(found), "{error}");
        }
        for text in ["", "{}", "# fourtap tuning, form 2\n"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(
                error.contains("line 1: expected '# fourtap tuning"),
                "{error}"
            );
        }
    }

    #[test]
    fn fields_cannot_break_a_line() {
        let mut table = Table::default();
        table.put(Entry {
            provenance: "a\tb\nc".to_string(),
            ..entry(&[])
        });
        assert_eq!(
            parse(&table.to_text()).unwrap().entries()[0].provenance,
            "a b c"
        );
    }
}
