//! All search spaces. They are here and not beside the launchers, so that tables can be read without all backends
//! compiled in.

pub mod cpu;
pub mod cuda;

use super::space::Space;

static ALL: [&Space; 6] = [
    &cpu::MSDA_FORWARD,
    &cpu::MSDA_BACKWARD,
    &cpu::DENSE_FORWARD,
    &cuda::MSDA_FORWARD,
    &cuda::MSDA_BACKWARD,
    &cuda::DENSE_FORWARD,
];

impl Space {
    /// The spaces of all kernels that can be tuned.
    pub fn all() -> impl Iterator<Item = &'static Space> {
        ALL.into_iter()
    }

    /// The space of the kernel with this name.
    pub fn named(kernel: &str) -> Option<&'static Space> {
        Space::all().find(|space| space.kernel == kernel)
    }
}
