//! Which entry of a tuning table the CPU goes by.

use fourtap::cpu::Cpu;
use fourtap::tuning::{Class, Space, active};
use fourtap::{Backend, DType};
use serde::Serialize;

use crate::computation::Computation;
use crate::error::Result;

/// How a kernel of the CPU is chosen for a problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choices {
    /// The kernel, by the name of its space.
    pub kernel: String,
    /// What tables know the problem by.
    pub class: String,
    /// What they know this machine by.
    pub device: String,
    /// What a table says of them; none where none knows them, and the defaults are used.
    pub entry: Option<EntryUsed>,
}

/// An entry of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryUsed {
    /// What it chooses.
    pub choice: String,
    /// Who found it, and what it gained.
    pub provenance: String,
    /// The user's file it is from; none for what the library comes with.
    pub file: Option<String>,
}

impl Choices {
    /// Of a computation on the CPU.
    pub fn of(computation: &dyn Computation) -> Result<Self> {
        let cpu = match computation.backend() {
            Backend::Cpu(cpu) => cpu,
            _ => Cpu::new(),
        };
        let (kernel, class, dtype) = computation.tuned_as();
        Choices::by(&cpu, kernel, class, dtype)
    }

    /// Of a kernel on such problems.
    pub fn by(cpu: &Cpu, kernel: &str, class: Class, dtype: DType) -> Result<Self> {
        let entry = match Space::named(kernel) {
            Some(space) => cpu.chosen(space, class, dtype)?.entry,
            None => None,
        };
        let tables = active()?;
        let file_of = |entry: &fourtap::tuning::Entry| {
            let mut tables = tables.tables();
            let found = tables.find(|(_, table)| table.entries().contains(entry));
            found.and_then(|(file, _)| Some(file?.display().to_string()))
        };
        Ok(Choices {
            kernel: kernel.to_string(),
            class: class.to_string(),
            device: Cpu::tuning_device(),
            entry: entry.map(|entry| EntryUsed {
                choice: entry.choice.to_string(),
                provenance: entry.provenance.clone(),
                file: file_of(entry),
            }),
        })
    }

    /// In a sentence or two.
    pub fn in_words(&self) -> String {
        let Choices {
            kernel,
            class,
            device,
            entry,
        } = self;
        match entry {
            None => format!(
                "{kernel} goes by its defaults: no table knows problems of class {class} on {device}. `fourtap tune` \
                 looks for better."
            ),
            Some(entry) => format!(
                "{kernel} goes by an entry of {} for problems of class {class} on {device}: {}. {}.",
                entry.file.as_deref().unwrap_or("the built-in table"),
                entry.choice,
                entry.provenance
            ),
        }
    }
}
