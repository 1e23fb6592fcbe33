//! The spaces there are. They stand here and not beside the launchers, so that tables can be read by whoever has not
//! all backends, and no backend is needed to know them.

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
    /// Of every kernel that can be tuned.
    pub fn all() -> impl Iterator<Item = &'static Space> {
        ALL.into_iter()
    }

    /// Of the kernel of this name.
    pub fn named(kernel: &str) -> Option<&'static Space> {
        Space::all().find(|space| space.kernel == kernel)
    }
}
