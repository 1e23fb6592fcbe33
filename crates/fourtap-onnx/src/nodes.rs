//! The nodes that there are.

use std::ffi::{CStr, c_int};

use crate::tensor::{BFLOAT16, DOUBLE, FLOAT, FLOAT16};

/// What a node computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// From sampling locations and weights; the result is `[N, Q, M*D]`.
    Msda,
    /// The same; the result is `[N, Q, M, D]`.
    MsdaHeadsApart,
    /// From reference points, offsets and logits; the result is `[N, Q, M*D]`.
    Projections,
}

/// On what a node is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Provider {
    Cpu,
    Cuda,
}

/// A node. ONNX Runtime knows the type of an output only by that of the node, so that there is one for each type of `value`; the types of the
/// other inputs are seen when it runs.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    pub name: &'static CStr,
    pub kind: Kind,
    pub provider: Provider,
    /// The element type of `value` and of the output.
    pub element: c_int,
    /// Whether `level_start_index` may be left out.
    pub starts_are_optional: bool,
}

/// The names, each in its domains. Not in `com.microsoft`, as exports for TensorRT's plugin might have it: in models that do not import that
/// domain, ONNX Runtime would then not find its own nodes there, which its optimiser puts into almost every model.
const NAMES: [(&[&CStr], &CStr, Kind); 4] = [
    (
        &[c"mmdeploy", c"mmcv"],
        c"MMCVMultiScaleDeformableAttention",
        Kind::Msda,
    ),
    (
        &[c"TRT", c"nvidia", c""],
        c"MultiscaleDeformableAttnPlugin_TRT",
        Kind::MsdaHeadsApart,
    ),
    (&[c"fourtap"], c"MSDeformAttn", Kind::Msda),
    (
        &[c"fourtap"],
        c"MSDeformAttnFromProjections",
        Kind::Projections,
    ),
];

/// All nodes of each domain.
pub fn by_domain() -> Vec<(&'static CStr, Vec<Node>)> {
    let mut domains: Vec<(&CStr, Vec<Node>)> = Vec::new();
    for (in_domains, name, kind) in NAMES {
        for &domain in in_domains {
            let nodes = variants(name, kind, domain == c"fourtap");
            match domains.iter_mut().find(|(other, _)| *other == domain) {
                Some((_, list)) => list.extend(nodes),
                None => domains.push((domain, nodes)),
            }
        }
    }
    domains
}

fn variants(name: &'static CStr, kind: Kind, is_ours: bool) -> Vec<Node> {
    let mut nodes = Vec::new();
    for provider in [Provider::Cpu, Provider::Cuda] {
        for element in [FLOAT, FLOAT16, BFLOAT16, DOUBLE] {
            nodes.push(Node {
                name,
                kind,
                provider,
                element,
                starts_are_optional: is_ours,
            });
        }
    }
    nodes
}

impl Node {
    /// The names of its inputs, and whether each may be left out.
    pub fn inputs(&self) -> &'static [(&'static str, bool)] {
        match (self.kind, self.starts_are_optional) {
            (Kind::Projections, _) => &[
                ("value", false),
                ("spatial_shapes", false),
                ("level_start_index", true),
                ("reference_points", false),
                ("sampling_offsets", false),
                ("attention_logits", false),
                ("value_mask", true),
            ],
            (_, true) => &[
                ("value", false),
                ("spatial_shapes", false),
                ("level_start_index", true),
                ("sampling_locations", false),
                ("attention_weights", false),
            ],
            (_, false) => &[
                ("value", false),
                ("spatial_shapes", false),
                ("level_start_index", false),
                ("sampling_locations", false),
                ("attention_weights", false),
            ],
        }
    }
}

/// Which inputs are read from host memory, on any device: the sizes and starts of levels, which are computed from shapes.
pub fn is_in_host_memory(input: usize) -> bool {
    input == 1 || input == 2
}
