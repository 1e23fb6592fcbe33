//! What the hardware can do at most, measured.

pub mod cpu;
