//! What can be chosen about the CPU's kernels, and what is.

use std::fs;
use std::sync::OnceLock;

use super::{Cpu, Simd};
use crate::dtype::DType;
use crate::tuning::spaces::cpu::{
    BAND_BYTES, DENSE_TASKS_EACH, MOST_BANDS, NEAR_BYTES, SERIAL_WORK, TASK_BLOCKS, TASK_BYTES,
    TASKS_EACH, VECTOR_BITS,
};
use crate::tuning::{Choice, Class, Entry, Parameter, Space, active};

/// Where work is cut. Only `near_bytes` can change a result, in its last bit: levels read in a pass of their own are
/// added first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Below this many samples times channels, or 8 times as many products of dense attention, a call stays on its
    /// thread: waking others costs more than they save.
    pub serial_work: usize,
    /// Bytes a level of one image may have and still count on staying in the near cache. A larger one is read in a
    /// pass of its own, so that it does not push the others out.
    pub near_bytes: usize,
    /// Bytes of sums one task of forward leaves between two passes over its rows: few enough to stay in the near
    /// cache, enough that a pass over them finds each coarse level there most of the time.
    pub task_bytes: usize,
    /// Tasks of deformable attention a thread gets, at least.
    pub tasks_each: usize,
    /// Bytes of sums one task of backward adds to, while `most_bands` allows.
    pub band_bytes: usize,
    /// How often a level is cut to keep within `band_bytes`: every band walks all queries, so cutting finer stops
    /// paying.
    pub most_bands: usize,
    /// Blocks of queries of a task of dense attention, at most: each step's keys and values come from far memory once for
    /// all of them.
    pub task_blocks: usize,
    /// Tasks of dense attention a thread gets, at least, before they grow to more than one block.
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
    /// As usual, but for what `choice` says.
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

/// The instructions with vectors of so many bits; none for 0.
fn simd_of(choice: &Choice) -> Option<Simd> {
    match choice.get(VECTOR_BITS.name) {
        512 => Some(Simd::Avx512),
        256 => Some(Simd::Avx2),
        128 => Some(Simd::Portable),
        _ => None,
    }
}

/// How a call is computed, and why so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuningDecision {
    /// The instructions.
    pub simd: Simd,
    /// How the work is cut.
    pub tuning: Tuning,
    /// The entry of a table that says so; none where the caller did, or no table knows such problems.
    pub entry: Option<&'static Entry>,
}

impl Cpu {
    /// The name of this processor, as far as the system tells it.
    pub fn model() -> Option<&'static str> {
        static MODEL: OnceLock<Option<String>> = OnceLock::new();
        let read = || {
            let text = fs::read_to_string("/proc/cpuinfo").ok()?;
            // ARM processors have no "model name"; what stands there instead differs by system.
            ["model name", "Model", "Hardware"].iter().find_map(|key| {
                let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
                let found = pairs.find(|(name, _)| name.trim() == *key);
                found.map(|(_, model)| model.trim().to_string())
            })
        };
        MODEL.get_or_init(read).as_deref()
    }

    /// What tables know this processor by: its name, and the threads in use.
    pub fn tuning_device() -> String {
        let model = Cpu::model().unwrap_or("unknown processor");
        match rayon::current_num_threads() {
            1 => format!("{model}, 1 thread"),
            threads => format!("{model}, {threads} threads"),
        }
    }

    /// As a choice about one of its kernels says, whatever tables say; in words if this processor cannot do it, or if the
    /// same is said in another way.
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

    /// How a call of the kernel of this name would be computed.
    pub fn chosen(&self, space: &Space, class: Class, dtype: DType) -> TuningDecision {
        let mut chosen = TuningDecision {
            simd: self.simd,
            tuning: self.tuning,
            entry: None,
        };
        if self.tuning_is_explicit {
            return chosen;
        }
        let is_here = |device: &str| device == Cpu::tuning_device();
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
        // An entry was measured with its instructions; with those the caller names it may be anything.
        if !simd.is_available() || (self.simd_is_explicit && simd != self.simd) {
            return chosen;
        }
        chosen.simd = simd;
        chosen.tuning = Tuning::of(&entry.choice);
        chosen.entry = Some(entry);
        chosen
    }

    /// This backend, as a call of a kernel is computed.
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
