//! Would this or that idea help? Answers from the same amounts and ceilings, with what they assume.

use std::collections::BTreeMap;

use fourtap::msda::Level;
use serde::Serialize;

use super::amounts::Amounts;
use super::{Case, Machine};
use crate::cli::Direction;
use crate::explain::{Ceiling, Ceilings, Floor, Limit, bytes, time};

/// Bytes of an element of a dense matrix of weights.
const WEIGHT_BYTES: f64 = 2.0;
/// How long L2 takes to answer. No probe measures it.
const ASSUMED_LATENCY_NS: f64 = 300.0;
/// Bytes of shared memory that a block of a cluster can hold of `value`.
const SHARED_BYTES: f64 = 227.0 * 1024.0;
const CLUSTER: f64 = 8.0;
/// A gain smaller than this share is not worth a second kernel.
const WORTH: f64 = 0.1;

/// An idea, judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The idea.
    pub idea: &'static str,
    /// "yes", "no", "perhaps", "used already" or "unknown".
    pub answer: &'static str,
    /// Why, with the numbers.
    pub words: String,
    /// What that rests on.
    pub assumes: &'static str,
    /// The numbers, in milliseconds unless their names say otherwise.
    pub numbers: BTreeMap<&'static str, f64>,
}

/// What verdicts look at.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The case.
    pub case: &'a Case,
    /// What it needs.
    pub amounts: &'a Amounts,
    /// What the device can do.
    pub ceilings: &'a Ceilings,
    /// What would compute it.
    pub machine: &'a Machine,
    /// Its limits.
    pub limits: &'a [Limit],
    /// The floor, hot.
    pub floor: Option<&'a Floor>,
    /// The measured time, hot.
    pub measured_ms: Option<f64>,
}

impl Evidence<'_> {
    /// Every idea that applies; none on a processor.
    pub fn verdicts(&self) -> Vec<Verdict> {
        match (self.machine, self.case.direction) {
            (Machine::Cpu, _) => Vec::new(),
            (_, Direction::Forward) => vec![
                self.tensor_cores(),
                self.specialised_warps(),
                self.tma(),
                self.distributed(),
            ],
            (_, Direction::Backward) => vec![self.sums_on_tensor_cores(), self.atomics()],
        }
    }

    /// The gather through L1, which every idea for forward competes with.
    fn gather_ms(&self) -> Option<f64> {
        let found = self.limits.iter().find(|limit| limit.name == "l1");
        found.and_then(|limit| limit.milliseconds)
    }

    /// Level by level: a dense matrix of weights [queries, pixels] times the pixels.
    fn tensor_cores(&self) -> Verdict {
        let idea = "Tensor cores, a dense matrix of weights for small levels";
        let assumes = "Weights in f16, of less accuracy than sums in f32; both at their lower bounds, one after the \
                       other; the matrix zeroed, filled and read once in shared memory.";
        let tensor = self.ceilings.first(&["tensor-wgmma-f16", "tensor-mma-f16"]);
        let shared = self.ceilings.get("gather-64-shared");
        let (Some(tensor), Some(shared), Some(gather)) = (tensor, shared, self.gather_ms()) else {
            return unknown(
                idea,
                assumes,
                "tensor-wgmma-f16, gather-64-shared and the gather from L1",
            );
        };
        let each = gather / self.case.levels.len().max(1) as f64;
        let dense = |level: &Level| self.dense_ms(level, tensor, shared);
        let pays = |level: &&Level| dense(level).0 + dense(level).1 < each;
        let paying: Vec<&Level> = self.case.levels.iter().filter(pays).collect();
        let smallest = self.case.levels.iter().min_by_key(|level| level.pixels());
        let Some(smallest) = smallest else {
            return unknown(idea, assumes, "a level");
        };
        let (product, building) = dense(smallest);
        let saved: f64 = paying
            .iter()
            .map(|level| each - dense(level).0 - dense(level).1)
            .sum();
        let share = saved / gather;
        let size = format!("{}x{}", smallest.height, smallest.width);
        let of_smallest = format!(
            "For the {size} level the product takes {} and the matrix {}, where its samples take {} through L1.",
            time(product),
            time(building),
            time(each)
        );
        let (answer, conclusion) = match paying.len() {
            0 => ("no", "No level is small enough.".to_string()),
            _ if share < WORTH => (
                "no",
                format!(
                    "At best {:.0} % of the gather would be saved.",
                    100.0 * share
                ),
            ),
            count => (
                "perhaps",
                format!(
                    "For {count} of {} levels that would be less: at best {:.0} % of the gather saved, by a kernel \
                     that keeps both the load/store pipe and the tensor cores at their ceilings.",
                    self.case.levels.len(),
                    100.0 * share
                ),
            ),
        };
        Verdict {
            idea,
            answer,
            words: format!("{of_smallest} {conclusion}"),
            assumes,
            numbers: BTreeMap::from([
                ("smallest_level_product", product),
                ("smallest_level_matrix", building),
                ("one_level_by_gather", each),
                ("saved_at_best", saved),
                ("levels_that_gain", paying.len() as f64),
            ]),
        }
    }

    /// Milliseconds of the product and of making its matrix, for one level.
    fn dense_ms(&self, level: &Level, tensor: &Ceiling, shared: &Ceiling) -> (f64, f64) {
        let sizes = &self.case.sizes;
        let rows = (sizes.images * sizes.queries * sizes.heads) as f64;
        let pixels = level.pixels() as f64;
        let flop = 2.0 * rows * pixels * sizes.channels as f64;
        // Zeroed and read; four additions a point, each a read and a write.
        let bytes = rows * WEIGHT_BYTES * (2.0 * pixels + 2.0 * 4.0 * sizes.points as f64);
        (
            tensor.milliseconds(0.0, flop),
            shared.milliseconds(bytes, bytes),
        )
    }

    /// Warps that only fetch keep more loads on their way. Is that what is missing?
    fn specialised_warps(&self) -> Verdict {
        let idea = "Warp specialisation, some warps only fetch";
        let assumes = "L2 latency of 300 ns, which no probe measures; every warp has all its loads in flight.";
        let l2 = self
            .ceilings
            .first(&["gather-64-10mb", "gather-64-1mb", "l2-read"]);
        let kernel = self.machine.kernels().first();
        let in_flight = kernel.and_then(|kernel| self.machine.in_flight_bytes(kernel));
        let (Some(l2), Some(in_flight)) = (l2, in_flight) else {
            return unknown(idea, assumes, "a gather from L2, and what the kernel takes");
        };
        let needed = l2.rate * ASSUMED_LATENCY_NS;
        let in_flight = in_flight as f64;
        let covered = in_flight / l2.rate;
        let facts = format!(
            "To keep L2 busy at {}, {} must be in flight (rate times latency); the kernel's warps can have {} in \
             flight, which covers {covered:.0} ns.",
            l2.in_words(),
            bytes(needed),
            bytes(in_flight)
        );
        let (answer, conclusion) = match in_flight >= needed {
            true => (
                "no",
                "Loads in flight are not what is missing, and warps that only fetch take issue slots and registers \
                 from those that add.",
            ),
            false => (
                "perhaps",
                "Too few are in flight: more warps, or loads further ahead, could help. Locations are inputs, so \
                 fetching can run ahead.",
            ),
        };
        Verdict {
            idea,
            answer,
            words: format!("{facts} {conclusion}"),
            assumes,
            numbers: BTreeMap::from([
                ("needed_bytes", needed),
                ("in_flight_bytes", in_flight),
                ("covered_ns", covered),
            ]),
        }
    }

    /// 2x2 boxes fetched by the copy engine.
    fn tma(&self) -> Verdict {
        let idea = "TMA, a box of 2x2 pixels per sample";
        let assumes = "Boxes come from L2 at the rate measured for 2x2 pixels of 32 channels.";
        // Small boxes come at a lower rate than large ones.
        let names = ["tile-tma-l2-f32", "tile-tma-l2"];
        let tile = match self.amounts.segment_bytes {
            0..=64 => self.ceilings.get(names[1]),
            _ => self.ceilings.first(&names),
        };
        let (Some(tile), Some(gather)) = (tile, self.gather_ms()) else {
            return unknown(idea, assumes, "tile-tma-l2 and the gather from L1");
        };
        let Amounts {
            gathered_bytes,
            samples,
            ..
        } = *self.amounts;
        let boxes = tile.milliseconds(gathered_bytes as f64, samples as f64);
        self.against_gather(
            idea,
            assumes,
            boxes,
            gather,
            &format!("boxes at {}", tile.in_words()),
        )
    }

    /// Pixels of one image and head spread over the shared memories of a cluster.
    fn distributed(&self) -> Verdict {
        let idea = "Distributed shared memory, one image and head per cluster of 8";
        let assumes = "Every neighbour is read once from the cluster, at the rate measured for 64-byte segments.";
        let remote = self.ceilings.get("dsmem-read-8");
        let (Some(remote), Some(gather)) = (remote, self.gather_ms()) else {
            return unknown(idea, assumes, "dsmem-read-8 and the gather from L1");
        };
        let planes = (self.case.sizes.images * self.case.sizes.heads).max(1) as f64;
        let plane = self.case.value_bytes() as f64 / planes;
        let gathered = self.amounts.gathered_bytes as f64;
        let time_remote = remote.milliseconds(gathered, gathered / 16.0);
        let fits = match plane <= CLUSTER * SHARED_BYTES {
            true => format!("One image and head, {}, fits.", bytes(plane)),
            false => format!("One image and head, {}, does not even fit.", bytes(plane)),
        };
        let mut verdict = self.against_gather(
            idea,
            assumes,
            time_remote,
            gather,
            &format!("remote reads at {}", remote.in_words()),
        );
        verdict.words = format!("{fits} {}", verdict.words);
        verdict
    }

    fn against_gather(
        &self,
        idea: &'static str,
        assumes: &'static str,
        other: f64,
        gather: f64,
        how: &str,
    ) -> Verdict {
        // Floor against floor: whatever a pass takes beyond it, another way takes too.
        let ratio = other / gather;
        let measured = self.measured_ms.map_or(String::new(), |measured| {
            format!(" The whole pass is measured at {}.", time(measured))
        });
        Verdict {
            idea,
            answer: match ratio > 1.0 - WORTH {
                true => "no",
                false => "perhaps",
            },
            words: format!(
                "All samples as {how} take {} at least, through L1 {}: {ratio:.1} times.{measured}",
                time(other),
                time(gather)
            ),
            assumes,
            numbers: BTreeMap::from([("this_way", other), ("by_gather", gather)]),
        }
    }

    /// Backward's sums are products of small matrices already, where types allow.
    fn sums_on_tensor_cores(&self) -> Verdict {
        let kernels = self.machine.kernels();
        let used = kernels
            .iter()
            .any(|kernel| kernel.name.contains("value-matrix"));
        let (answer, words) = match used {
            true => (
                "used already",
                "Sorted samples are summed as [8 pixels x 16 samples] of weights times [16 samples x 32 channels] of \
                 grad_out, and the gradients of samples are sums over channels on tensor cores too.",
            ),
            false => (
                "no",
                "They take 16-bit values and a multiple of 32 channels; products of f32 on them lose f32's accuracy.",
            ),
        };
        Verdict {
            idea: "Tensor cores, for the sums of grad_value",
            answer,
            words: words.to_string(),
            assumes: "See docs/cuda-backward.md.",
            numbers: BTreeMap::new(),
        }
    }

    /// Adding to grad_value where the samples fall, in no order.
    fn atomics(&self) -> Verdict {
        let idea = "Atomic additions instead of sorting";
        let assumes = "16-byte additions in f32, spread over all of grad_value: where points crowd they are slower. \
                       The order of additions, and so the last bits, would differ from run to run.";
        let found = self.limits.iter().find(|limit| limit.name == "atomic");
        let (Some(atomics), Some(floor)) = (found.and_then(|limit| limit.milliseconds), self.floor)
        else {
            return unknown(idea, assumes, "atomic-v4f32-spread");
        };
        let now = self.measured_ms.unwrap_or(floor.milliseconds);
        let compared = match self.measured_ms {
            Some(measured) => format!("the whole pass is measured at {}", time(measured)),
            None => format!("the lower bound of the whole pass is {}", time(now)),
        };
        let answer = match (self.machine.scatters(), atomics < now) {
            (true, _) => "used already",
            (false, true) => "perhaps",
            (false, false) => "no",
        };
        Verdict {
            idea,
            answer,
            words: format!(
                "The additions alone take {} at least; {compared}.",
                time(atomics)
            ),
            assumes,
            numbers: BTreeMap::from([("additions", atomics), ("now", now)]),
        }
    }
}

fn unknown(idea: &'static str, assumes: &'static str, missing: &str) -> Verdict {
    Verdict {
        idea,
        answer: "unknown",
        words: format!("Needs measurements that are missing: {missing}."),
        assumes,
        numbers: BTreeMap::new(),
    }
}
