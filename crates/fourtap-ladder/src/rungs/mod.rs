//! The rungs, by family.

mod approximate;
mod best;
mod cluster;
mod dense;
mod hopper;
mod layouts;
mod limits;
mod persistent;
mod plain;
mod suites;
mod tensor_cores;
mod tiles;

use crate::rung::Rung;

/// All of them, in the order of their names.
pub fn all() -> Vec<Rung> {
    let families = [
        plain::RUNGS,
        persistent::RUNGS,
        cluster::RUNGS,
        tiles::RUNGS,
        tensor_cores::RUNGS,
        layouts::RUNGS,
        approximate::RUNGS,
        best::RUNGS,
        suites::RUNGS,
        dense::RUNGS,
        hopper::RUNGS,
    ];
    let mut rungs: Vec<Rung> = families.concat();
    rungs.sort_by_key(|rung| rung.name);
    rungs
}
