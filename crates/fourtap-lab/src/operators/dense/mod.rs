//! Dense attention.

mod attn_mask;
mod check;
mod explain;
mod generate;
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
use crate::report::{Part, Section};
use crate::tensors::MappedFile;
use fourtap_admin::check::Report;

pub use attn_mask::AttnMaskKind;
pub use record::{MaskRecord, ProblemSizes};
pub use trial::Trial;
pub use workload::{Corner, Workload};

/// The operator.
#[derive(Debug)]
pub struct Dense;

impl Operator for Dense {
    fn name(&self) -> &'static str {
        "dense"
    }

    fn title(&self) -> &'static str {
        "Dense attention"
    }

    fn in_words(&self) -> &'static str {
        "dense attention"
    }

    fn passes(&self) -> &'static [Direction] {
        &[Direction::Forward]
    }

    fn lacks(&self) -> Option<&'static str> {
        Some("dense attention has a forward pass only")
    }

    fn has_lse(&self) -> bool {
        true
    }

    fn built_in(&self) -> &'static [BuiltIn] {
        &workload::BUILT_IN
    }

    fn workload(&self, origin: &str, text: &str) -> Result<Arc<dyn super::Workload>> {
        Ok(Arc::new(Workload::parse(origin, text)?))
    }

    fn list(&self) -> Result<String> {
        table::workloads()
    }

    fn quick_workloads(&self) -> &'static [&'static str] {
        &["dense-s512-d64"]
    }

    fn tuning_workload(&self) -> &'static str {
        "dense-s2048-d64"
    }

    /// Those that models are run in there.
    fn cuda_dtypes(&self) -> &'static [DType] {
        &[DType::F16, DType::BF16]
    }

    /// What bounds products of matrices.
    fn ceilings(&self, on_cuda: bool) -> &'static [&'static str] {
        match on_cuda {
            true => &["tensor-mma-f16", "tensor-wgmma-f16"],
            false => &[],
        }
    }

    fn has_tensors(&self, is_there: &dyn Fn(&str) -> bool) -> bool {
        is_there("query") || is_there("key")
    }

    fn read<'a>(&self, file: &'a MappedFile, reading: Reading) -> Result<Box<dyn TensorSet + 'a>> {
        Ok(Box::new(tensors::Tensors::read(file, reading)?))
    }

    fn sizes(&self, recorded: &Value) -> serde_json::Result<Arc<dyn Sizes>> {
        Ok(Arc::new(ProblemSizes::deserialize(recorded)?))
    }

    fn check_on_cpu(&self, seeds: Range<u64>, paths: &[Simd]) -> Report {
        check::on_paths(seeds, paths)
    }

    fn check_on_cuda(&self, seeds: Range<u64>, cuda: Cuda, _: &TargetArgs) -> Report {
        check::on_cuda(seeds, cuda)
    }

    fn table(&self, records: &[&BenchRecord], _: &[ProbeRecord], _: bool) -> String {
        table::results(records)
    }

    fn speed(&self, parts: &[Part<'_>]) -> Option<Section> {
        report::section(parts)
    }

    fn counting(&self) -> &'static str {
        "Of dense attention GFLOP/s counts both products, 2 operations per channel for each pair of a query and a \
         key it sees, and not the softmax."
    }
}
