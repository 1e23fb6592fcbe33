//! Which entry of a tuning table a kernel uses.

use fourtap::Backend;
use fourtap::cpu::Cpu;
use fourtap::tuning::{Class, Entry, Space, active};
use serde::Serialize;

use crate::computation::{Computation, TuningKey};

/// How a kernel is chosen for a problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choices {
    /// The kernel, by the name of its space.
    pub kernel: String,
    /// What tables know the problem by.
    pub class: String,
    /// What they know this machine by.
    pub device: String,
    /// What a table says of them; none where none knows them, and the defaults are used.
    pub entry: Option<TuningEntry>,
    /// Whether tables are asked at all.
    #[serde(skip)]
    asked: bool,
}

/// An entry of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TuningEntry {
    /// What it chooses.
    pub choice: String,
    /// Who found it, and what it gained.
    pub provenance: String,
    /// The user's file it is from; none for what the library comes with.
    pub file: Option<String>,
}

impl Choices {
    /// Of a computation, by what computes it.
    pub fn of(computation: &dyn Computation) -> Self {
        Choices::on(&computation.backend(), computation)
    }

    /// Of a computation by another backend.
    pub fn on(backend: &Backend, computation: &dyn Computation) -> Self {
        let choices = Choices::by(backend, computation.tuned_as());
        match backend {
            Backend::Cuda(_) if !computation.is_tuned_on_cuda() => choices.without_tables(),
            _ => choices,
        }
    }

    /// Of a problem with a tensor that masks on CUDA, for which the library asks no table.
    pub fn without_tables(self) -> Self {
        Choices {
            entry: None,
            asked: false,
            ..self
        }
    }

    /// Of a problem that is known to be as tables have it, by a backend.
    pub fn by(backend: &Backend, (computed, class, dtype): TuningKey) -> Self {
        let cpu = match backend {
            Backend::Cuda(cuda) => {
                let kernel = format!("cuda-{computed}");
                let entry = match Space::named(&kernel) {
                    Some(space) => cuda.chosen(space, class, dtype),
                    None => None,
                };
                let device = cuda.tuning_device().to_string();
                return Choices::new(kernel, class, device, entry);
            }
            Backend::Cpu(cpu) => *cpu,
            _ => Cpu::new(),
        };
        let kernel = format!("cpu-{computed}");
        let entry = match Space::named(&kernel) {
            Some(space) => cpu.chosen(space, class, dtype).entry,
            None => None,
        };
        Choices::new(kernel, class, cpu.tuning_device(), entry)
    }

    /// What a CUDA device of this name, which need not be here, would use.
    pub fn on_device(
        name: &str,
        (computed, class, dtype): TuningKey,
    ) -> (Self, Option<&'static Entry>) {
        let kernel = format!("cuda-{computed}");
        let is_it = |device: &str| device == name;
        let entry = active().find(&kernel, (class, dtype), is_it, true);
        let choices = Choices::new(kernel, class, name.to_string(), entry);
        (choices, entry)
    }

    fn new(kernel: String, class: Class, device: String, entry: Option<&'static Entry>) -> Self {
        let tables = active();
        let file_of = |entry: &Entry| {
            let mut tables = tables.tables();
            let found = tables.find(|(_, table)| table.entries().contains(entry));
            found.and_then(|(file, _)| Some(file?.display().to_string()))
        };
        Choices {
            kernel,
            class: class.to_string(),
            device,
            entry: entry.map(|entry| TuningEntry {
                choice: entry.choice.to_string(),
                provenance: entry.provenance.clone(),
                file: file_of(entry),
            }),
            asked: true,
        }
    }

    /// In a sentence or two.
    pub fn in_words(&self) -> String {
        let Choices {
            kernel,
            class,
            device,
            entry,
            asked,
        } = self;
        match entry {
            None if !asked => {
                format!("{kernel} uses its defaults: tuning tables know no attn_mask.")
            }
            None => format!(
                "{kernel} uses its defaults: no tuning table has problems of class {class} on {device}. `fourtap tune` \
                 searches for better."
            ),
            Some(entry) => format!(
                "{kernel} uses an entry of {} for problems of class {class} on {device}: {}. {}.",
                entry.file.as_deref().unwrap_or("the built-in table"),
                entry.choice,
                entry.provenance
            ),
        }
    }
}
