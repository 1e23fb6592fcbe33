//! The kernel cache returns correct code whatever happens to its files and its processes.

mod child;
mod directory;
mod entries;
mod kernels;
mod processes;
mod upkeep;
