//! The built-in workloads for people.

use crate::error::Result;
use crate::operators::msda::queries::Queries;
use crate::operators::msda::workload::{BUILT_IN, Workload};
use crate::table::{align_right, with_header};

/// The built-in workloads.
pub fn workloads() -> Result<String> {
    let mut table = with_header(&["name", "N", "Q", "M", "D", "P", "levels (H x W)"]);
    let mut descriptions = String::new();
    for (name, text) in BUILT_IN {
        let workload = Workload::parse(name, text)?;
        let levels: Vec<_> = workload
            .levels
            .iter()
            .map(|[height, width]| format!("{height}x{width}"))
            .collect();
        table.add_row([
            workload.name.clone(),
            workload.images.to_string(),
            match workload.queries {
                Queries::Pixels => "pixels".to_string(),
                Queries::Count(count) => count.to_string(),
            },
            workload.heads.to_string(),
            workload.channels.to_string(),
            workload.points.to_string(),
            levels.join(" "),
        ]);
        descriptions += &format!("{:16}{}\n", workload.name, workload.description);
    }
    align_right(&mut table, 1..6);
    let letters = "N images, Q queries, M heads, D channels per head, P points per level.";
    Ok(format!(
        "Deformable attention (`fourtap bench msda`)\n{table}\n{letters}\n\n{descriptions}"
    ))
}
