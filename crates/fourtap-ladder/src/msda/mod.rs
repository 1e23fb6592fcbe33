//! Deformable attention: its problems, as rungs take them.

mod arguments;
mod small;

use fourtap::Backend;
use fourtap::cuda::Cuda;
use fourtap::msda::{self, Inputs, Levels, Sizes};
use fourtap_lab::extension::record::TrafficCounts;
use fourtap_lab::extension::{
    Array, DeviceArray, Result, Rule, Trial, Verification, verify_forward,
};

use crate::plan::{LEVEL_CAPACITY, Level, Shape};

pub use arguments::{MapsArgument, ProblemArgument, level_map};
pub use small::{SMALL, Small};

/// What stands before the source of a rung.
pub const HEADER: &str = include_str!("../../kernels/rung.cuh");

/// Channels that rungs are written for.
const CHANNELS: [u32; 4] = [16, 32, 64, 128];

/// A problem's tensors, of the types that rungs take.
#[derive(Debug)]
pub struct Numbers {
    /// Where the levels lie.
    pub levels: Levels,
    /// f16.
    pub value: Array,
    /// f32.
    pub locations: Array,
    /// f32.
    pub weights: Array,
}

impl Numbers {
    fn trial(&self) -> Result<Trial<'_>> {
        let inputs = Inputs {
            value: self.value.view(),
            levels: (&self.levels).into(),
            sampling_locations: self.locations.view(),
            attention_weights: self.weights.view(),
        };
        Ok(Trial::forward(Backend::Auto, inputs)?)
    }

    /// The inputs in the order of the kernels' arguments.
    pub fn inputs(&self) -> [&Array; 3] {
        [&self.value, &self.locations, &self.weights]
    }

    /// A result that is not a number anywhere.
    pub fn poisoned(&self) -> Result<Array> {
        let trial = self.trial()?;
        let shape = trial.problem().sizes().out();
        Array::poisoned("out", self.value.dtype(), &shape)
    }

    /// Compares sampled rows of a result, or without a seed every row.
    pub fn verify(&self, out: &Array, seed: Option<u64>, rule: Rule) -> Result<Verification> {
        verify_forward(&self.trial()?, std::slice::from_ref(out), seed, rule)
    }

    /// Queues the library's forward on copies of the inputs.
    pub fn queue_shipped(
        &self,
        cuda: &Cuda,
        inputs: &[DeviceArray; 3],
        out: &mut DeviceArray,
    ) -> Result<()> {
        let [value, locations, weights] = inputs;
        let inputs = Inputs {
            value: value.view(),
            levels: (&self.levels).into(),
            sampling_locations: locations.view(),
            attention_weights: weights.view(),
        };
        Ok(msda::forward(
            &Backend::Cuda(*cuda),
            inputs,
            out.view_mut(),
        )?)
    }

    /// The sizes, if rungs can take them; else in words, why not.
    pub fn shape(&self) -> Result<std::result::Result<Shape, String>> {
        let trial = self.trial()?;
        Ok(shape_of(trial.problem().sizes(), trial.problem().levels()))
    }
}

/// The sizes, if rungs can take them; else in words, why not.
pub fn shape_of(sizes: &Sizes, levels: &Levels) -> std::result::Result<Shape, String> {
    let small = |what: &str, count: usize| {
        let count = u32::try_from(count).ok().filter(|&count| count < 1 << 31);
        count.ok_or_else(|| format!("{what}: rungs count in 31 bits"))
    };
    let rows = [sizes.images, sizes.queries, sizes.heads];
    let rows = rows
        .iter()
        .try_fold(1usize, |product, &size| product.checked_mul(size));
    small("rows", rows.unwrap_or(usize::MAX))?;
    let level = |level: &msda::Level| -> std::result::Result<Level, String> {
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

/// What every rung asks of a problem.
pub fn expect_takeable(shape: &Shape) -> std::result::Result<(), String> {
    if !CHANNELS.contains(&shape.channels) {
        return Err(format!(
            "{} channels: rungs are written for 16, 32, 64 and 128",
            shape.channels
        ));
    }
    if shape.levels.len() > LEVEL_CAPACITY {
        return Err(format!(
            "{} levels: rungs take at most {LEVEL_CAPACITY}",
            shape.levels.len()
        ));
    }
    Ok(())
}

/// What every rung is compiled for.
pub fn defines(shape: &Shape) -> Vec<(&'static str, u32)> {
    vec![
        ("CHANNELS", shape.channels),
        ("LEVELS", shape.levels.len() as u32),
        ("POINTS", shape.points),
    ]
}

/// Bytes and operations of a problem of the types that rungs take: f16, with f32 locations and weights.
pub fn traffic(sizes: &Sizes) -> TrafficCounts {
    let (value, location) = (2, 4);
    let rows = (sizes.images * sizes.queries * sizes.heads) as u64;
    let samples = rows * (sizes.levels * sizes.points) as u64;
    let channels = sizes.channels as u64;
    let pixels = (sizes.images * sizes.pixels * sizes.heads) as u64;
    TrafficCounts {
        compulsory_bytes: (pixels + rows) * channels * value + 3 * samples * location,
        gathered_bytes: 4 * samples * channels * value,
        flop: 10 * samples * channels,
    }
}
