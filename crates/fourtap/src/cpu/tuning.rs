//! Tuning parameters of the CPU kernels, and their choice for a call.

use std::fs;

use super::{Cpu, Simd};
use crate::dtype::DType;
use crate::lock_free::List;
use crate::tuning::spaces::cpu::{
    BAND_BYTES, DENSE_TASKS_EACH, MOST_BANDS, NEAR_BYTES, SERIAL_WORK, TASK_BLOCKS, TASK_BYTES,
    TASKS_EACH, VECTOR_BITS,
};
use crate::tuning::{Choice, Class, Entry, Parameter, Space, active};

/// How work is split. Only `near_bytes` can change the rounding of a result: levels read in a pass of their own are
/// added first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Below this many samples times channels, or 8 times as many products of dense attention, a call stays on its
    /// thread: waking others costs more than they save.
    pub serial_work: usize,
    /// Largest level of one image, in bytes, that is expected to stay in the near cache. A larger one is read in a
    /// pass of its own, so that it does not evict the others.
    pub near_bytes: usize,
    /// Bytes of sums that one forward task keeps between two passes over its rows: few enough to stay in the near
    /// cache, enough that a pass over them mostly finds each coarse level there.
    pub task_bytes: usize,
    /// Minimum tasks of deformable attention per thread.
    pub tasks_each: usize,
    /// Bytes of sums per backward task, while `most_bands` allows.
    pub band_bytes: usize,
    /// Maximum bands per level: every band walks all queries, so finer bands stop paying off.
    pub most_bands: usize,
    /// Maximum query blocks per task of dense attention: they all share one load of each step's keys and values from far
    /// memory.
    pub task_blocks: usize,
    /// Minimum tasks of dense attention per thread before tasks grow to more than one block.
    pub dense_tasks_each: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        let of = |parameter: Parameter| parameter.default as usize;
        Tuning {
            serial_work: of(SERIAL_WORK),
            near_bytes: of(NEAR_BYTES),
            task_bytes: of(TASK_BYTES),
            tasks_each: of(TASKS_EACH),
            band_bytes: of(BAND_BYTES),
            most_bands: of(MOST_BANDS),
            task_blocks: of(TASK_BLOCKS),
            dense_tasks_each: of(DENSE_TASKS_EACH),
        }
    }
}

impl Tuning {
    /// The defaults, overridden by `choice`.
    fn of(choice: &Choice) -> Self {
        let mut tuning = Tuning::default();
        let places = [
            (SERIAL_WORK, &mut tuning.serial_work),
            (NEAR_BYTES, &mut tuning.near_bytes),
            (TASK_BYTES, &mut tuning.task_bytes),
            (TASKS_EACH, &mut tuning.tasks_each),
            (BAND_BYTES, &mut tuning.band_bytes),
            (MOST_BANDS, &mut tuning.most_bands),
            (TASK_BLOCKS, &mut tuning.task_blocks),
            (DENSE_TASKS_EACH, &mut tuning.dense_tasks_each),
        ];
        for (parameter, place) in places {
            let mut values = choice.values().iter();
            if let Some((_, value)) = values.find(|(name, _)| *name == parameter.name) {
                *place = *value as usize;
            }
        }
        tuning
    }
}

/// The instruction set with vectors of that many bits; `None` for 0.
fn simd_of(choice: &Choice) -> Option<Simd> {
    match choice.get(VECTOR_BITS.name) {
        512 => Some(Simd::Avx512),
        256 => Some(Simd::Avx2),
        128 => Some(Simd::Portable),
        _ => None,
    }
}

/// Instruction set and tuning of a call, and where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuningDecision {
    /// The instruction set.
    pub simd: Simd,
    /// How the work is split.
    pub tuning: Tuning,
    /// The table entry used; `None` if the caller chose, or no table has an entry for such problems.
    pub entry: Option<&'static Entry>,
}

impl Cpu {
    /// The name of this processor, if the system reports one.
    pub fn model() -> Option<&'static str> {
        static MODEL: List<Option<String>> = List::new();
        let read = || {
            let text = fs::read_to_string("/proc/cpuinfo").ok()?;
            // ARM processors have no "model name"; the key used instead differs by system.
            ["model name", "Model", "Hardware"].iter().find_map(|key| {
                let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
                let found = pairs.find(|(name, _)| name.trim() == *key);
                found.map(|(_, model)| model.trim().to_string())
            })
        };
        MODEL.get_or_init(read).as_deref()
    }

    /// The key of this processor in tuning tables: its name and the threads in use.
    pub fn tuning_device(&self) -> String {
        let model = Cpu::model().unwrap_or("unknown processor");
        match self.threads() {
            1 => format!("{model}, 1 thread"),
            threads => format!("{model}, {threads} threads"),
        }
    }

    /// With a tuning choice for one of its kernels, overriding the tables; the reason as text if this processor does not
    /// support it, or if it is just another name for the default.
    pub fn with_choice(self, choice: &Choice) -> std::result::Result<Self, String> {
        let cpu = self.with_tuning(Tuning::of(choice));
        match simd_of(choice) {
            None => Ok(cpu),
            Some(simd) if simd == Simd::best() => {
                Err(format!("{simd} is what this processor uses anyway"))
            }
            Some(simd) if !simd.is_available() => Err(format!("this processor has no {simd}")),
            Some(simd) => Ok(Cpu { simd, ..cpu }),
        }
    }

    /// The instruction set and tuning that a call of this kernel would use.
    pub fn chosen(&self, space: &Space, class: Class, dtype: DType) -> TuningDecision {
        let mut chosen = TuningDecision {
            simd: self.simd,
            tuning: self.tuning,
            entry: None,
        };
        if self.tuning_is_explicit {
            return chosen;
        }
        let is_here = |device: &str| device == self.tuning_device();
        let found = active().find(
            space.kernel,
            (class, dtype),
            is_here,
            self.allow_rounding_changes,
        );
        let Some(entry) = found else {
            return chosen;
        };
        let simd = simd_of(&entry.choice).unwrap_or(Simd::best());
        // An entry was measured with its own instruction set and says nothing about the one the caller chose.
        if !simd.is_available() || (self.simd_is_explicit && simd != self.simd) {
            return chosen;
        }
        chosen.simd = simd;
        chosen.tuning = Tuning::of(&entry.choice);
        chosen.entry = Some(entry);
        chosen
    }

    /// This backend with the tuning of one call.
    pub(super) fn tuned(&self, space: &Space, class: Class, dtype: DType) -> Self {
        let TuningDecision { simd, tuning, .. } = self.chosen(space, class, dtype);
        Cpu {
            simd,
            tuning,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::spaces::cpu::{DENSE_FORWARD, MSDA_BACKWARD, MSDA_FORWARD};

    const SPACES: [&Space; 3] = [&MSDA_FORWARD, &MSDA_BACKWARD, &DENSE_FORWARD];

    #[test]
    fn defaults_chosen_are_the_defaults() {
        for space in SPACES {
            assert_eq!(Tuning::of(&space.defaults()), Tuning::default());
            let cpu = Cpu::new().with_choice(&space.defaults()).unwrap();
            assert_eq!((cpu.simd, cpu.tuning), (Simd::best(), Tuning::default()));
        }
    }

    #[test]
    fn every_parameter_of_a_space_changes_something() {
        for space in SPACES {
            for parameter in space.parameters {
                let other = parameter.values.iter().find(|it| **it != parameter.default);
                let choice = space.defaults().with(parameter.name, *other.unwrap());
                let same = Tuning::of(&choice) == Tuning::default() && simd_of(&choice).is_none();
                assert!(!same, "{} of {}", parameter.name, space.kernel);
            }
        }
    }

    #[test]
    fn instructions_that_are_not_there_are_refused() {
        for bits in [128, 256, 512] {
            let choice = DENSE_FORWARD.defaults().with("vector_bits", bits);
            let simd = simd_of(&choice).unwrap();
            let other = simd.is_available() && simd != Simd::best();
            assert_eq!(Cpu::new().with_choice(&choice).is_ok(), other, "{simd}");
        }
    }
}
