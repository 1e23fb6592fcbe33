//! Tensors of a backward call made for a test, on the device.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Plain, Stream};
use fourtap::msda::{self, Gradients, Inputs, LevelTable, Sizes};
use fourtap::verify::GradientSelection;
use fourtap::{DType, Element, Error, View};

use crate::gpu::DeviceWithWorkspace;
use crate::tensors::{OnDevice, Problem, numbers};

/// The inputs of a problem of f32 coordinates, and the gradient backward starts from.
pub struct BackwardProblem {
    pub inputs: Problem,
    pub grad_out: OnDevice,
}

impl BackwardProblem {
    /// Locations a little beyond the image on all sides.
    pub fn new<T: Element + Plain>(cuda: &Cuda, sizes: Sizes) -> Self {
        let grad_out: Vec<T> = numbers(sizes.out().iter().product(), 4)
            .map(|x| T::from_f64(2.0 * x - 1.0))
            .collect();
        BackwardProblem {
            inputs: Problem::new::<T>(cuda, sizes),
            grad_out: OnDevice::new(cuda, &grad_out, &sizes.out()),
        }
    }

    /// The same with all points in the middle of the image, in a window of this part of its sides: every sample meets
    /// the same few pixels.
    pub fn crowded<T: Element + Plain>(cuda: &Cuda, sizes: Sizes, window: f64) -> Self {
        let shape = sizes.sampling_locations();
        let locations: Vec<f32> = numbers(shape.iter().product(), 5)
            .map(|x| (0.5 + window * (x - 0.5)) as f32)
            .collect();
        let mut problem = BackwardProblem::new::<T>(cuda, sizes);
        problem.inputs.locations = OnDevice::new(cuda, &locations, &shape);
        problem
    }

    /// NaN everywhere: to be looked at, not computed.
    pub fn poisoned(cuda: &Cuda, dtype: DType, coordinates: DType, sizes: Sizes) -> Self {
        let poisoned = |dtype, shape: &[usize]| OnDevice::poisoned(cuda, dtype, shape);
        BackwardProblem {
            inputs: Problem {
                sizes,
                value: poisoned(dtype, &sizes.value()),
                locations: poisoned(coordinates, &sizes.sampling_locations()),
                weights: poisoned(coordinates, &sizes.attention_weights()),
            },
            grad_out: poisoned(dtype, &sizes.out()),
        }
    }

    /// Memory for all gradients, NaN.
    pub fn results(&self, cuda: &Cuda) -> Results {
        let like = |tensor: &OnDevice| {
            let (dtype, shape) = (tensor.view().dtype(), tensor.view().shape());
            OnDevice::poisoned(cuda, dtype, shape.sizes())
        };
        Results {
            value: like(&self.inputs.value),
            locations: like(&self.inputs.locations),
            weights: like(&self.inputs.weights),
        }
    }

    pub fn inputs<'a>(&'a self, levels: impl Into<LevelTable<'a>>) -> (Inputs<'a>, View<'a>) {
        (self.inputs.inputs(levels), self.grad_out.view())
    }

    /// Queues the computation of the gradients asked for.
    pub fn compute<'a>(
        &'a self,
        on: impl Into<DeviceWithWorkspace>,
        levels: impl Into<LevelTable<'a>>,
        results: &mut Results,
        asked: GradientSelection,
    ) -> Result<(), Error> {
        let on = on.into();
        let (inputs, grad_out) = self.inputs(levels);
        let gradients = results.gradients(asked);
        on.launch(msda::prepare_backward(
            &on.cuda, inputs, grad_out, gradients,
        )?)
    }

    /// Bytes of memory the computation of all gradients takes besides.
    pub fn workspace<'a>(
        &'a self,
        cuda: &Cuda,
        levels: impl Into<LevelTable<'a>>,
        results: &mut Results,
    ) -> usize {
        let (inputs, grad_out) = self.inputs(levels);
        let gradients = results.gradients(GradientSelection::ALL);
        let call = msda::prepare_backward(cuda, inputs, grad_out, gradients);
        call.unwrap().workspace_bytes()
    }

    /// The kernels that compute all gradients.
    pub fn kernels<'a>(
        &'a self,
        cuda: &Cuda,
        levels: impl Into<LevelTable<'a>>,
        results: &mut Results,
    ) -> Vec<&'static str> {
        let (inputs, grad_out) = self.inputs(levels);
        let gradients = results.gradients(GradientSelection::ALL);
        let plan = cuda.explain_backward(inputs, grad_out, &gradients);
        plan.unwrap().kernels()
    }
}

/// All gradients, on the device.
pub struct Results {
    pub value: OnDevice,
    pub locations: OnDevice,
    pub weights: OnDevice,
}

impl Results {
    /// Where backward writes those asked for.
    pub fn gradients(&mut self, asked: GradientSelection) -> Gradients<'_> {
        Gradients {
            value: asked.value.then(|| self.value.view_mut()),
            sampling_locations: asked.sampling_locations.then(|| self.locations.view_mut()),
            attention_weights: asked.attention_weights.then(|| self.weights.view_mut()),
        }
    }

    /// Gives a stream the work of making everything NaN.
    pub fn poison(&mut self, stream: Stream<'_>) {
        for tensor in [&mut self.value, &mut self.locations, &mut self.weights] {
            tensor.buffer.fill(0xff, stream).unwrap();
        }
    }

    /// The bytes of the gradients of value, locations and weights. Whoever computes them must be done.
    pub fn bytes(&self) -> [Vec<u8>; 3] {
        [&self.value, &self.locations, &self.weights].map(|tensor| tensor.buffer.to_vec().unwrap())
    }

    /// The same as numbers; `T` is the type of value.
    pub fn numbers<T: Element + Plain>(&self) -> [Vec<f64>; 3] {
        let coordinates = |tensor: &OnDevice| -> Vec<f64> {
            let found = tensor.buffer.to_vec::<f32>().unwrap();
            found.into_iter().map(f64::from).collect()
        };
        let value = self.value.buffer.to_vec::<T>().unwrap();
        [
            value.into_iter().map(Element::to_f64).collect(),
            coordinates(&self.locations),
            coordinates(&self.weights),
        ]
    }
}

/// What results are called in messages, in the order of [`Results::bytes`].
pub const NAMES: [&str; 3] = ["grad_value", "grad_locations", "grad_weights"];
