//! Multi-scale deformable attention.

mod check;
mod coverage;
mod explain;
pub mod generate;
mod kernels;
mod least;
mod projections;
mod queries;
mod record;
mod report;
mod table;
mod tensors;
mod trial;
mod tuning;
mod verification;
mod workload;

use std::ops::Range;
use std::sync::Arc;

use fourtap::DType;
use fourtap::cpu::Simd;
use fourtap::cuda::Cuda;
use serde::Deserialize;
use serde_json::Value;

use super::{BuiltIn, Operator, Reading};
use crate::cli::{Direction, TargetArgs};
use crate::computation::TensorSet;
use crate::error::Result;
use crate::record::{BenchRecord, ProbeRecord, Sizes};
use crate::report::{Part, Peer, Section};
use crate::tensors::MappedFile;
use fourtap_admin::check::Report;

pub use queries::Reference;
pub use record::ProblemSizes;
pub use trial::Trial;
pub use verification::verify_forward;
pub use workload::Workload;

/// The operator.
#[derive(Debug)]
pub struct Msda;

impl Operator for Msda {
    fn name(&self) -> &'static str {
        "msda"
    }

    fn title(&self) -> &'static str {
        "Multi-scale deformable attention"
    }

    fn in_words(&self) -> &'static str {
        "deformable attention"
    }

    fn passes(&self) -> &'static [Direction] {
        &Direction::ALL
    }

    fn has_named_kernels(&self) -> bool {
        true
    }

    fn has_projections(&self) -> bool {
        true
    }

    fn is_profiled(&self) -> bool {
        true
    }

    fn built_in(&self) -> &'static [BuiltIn] {
        &workload::BUILT_IN
    }

    fn unlisted(&self) -> &'static [BuiltIn] {
        &workload::LADDER
    }

    fn workload(&self, origin: &str, text: &str) -> Result<Arc<dyn super::Workload>> {
        Ok(Arc::new(Workload::parse(origin, text)?))
    }

    fn list(&self) -> Result<String> {
        table::workloads()
    }

    fn quick_workloads(&self) -> &'static [&'static str] {
        &["detr-encoder", "dino-decoder", "rtdetr-decoder"]
    }

    fn tuning_workload(&self) -> &'static str {
        "detr-encoder"
    }

    fn cuda_dtypes(&self) -> &'static [DType] {
        &[DType::F16, DType::BF16, DType::F32]
    }

    /// What bounds samples.
    fn ceilings(&self, on_cuda: bool) -> &'static [&'static str] {
        match on_cuda {
            true => &["gather-64-l1", "gather-128-l1", "fma-f32"],
            false => &["gather-128-l1"],
        }
    }

    fn has_tensors(&self, is_there: &dyn Fn(&str) -> bool) -> bool {
        is_there("sampling_locations")
            || is_there("spatial_shapes")
            || projections::has_projections(is_there)
    }

    fn read<'a>(&self, file: &'a MappedFile, reading: Reading) -> Result<Box<dyn TensorSet + 'a>> {
        let is_there = |name: &str| file.has(name);
        projections::expect_unmixed(file, &is_there)?;
        Ok(match projections::has_projections(&is_there) {
            true => Box::new(projections::ProjectedTensors::read(file, reading)?),
            false => Box::new(tensors::Tensors::read(file, reading)?),
        })
    }

    fn sizes(&self, recorded: &Value) -> serde_json::Result<Arc<dyn Sizes>> {
        Ok(Arc::new(ProblemSizes::deserialize(recorded)?))
    }

    fn check_on_cpu(&self, seeds: Range<u64>, paths: &[Simd]) -> Report {
        fourtap_admin::check::msda_on_cpu(seeds, paths)
    }

    fn check_on_cuda(&self, seeds: Range<u64>, cuda: Cuda, target: &TargetArgs) -> Report {
        check::on_cuda(seeds, cuda, target)
    }

    fn table(&self, records: &[&BenchRecord], ceilings: &[ProbeRecord], on_cuda: bool) -> String {
        match on_cuda {
            true => table::on_cuda(records, ceilings),
            false => table::on_cpu(records),
        }
    }

    fn speed(&self, parts: &[Part<'_>]) -> Option<Section> {
        report::speed(parts)
    }

    fn roofline(&self, parts: &[Part<'_>]) -> Option<Section> {
        report::roofline(parts)
    }

    fn counting(&self) -> &'static str {
        "GB/s counts the bytes of value that the samples ask for, wherever they come from; GFLOP/s 10 \
         operations per channel and sample. Backward, which computes all three gradients, counts both twice."
    }

    fn peers(&self, record: &BenchRecord) -> Vec<Peer<'static>> {
        report::peers(record)
    }
}
