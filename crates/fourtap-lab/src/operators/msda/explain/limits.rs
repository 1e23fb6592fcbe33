//! What each part of the machine needs at least.

use fourtap::DType;

use super::amounts::Amounts;
use super::{Case, Machine};
use crate::cli::Direction;
use crate::explain::{Ceiling, Ceilings, Limit, LimitCondition};
use crate::record::Unit;

/// Bytes of a record of a sorted sample in backward: see docs/cuda-backward.md.
const RECORD_BYTES: u64 = 16;
const LANES: f64 = 32.0;
/// Bytes a lane loads at a time.
const VECTOR_BYTES: u64 = 16;

/// All limits of a case on a machine. `from_l2` are the bytes L1 got from L2 by the counters, if there are any.
pub fn limits(
    case: &Case,
    amounts: &Amounts,
    ceilings: &Ceilings,
    machine: &Machine,
    from_l2: Option<f64>,
) -> Vec<Limit> {
    let of = LimitModel {
        case,
        amounts,
        ceilings,
        machine,
    };
    match machine {
        Machine::Cpu => of.on_cpu(),
        Machine::Cuda { .. } => of.on_cuda(from_l2),
    }
}

struct LimitModel<'a> {
    case: &'a Case,
    amounts: &'a Amounts,
    ceilings: &'a Ceilings,
    machine: &'a Machine,
}

impl LimitModel<'_> {
    fn on_cuda(&self, from_l2: Option<f64>) -> Vec<Limit> {
        let mut limits = self.dram();
        limits.extend(self.l2(from_l2));
        limits.push(self.l1());
        limits.extend(self.arithmetic());
        limits.extend(self.atomics());
        let launches = self.machine.launches() as f64;
        limits.push(self.limit(
            "launch",
            "launches in a graph",
            "launches",
            launches,
            &["launch-latency-graph"],
            LimitCondition::Always,
        ));
        limits
    }

    fn dram(&self) -> Vec<Limit> {
        let Amounts {
            touched_bytes,
            samples,
            ..
        } = *self.amounts;
        let (l2_bytes, sorts) = match self.machine {
            Machine::Cuda {
                l2_bytes, sorts, ..
            } => (u64::from(*l2_bytes), *sorts),
            Machine::Cpu => (0, false),
        };
        let records = match sorts {
            // Written and read, as far as L2 does not keep them in between.
            true => 2 * (RECORD_BYTES * samples).saturating_sub(l2_bytes),
            false => 0,
        };
        let bytes = touched_bytes + records;
        let what = match records > 0 {
            true => "DRAM: all once, sorted samples",
            false => "DRAM: all once",
        };
        // Reading alone may be faster than copying: a floor takes the faster of the two.
        let names = ["copy", "dram-read"];
        let cold = self.limit(
            "dram",
            what,
            "bytes",
            bytes as f64,
            &names,
            LimitCondition::Cold,
        );
        let beyond = bytes.saturating_sub(l2_bytes);
        let mut limits = vec![cold];
        if beyond > 0 {
            let what = "DRAM: what L2 cannot keep";
            limits.push(self.limit(
                "dram",
                what,
                "bytes",
                beyond as f64,
                &names,
                LimitCondition::Always,
            ));
        }
        limits
    }

    fn l2(&self, from_l2: Option<f64>) -> Vec<Limit> {
        let segment = if self.amounts.segment_bytes > 64 {
            128
        } else {
            64
        };
        let (small, medium, large) = (
            format!("gather-{segment}-1mb"),
            format!("gather-{segment}-10mb"),
            format!("gather-{segment}-40mb"),
        );
        let (what, bytes) = match from_l2 {
            Some(bytes) => ("L2: bytes to L1, counted", bytes),
            None => ("L2: all once", self.amounts.touched_bytes as f64),
        };
        // Random reads from a megabyte hit L1 now and then: faster than L2, so still a floor.
        let names = ["l2-read", &small, "gather-64-1mb"];
        let mut limits = vec![];
        let read = self
            .ceilings
            .first(&names)
            .map(|ceiling| ceiling.name.clone());
        let read = read.unwrap_or("l2-read".to_string());
        limits.push(self.limit("l2", what, "bytes", bytes, &[&read], LimitCondition::Always));
        if self.case.direction == Direction::Forward {
            let images = self.case.sizes.images.max(1) as u64;
            let one_image = self.case.value_bytes() / images;
            let fitting = match one_image {
                0..=3_000_000 => [&small, "gather-64-1mb"],
                3_000_001..=20_000_000 => [&medium, "gather-64-10mb"],
                _ => [&large, "gather-64-40mb"],
            };
            let name = self
                .ceilings
                .first(&fitting)
                .map(|ceiling| ceiling.name.clone());
            let name = name.unwrap_or(fitting[1].to_string());
            let gathered = self.amounts.gathered_bytes as f64;
            let what = "if L1 kept nothing: L2, random";
            limits.push(self.limit("l2", what, "bytes", gathered, &[&name], LimitCondition::If));
        }
        limits
    }

    /// Neighbours through the load pipe, in whole segments of the widths that were measured.
    fn l1(&self) -> Limit {
        let Amounts {
            gathered_bytes,
            segment_bytes,
            samples,
            ..
        } = *self.amounts;
        let measured = if segment_bytes > 64 { 128 } else { 64 };
        let name = format!("gather-{measured}-l1");
        let pieces = segment_bytes.div_ceil(measured) * measured;
        let neighbours = match self.case.direction {
            Direction::Forward => gathered_bytes,
            // Neighbours once for the gradients of samples; a row of grad_out for each sample that is summed.
            Direction::Backward => gathered_bytes / 2 + samples * segment_bytes,
        };
        let bytes = neighbours as f64 / segment_bytes.max(1) as f64 * pieces as f64;
        let what = match self.case.direction {
            Direction::Forward => format!("L1: neighbours, {measured} B at a time"),
            Direction::Backward => format!("L1: neighbours, grad_out, {measured} B"),
        };
        self.limit(
            "l1",
            &what,
            "bytes",
            bytes,
            &[&name],
            LimitCondition::Always,
        )
    }

    fn arithmetic(&self) -> Vec<Limit> {
        let value = self.case.types.value;
        let forward = self.case.direction == Direction::Forward;
        // Backward in 16 bits multiplies on tensor cores, and nothing measures f64.
        if value == DType::F64 || !(forward || value == DType::F32) {
            return Vec::new();
        }
        let least = self.amounts.least_flop as f64;
        let mut limits = vec![self.limit(
            "fma",
            "multiply-adds in f32",
            "operations",
            least,
            &["fma-f32"],
            LimitCondition::Always,
        )];
        let lanes = self.machine.f32_lanes();
        if let (true, Some(lanes)) = (forward, lanes) {
            let issued = self.ceilings.get("fma-f32").map(|fma| Ceiling {
                name: fma.name.clone(),
                // As many lanes as four schedulers can feed: an instruction a clock each, like a multiply-add.
                rate: fma.rate / 2.0 / LANES * 128.0 / f64::from(lanes),
                unit: Unit::GigaASecond,
            });
            let amount = self.instructions();
            limits.push(Limit {
                name: "issue",
                what: "instructions issued".to_string(),
                amount,
                unit: "instructions",
                probe: "fma-f32".to_string(),
                milliseconds: issued
                    .as_ref()
                    .map(|issued| issued.milliseconds(0.0, amount)),
                ceiling: issued,
                when: LimitCondition::Always,
            });
        }
        limits
    }

    /// Instructions of forward at least: a multiply-add for each neighbour and channel, one to widen it if it is of 16
    /// bits, and its loads.
    fn instructions(&self) -> f64 {
        let value = self.case.types.value;
        let elements = 4.0 * self.amounts.samples as f64 * self.case.sizes.channels as f64;
        let each = if value.size() == 2 { 2.0 } else { 1.0 };
        let loads = self.amounts.gathered_bytes.div_ceil(VECTOR_BYTES) as f64;
        (elements * each + loads) / LANES
    }

    fn atomics(&self) -> Option<Limit> {
        if self.case.direction == Direction::Forward {
            return None;
        }
        let (when, what) = match self.machine.scatters() {
            true => (LimitCondition::Always, "atomic additions, 16 B each"),
            false => (LimitCondition::If, "if by atomics, f32, 16 B each"),
        };
        // The probe counts numbers added.
        let additions = 4.0 * self.amounts.samples as f64 * self.case.sizes.channels as f64;
        let probe = &["atomic-v4f32-spread"];
        Some(self.limit("atomic", what, "operations", additions, probe, when))
    }

    fn on_cpu(&self) -> Vec<Limit> {
        let Amounts {
            touched_bytes,
            gathered_bytes,
            least_flop,
            ..
        } = *self.amounts;
        let (touched, gathered) = (touched_bytes as f64, gathered_bytes as f64);
        let gather =
            |what, name: &str, when| self.limit("l1", what, "bytes", gathered, &[name], when);
        let mut limits = vec![
            self.limit(
                "dram",
                "memory: all once",
                "bytes",
                touched,
                &["copy"],
                LimitCondition::Cold,
            ),
            gather("L1: neighbours", "gather-128-l1", LimitCondition::Always),
            gather("if all came from L2", "gather-128-l2", LimitCondition::If),
            gather(
                "if all came from memory",
                "gather-128-dram",
                LimitCondition::If,
            ),
        ];
        if self.case.types.value != DType::F64 {
            limits.push(self.limit(
                "fma",
                "multiply-adds in f32",
                "operations",
                least_flop as f64,
                &["fma-f32"],
                LimitCondition::Always,
            ));
        }
        limits
    }

    fn limit(
        &self,
        name: &'static str,
        what: &str,
        unit: &'static str,
        amount: f64,
        probes: &[&str],
        when: LimitCondition,
    ) -> Limit {
        Limit::new(self.ceilings, name, what, (amount, unit), probes, when)
    }
}
