//! A node of a model, and its runs.

use fourtap::cuda::Cuda;
use fourtap::msda::projections::{self, BoxScale, Points, ProjectedProblem, Projections};
use fourtap::msda::{self, Inputs, Levels, Problem, Sizes};
use fourtap::{Backend, Place};

use crate::api::{Api, KernelContext, KernelInfo};
use crate::attributes::Attributes;
use crate::error::{Error, Result};
use crate::levels;
use crate::nodes::{Kind, Node, Provider, is_in_host_memory};
use crate::parallel;
use crate::tensor::Tensor;

/// A node of a model. Several threads may run it at once.
pub struct Kernel {
    api: Api,
    node: &'static Node,
    attributes: Attributes,
}

impl Kernel {
    /// # Safety
    /// The node is the one that ONNX Runtime handed over.
    pub unsafe fn new(api: Api, node: &'static Node, info: *const KernelInfo) -> Result<Kernel> {
        let attributes = match node.kind {
            // SAFETY: as the caller promises.
            Kind::Projections => unsafe { Attributes::read(api, info)? },
            Kind::Msda | Kind::MsdaHeadsApart => Attributes::default(),
        };
        Ok(Kernel {
            api,
            node,
            attributes,
        })
    }

    /// The functions of the ONNX Runtime that it belongs to.
    pub fn api(&self) -> Api {
        self.api
    }

    /// Computes its output.
    ///
    /// # Safety
    /// The context is the one that ONNX Runtime handed over.
    pub unsafe fn run(&self, context: *mut KernelContext) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            let _running = parallel::Running::new(self.api, context);
            let backend = self.backend(context)?;
            let inputs = self.inputs(context, backend.place)?;
            let levels = levels::read(inputs.required(1)?, inputs.optional(2))?;
            match self.node.kind {
                Kind::Msda | Kind::MsdaHeadsApart => {
                    let inputs = Inputs {
                        value: inputs.required(0)?.view()?,
                        levels: (&levels).into(),
                        sampling_locations: inputs.required(3)?.view()?,
                        attention_weights: inputs.required(4)?.view()?,
                    };
                    let sizes = *Problem::new(&inputs)?.sizes();
                    let out = self.output(context, &sizes, backend.place)?;
                    let out = out.view_mut(&sizes.out())?;
                    Ok(msda::forward(&backend.backend, inputs, out)?)
                }
                Kind::Projections => {
                    let points = self.points(&inputs, &levels)?;
                    let inputs = self.projections(&inputs, &levels, &points)?;
                    let sizes = *ProjectedProblem::new(&inputs)?.sizes();
                    let out = self.output(context, &sizes, backend.place)?;
                    let out = out.view_mut(&sizes.out())?;
                    Ok(projections::forward(&backend.backend, inputs, out)?)
                }
            }
        }
    }

    /// # Safety
    /// As for [`Kernel::run`].
    unsafe fn backend(&self, context: *mut KernelContext) -> Result<Located> {
        if self.node.provider == Provider::Cpu {
            return Ok(Located {
                backend: Backend::Cpu(parallel::cpu()),
                place: Place::Host,
            });
        }
        // SAFETY: as the caller promises. Nodes run on the stream of the device that their inputs are on.
        unsafe {
            let device = self.api.device(self.api.input(context, 0)?)?;
            let ordinal = usize::try_from(device)
                .map_err(|_| Error::argument("value", "a CUDA device", device))?;
            let cuda = Cuda::new(ordinal).map_err(fourtap::Error::from)?;
            let cuda = cuda.on_stream(self.api.stream(context)?);
            Ok(Located {
                backend: Backend::Cuda(cuda),
                place: Place::Cuda { ordinal },
            })
        }
    }

    /// # Safety
    /// As for [`Kernel::run`].
    unsafe fn inputs(&self, context: *mut KernelContext, place: Place) -> Result<NodeInputs> {
        let mut tensors = Vec::new();
        // SAFETY: as the caller promises.
        unsafe {
            let given = self.api.input_count(context)?;
            for (index, &(name, _)) in self.node.inputs().iter().enumerate().take(given) {
                let value = self.api.input(context, index)?;
                let place = match is_in_host_memory(index) {
                    true => Place::Host,
                    false => place,
                };
                tensors.push(match value.is_null() {
                    true => None,
                    false => Some(Tensor::new(self.api, name, value, place)?),
                });
            }
        }
        Ok(NodeInputs {
            node: self.node,
            tensors,
        })
    }

    /// # Safety
    /// As for [`Kernel::run`].
    unsafe fn output(
        &self,
        context: *mut KernelContext,
        sizes: &Sizes,
        place: Place,
    ) -> Result<Tensor> {
        let [n, _, m, d] = sizes.value();
        let [_, q, merged] = sizes.out();
        // Sizes of tensors that exist fit an i64.
        let shape: Vec<i64> = match self.node.kind {
            Kind::MsdaHeadsApart => [n, q, m, d].map(|size| size as i64).to_vec(),
            _ => [n, q, merged].map(|size| size as i64).to_vec(),
        };
        // SAFETY: as the caller promises.
        unsafe {
            let value = self.api.output(context, &shape)?;
            Tensor::new(self.api, "out", value, place)
        }
    }

    /// How many points each level has: as the node says, or K / L.
    fn points(&self, inputs: &NodeInputs, levels: &Levels) -> Result<Vec<usize>> {
        if let Some(points) = &self.attributes.points {
            return Ok(points.clone());
        }
        let logits = inputs.required(5)?;
        let &[_, _, _, all] = logits.sizes() else {
            return Err(logits.wrong_shape("[N, Q, M, K]"));
        };
        match levels.len() {
            0 => Ok(vec![0]),
            count if all % count == 0 => Ok(vec![all / count]),
            count => {
                let expected = format!("one number for each of {count} levels");
                let found = format!("none, and {all} points");
                Err(Error::argument("points_per_level", expected, found))
            }
        }
    }

    fn projections<'a>(
        &'a self,
        inputs: &'a NodeInputs,
        levels: &'a Levels,
        points: &'a [usize],
    ) -> Result<Projections<'a>> {
        Ok(Projections {
            value: inputs.required(0)?.view()?,
            levels: levels.into(),
            reference_points: inputs.required(3)?.view()?,
            sampling_offsets: inputs.required(4)?.view()?,
            attention_logits: inputs.required(5)?.view()?,
            points: match points {
                &[each] => Points::Each(each),
                listed => Points::Listed(listed),
            },
            value_mask: inputs.optional(6).map(Tensor::bool_view).transpose()?,
            mask_is_applied: false,
            interpolation: self.attributes.interpolation,
            box_scale: match self.attributes.box_scale.as_deref() {
                None => BoxScale::HalfBox,
                Some(&[each]) => BoxScale::Each(each),
                Some(listed) => BoxScale::Listed(listed),
            },
        })
    }
}

/// Where a run computes, and where its tensors are.
struct Located {
    backend: Backend,
    place: Place,
}

/// The inputs of a run, in the order of [`Node::inputs`].
struct NodeInputs {
    node: &'static Node,
    tensors: Vec<Option<Tensor>>,
}

impl NodeInputs {
    fn optional(&self, index: usize) -> Option<&Tensor> {
        self.tensors.get(index).and_then(Option::as_ref)
    }

    fn required(&self, index: usize) -> Result<&Tensor> {
        let missing = || {
            let (name, _) = self.node.inputs()[index];
            Error::argument(name, "a tensor", "none")
        };
        self.optional(index).ok_or_else(missing)
    }
}
