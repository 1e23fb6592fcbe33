//! What operators allocate. A program of its own, because its allocator counts for the whole process.

mod counting;
mod dense;
mod msda;
mod projections;
