//! Kernel launches.

use std::ffi::c_void;

use super::api;
use super::context::Context;
use super::error::DriverResult;
use super::library::{LaunchAttribute, LaunchAttributeValue, LaunchConfig, SUCCESS};
use super::module::Kernel;
use super::stream::Stream;

const CLUSTER_DIMENSION: u32 = 4;
const PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;

/// How a kernel is launched.
///
/// ```
/// use fourtap::cuda::driver::Launch;
/// let launch = Launch { grid: [132, 1, 1], block: [256, 1, 1], ..Launch::default() };
/// assert_eq!(launch.shared_bytes, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch<'a> {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads per block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory per block in bytes.
    pub shared_bytes: u32,
    /// The stream.
    pub stream: Stream<'a>,
    /// Blocks per cluster in x, y and z, which share their shared memory. Needs compute capability 9.0.
    pub cluster: Option<[u32; 3]>,
    /// Lets the kernel begin while the one before it in the stream still runs. It must then itself wait, by
    /// `griddepcontrol.wait`, before it touches what that one writes. Needs compute capability 9.0.
    pub overlap_previous: bool,
}

impl Default for Launch<'_> {
    /// One block of one thread on the legacy default stream.
    fn default() -> Self {
        Launch {
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            stream: Stream::legacy_default(),
            cluster: None,
            overlap_previous: false,
        }
    }
}

/// Launch attributes, and how many of them are in use.
struct Attributes([LaunchAttribute; 2], u32);

impl Launch<'_> {
    fn attributes(&self) -> Attributes {
        let mut attributes = [const { attribute(0, [0; 3]) }; 2];
        let mut count = 0;
        if let Some(cluster) = self.cluster {
            attributes[count] = attribute(CLUSTER_DIMENSION, cluster);
            count += 1;
        }
        if self.overlap_previous {
            attributes[count] = attribute(PROGRAMMATIC_STREAM_SERIALIZATION, [1, 0, 0]);
            count += 1;
        }
        Attributes(attributes, count as u32)
    }

    /// The driver's structure, which points to the attributes.
    fn config(&self, attributes: &mut Attributes) -> LaunchConfig {
        LaunchConfig {
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
            stream: self.stream.as_raw(),
            attributes: attributes.0.as_mut_ptr(),
            attribute_count: attributes.1,
        }
    }
}

/// Maximum resident clusters of such a launch on the context's device. Needs compute capability 9.0.
pub fn active_clusters(
    kernel: &Kernel,
    context: &Context,
    launch: &Launch<'_>,
) -> DriverResult<u32> {
    let _entered = context.enter()?;
    let api = context.api();
    let function = kernel.function(context)?;
    let mut attributes = launch.attributes();
    let config = launch.config(&mut attributes);
    let mut clusters = 0;
    // SAFETY: the function is of the context entered, `config` and its attributes live, and one number is written.
    let status = unsafe { (api.cuOccupancyMaxActiveClusters)(&mut clusters, function, &config) };
    api.check(
        status,
        &format!("find how many clusters of kernel {} fit", kernel.name()),
    )?;
    Ok(clusters.max(0) as u32)
}

/// Queues a kernel on a stream. Neither waits nor allocates.
///
/// # Safety
/// - A context of the stream's device is [entered](super::Context::enter).
/// - There is one argument for each of the kernel's parameters, in order, and each points to a value of its type,
///   which is copied before this returns.
/// - Memory those values lead to is allocated and of the size the kernel expects until the stream has done the work,
///   and nothing else uses it meanwhile in a way that the kernel does not allow.
pub unsafe fn launch(
    kernel: &Kernel,
    launch: &Launch<'_>,
    arguments: &mut [*mut c_void],
) -> DriverResult<()> {
    let api = api()?;
    let [grid_x, grid_y, grid_z] = launch.grid;
    let [block_x, block_y, block_z] = launch.block;
    let none = std::ptr::null_mut();
    let status = if launch.cluster.is_none() && !launch.overlap_previous {
        // SAFETY: the arguments are as the caller promises; launches take a kernel where they take a function.
        unsafe {
            (api.cuLaunchKernel)(
                kernel.as_raw(),
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                launch.shared_bytes,
                launch.stream.as_raw(),
                arguments.as_mut_ptr(),
                none,
            )
        }
    } else {
        let mut attributes = launch.attributes();
        let config = launch.config(&mut attributes);
        // SAFETY: as above, and `config` and its attributes live until this returns.
        unsafe { (api.cuLaunchKernelEx)(&config, kernel.as_raw(), arguments.as_mut_ptr(), none) }
    };
    if status == SUCCESS {
        return Ok(());
    }
    Err(api.failure(
        status,
        &format!(
            "launch kernel {} with grid {:?}, block {:?} and {} bytes of shared memory",
            kernel.name(),
            launch.grid,
            launch.block,
            launch.shared_bytes
        ),
    ))
}

const fn attribute(id: u32, [x, y, z]: [u32; 3]) -> LaunchAttribute {
    LaunchAttribute {
        id,
        padding: [0],
        value: LaunchAttributeValue([x, y, z, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    }
}
