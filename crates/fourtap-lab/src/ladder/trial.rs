//! A rung on one problem, ready to be repeated on a device.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, TensorElement, TensorMap, Tiled};

use super::Rung;
use super::arguments::{Addresses, MapsArgument, ProblemArgument};
use super::plan::{Blocks, Choice, Hardware, LEVEL_CAPACITY, Level, Map, Plan, Shape, Step};
use crate::array::Array;
use crate::cuda::{Argument, DeviceArray, Grid, Loaded, Source};
use crate::error::Result;
use crate::record::RungLaunch;
use crate::trial::Trial;

const HEADER: &str = include_str!("../../kernels/ladder/rung.cuh");

/// Memory without a tensor in it still has an address.
const LEAST_SCRATCH: usize = 256;

/// The inputs of a problem and room for its result, on a device. Rungs take turns with it.
#[derive(Debug)]
pub struct Tensors<'a> {
    host: &'a Trial<'a>,
    value: DeviceArray,
    locations: DeviceArray,
    weights: DeviceArray,
    out: DeviceArray,
}

impl<'a> Tensors<'a> {
    /// Copies the inputs of `host`, which are of the types that rungs take.
    pub fn new(host: &'a Trial<'a>, cuda: &Cuda) -> Result<Self> {
        let (context, inputs) = (cuda.context(), host.inputs());
        Ok(Tensors {
            host,
            value: DeviceArray::copied(context, &inputs.value)?,
            locations: DeviceArray::copied(context, &inputs.sampling_locations)?,
            weights: DeviceArray::copied(context, &inputs.attention_weights)?,
            out: DeviceArray::like(context, &host.outputs()?[0])?,
        })
    }

    /// Makes the result NaN, in the order of the stream's work.
    pub fn poison(&mut self, cuda: &Cuda) -> Result<()> {
        self.out.poison(cuda.stream())
    }

    /// Copies the result back. Work on non-blocking streams must be waited for first.
    pub fn download(&self) -> Result<Vec<Array>> {
        let mut outputs = self.host.outputs()?;
        self.out.copy_to(&mut outputs[0])?;
        Ok(outputs)
    }
}

/// The sizes of a problem, if rungs can take it; else in words, why not.
pub fn shape_of(trial: &Trial<'_>) -> std::result::Result<Shape, String> {
    let (sizes, levels) = (trial.problem().sizes(), trial.problem().levels());
    let small = |what: &str, count: usize| {
        let count = u32::try_from(count).ok().filter(|&count| count < 1 << 31);
        count.ok_or_else(|| format!("{what}: rungs count in 31 bits"))
    };
    let rows = [sizes.images, sizes.queries, sizes.heads];
    let rows = rows
        .iter()
        .try_fold(1usize, |product, &size| product.checked_mul(size));
    small("rows", rows.unwrap_or(usize::MAX))?;
    let level = |level: &fourtap::msda::Level| -> std::result::Result<Level, String> {
        Ok(Level {
            width: small("width", level.width)?,
            height: small("height", level.height)?,
            start: small("start", level.start)?,
        })
    };
    Ok(Shape {
        images: small("images", sizes.images)?,
        queries: small("queries", sizes.queries)?,
        heads: small("heads", sizes.heads)?,
        channels: small("channels", sizes.channels)?,
        points: small("points", sizes.points)?,
        pixels: small("pixels", sizes.pixels)?,
        levels: levels
            .iter()
            .map(level)
            .collect::<std::result::Result<_, _>>()?,
    })
}

/// A rung's kernels, loaded, with the memory they work in.
#[derive(Debug)]
pub struct Ready {
    steps: Vec<(Step, Loaded, Grid)>,
    scratch: Buffer,
    cleared_bytes: usize,
    problem: ProblemArgument,
    maps: MapsArgument,
    /// What was launched, for the record.
    pub launches: Vec<RungLaunch>,
    /// Memory the rung works in.
    pub scratch_bytes: u64,
}

impl Ready {
    /// Compiles and loads what the rung's plan for this problem says; in words if it has none.
    pub fn new(
        rung: &Rung,
        shape: &Shape,
        choice: &Choice,
        tensors: &Tensors<'_>,
        cuda: &Cuda,
    ) -> Result<std::result::Result<Self, String>> {
        let hardware = Hardware::of(cuda.device().facts());
        let plan = match rung.planned(shape, &hardware, choice) {
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
        let problem = ProblemArgument::new(
            shape,
            Addresses {
                value: tensors.value.address(),
                locations: tensors.locations.address(),
                weights: tensors.weights.address(),
                out: tensors.out.address(),
                scratch: scratch.as_ptr(),
            },
        );
        Ok(Ok(Ready {
            steps,
            maps: maps(&plan.maps, shape, tensors.value.address(), cuda)?,
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
        let arguments = [Argument::of(&self.problem), Argument::of(&self.maps)];
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
            // in the kernels' header; the memory they lead to is kept by this and by the tensors, and was sized by the
            // plan for this problem.
            unsafe { loaded.queue(cuda, *grid, &arguments) }?;
        }
        Ok(())
    }
}

/// A kernel of a rung, before it is compiled.
pub fn source(
    rung: &Rung,
    shape: &Shape,
    choice: &Choice,
    plan: &Plan,
    entry: &'static str,
) -> Source {
    let mut defines = vec![
        ("CHANNELS", shape.channels),
        ("LEVELS", shape.levels.len() as u32),
        ("POINTS", shape.points),
    ];
    defines.extend(choice.values());
    defines.extend(&plan.defines);
    let source = Source::new(entry, rung.source, &defines).after(HEADER);
    match rung.hopper {
        true => source.for_hopper(),
        false => source,
    }
}

fn grid(step: &Step, loaded: &Loaded, cuda: &Cuda) -> Result<Grid> {
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
fn maps(maps: &[Map], shape: &Shape, value: u64, cuda: &Cuda) -> Result<MapsArgument> {
    let mut argument = MapsArgument([TensorMap::default(); LEVEL_CAPACITY]);
    for (place, map) in argument.0.iter_mut().zip(maps) {
        let level = shape.levels[map.level];
        let pixel = u64::from(shape.heads) * u64::from(shape.pixel_bytes());
        let row = u64::from(level.width) * pixel;
        *place = TensorMap::encode(
            cuda.context(),
            &Tiled {
                element: TensorElement::F16,
                address: value + u64::from(level.start) * pixel,
                dimensions: vec![
                    u64::from(shape.heads * shape.channels),
                    level.width.into(),
                    level.height.into(),
                    shape.images.into(),
                ],
                strides: vec![pixel, row, u64::from(shape.pixels) * pixel],
                box_sides: map.sides.to_vec(),
                element_strides: vec![1; 4],
            },
        )?;
    }
    Ok(argument)
}
