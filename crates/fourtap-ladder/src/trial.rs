//! A rung on one problem, ready to be repeated on a device.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, TensorMap};
use fourtap_lab::extension::record::RungLaunch;
use fourtap_lab::extension::{Argument, Array, DeviceArray, Grid, LoadedKernel, Result, Source};

use crate::msda::MapsArgument;
use crate::numbers::{AnyShape, Numbers, ProblemArgument};
use crate::plan::{Blocks, Choice, Hardware, LEVEL_CAPACITY, Map, Plan, Step};
use crate::rung::Rung;

/// Memory without a tensor in it still has an address.
const LEAST_SCRATCH: usize = 256;

/// The inputs of a problem and room for its result, on a device.
#[derive(Debug)]
pub struct Tensors<'a> {
    numbers: &'a Numbers,
    inputs: [DeviceArray; 3],
    out: DeviceArray,
}

impl<'a> Tensors<'a> {
    /// Copies of the inputs.
    pub fn new(numbers: &'a Numbers, cuda: &Cuda) -> Result<Self> {
        let context = cuda.context();
        let [first, second, third] = numbers.inputs();
        let copied = |array: &Array| DeviceArray::copied(context, &array.view());
        Ok(Tensors {
            numbers,
            inputs: [copied(first)?, copied(second)?, copied(third)?],
            out: DeviceArray::like(context, &numbers.poisoned()?)?,
        })
    }

    /// Makes the result NaN, in the order of the stream's work.
    pub fn poison(&mut self, cuda: &Cuda) -> Result<()> {
        self.out.poison(cuda.stream())
    }

    /// Copies the result back. Work on non-blocking streams must be waited for first.
    pub fn download(&self) -> Result<Array> {
        let mut out = self.numbers.poisoned()?;
        self.out.copy_to(&mut out)?;
        Ok(out)
    }

    /// Queues the library's own forward.
    pub fn queue_shipped(&mut self, cuda: &Cuda) -> Result<()> {
        self.numbers
            .queue_shipped(cuda, &self.inputs, &mut self.out)
    }
}

/// A rung's kernels, loaded, with the memory they work in.
#[derive(Debug)]
pub struct LoadedRung {
    steps: Vec<(Step, LoadedKernel, Grid)>,
    scratch: Buffer,
    cleared_bytes: usize,
    problem: ProblemArgument,
    maps: MapsArgument,
    /// What was launched, for the record.
    pub launches: Vec<RungLaunch>,
    /// Memory the rung works in.
    pub scratch_bytes: u64,
}

impl LoadedRung {
    /// Compiles and loads what the rung's plan for this problem says; in words if it has none.
    pub fn new(
        rung: &Rung,
        shape: &AnyShape,
        choice: &Choice,
        tensors: &Tensors<'_>,
        cuda: &Cuda,
    ) -> Result<std::result::Result<Self, String>> {
        let hardware = Hardware::of(cuda.device().facts());
        let plan = rung.planned(shape, &hardware, choice);
        let capability = cuda.device().compute_capability();
        let plan = match plan.and_then(|plan| plan.for_capability(capability)) {
            Ok(plan) => plan,
            Err(words) => return Ok(Err(words)),
        };
        let mut steps = Vec::new();
        let mut launches = Vec::new();
        for step in &plan.steps {
            let loaded = source(rung, shape, choice, &plan, step.entry).load(cuda)?;
            if let Some(percent) = step.carveout {
                loaded.carve_out(cuda, percent)?;
            }
            let grid = grid(step, &loaded, cuda)?;
            let facts = loaded.facts(cuda)?;
            launches.push(RungLaunch {
                entry: step.entry.to_string(),
                blocks: grid.blocks,
                threads: grid.threads,
                cluster: grid.cluster,
                registers: facts.registers,
                local_bytes: facts.local_bytes,
                shared_bytes: facts.shared_bytes + grid.shared_bytes,
                prepares: step.prepares,
            });
            steps.push((step.clone(), loaded, grid));
        }
        let bytes = (plan.scratch_bytes as usize).max(LEAST_SCRATCH);
        let scratch = Buffer::alloc(cuda.context(), bytes)?;
        let inputs = tensors.inputs.each_ref().map(DeviceArray::address);
        let problem = shape.argument(inputs, tensors.out.address(), scratch.as_ptr());
        Ok(Ok(LoadedRung {
            steps,
            maps: maps(&plan.maps, shape, inputs, cuda)?,
            cleared_bytes: plan.cleared_bytes as usize,
            problem,
            scratch,
            launches,
            scratch_bytes: plan.scratch_bytes,
        }))
    }

    /// Whether some of its steps depend on value alone.
    pub fn prepares(&self) -> bool {
        self.steps.iter().any(|(step, ..)| step.prepares)
    }

    /// Queues one computation; without its preparation, that of an earlier one is used.
    ///
    /// The tensors it was made with must still be there.
    pub fn queue(&mut self, _: &mut Tensors<'_>, cuda: &Cuda, prepare: bool) -> Result<()> {
        let problem = match &self.problem {
            ProblemArgument::Msda(problem) => Argument::of(problem),
            ProblemArgument::Dense(problem) => Argument::of(problem),
        };
        let arguments = [problem, Argument::of(&self.maps)];
        let mut cleared = self.cleared_bytes == 0;
        for (step, loaded, grid) in &self.steps {
            if step.prepares && !prepare {
                continue;
            }
            if !step.prepares && !cleared {
                self.scratch
                    .fill_first(self.cleared_bytes, 0, cuda.stream())?;
                cleared = true;
            }
            // SAFETY: rungs' kernels take these two (or the first of them, then the second is not looked at), mirrored
            // in the headers of the operators' rungs; the memory they lead to is kept by this and by the tensors, and was sized by the
            // plan for this problem.
            unsafe { loaded.queue(cuda, *grid, &arguments) }?;
        }
        Ok(())
    }
}

/// A kernel of a rung, before it is compiled.
pub fn source(
    rung: &Rung,
    shape: &AnyShape,
    choice: &Choice,
    plan: &Plan,
    entry: &'static str,
) -> Source {
    let mut defines = shape.defines();
    defines.extend(choice.values());
    defines.extend(&plan.defines);
    let source = Source::new(entry, rung.source, &defines).after(shape.header());
    match rung.hopper {
        true => source.for_hopper(),
        false => source,
    }
}

fn grid(step: &Step, loaded: &LoadedKernel, cuda: &Cuda) -> Result<Grid> {
    let grid = Grid {
        blocks: step.cluster.unwrap_or(1),
        threads: step.threads,
        shared_bytes: step.shared_bytes,
        cluster: step.cluster,
    };
    loaded.allow(cuda, grid)?;
    let blocks = match (step.blocks, step.cluster) {
        (Blocks::Exactly(blocks), _) => blocks,
        (Blocks::OneEach, _) => cuda.device().facts().multiprocessors,
        (Blocks::Filling, None) => loaded.filling(cuda, grid)?.blocks,
        (Blocks::Filling, Some(size)) => loaded.clusters(cuda, grid)?.max(1) * size,
    };
    Ok(Grid { blocks, ..grid })
}

/// The maps of a plan. What a plan does not have is never looked at.
fn maps(maps: &[Map], shape: &AnyShape, inputs: [u64; 3], cuda: &Cuda) -> Result<MapsArgument> {
    let mut argument = MapsArgument([TensorMap::default(); LEVEL_CAPACITY]);
    for (place, map) in argument.0.iter_mut().zip(maps) {
        if let Some(described) = shape.map(map, inputs) {
            *place = TensorMap::encode(cuda.context(), &described)?;
        }
    }
    Ok(argument)
}
