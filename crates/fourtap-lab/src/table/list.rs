//! The built-in workloads.

use fourtap::dense::Sizes;

use super::{align_right, with_header};
use crate::error::Result;
use crate::record::MaskRecord;
use crate::workload::{AnyWorkload, DenseWorkload, Operator, Queries, Workload};

/// The built-in workloads.
pub fn workloads() -> Result<String> {
    let built_in = |operator: Operator| {
        let names = operator.workloads().into_iter();
        names
            .filter_map(AnyWorkload::built_in)
            .collect::<Result<Vec<_>>>()
    };
    let (mut msda, mut dense) = (Vec::new(), Vec::new());
    for operator in Operator::ALL {
        for workload in built_in(operator)? {
            match workload {
                AnyWorkload::Msda(workload) => msda.push(workload),
                AnyWorkload::Dense(workload) => dense.push(workload),
            }
        }
    }
    Ok(format!("{}\n{}", of_msda(&msda), of_dense(&dense)))
}

fn of_dense(workloads: &[DenseWorkload]) -> String {
    let mut table = with_header(&["name", "B", "Hq", "Hk", "Sq", "Sk", "D", "keys seen"]);
    for workload in workloads {
        let Sizes {
            batch,
            query_heads,
            key_heads,
            queries,
            keys,
            channels,
            ..
        } = workload.sizes();
        let sizes = [batch, query_heads, key_heads, queries, keys, channels];
        let mask = MaskRecord::of(workload.options().mask);
        let mut row = vec![workload.name.clone()];
        row.extend(sizes.map(|size| size.to_string()));
        row.push(mask.map_or("all".to_string(), |mask| mask.in_words()));
        table.add_row(row);
    }
    align_right(&mut table, 1..7);
    let letters = "\
B sequences, Hq heads of queries, Hk of keys and values, Sq queries, Sk keys, D channels a head.";
    format!("Dense attention (`fourtap bench dense`)\n{table}\n{letters}\n")
}

fn of_msda(workloads: &[Workload]) -> String {
    let mut table = with_header(&["name", "N", "Q", "M", "D", "P", "levels (H x W)"]);
    let mut descriptions = String::new();
    for workload in workloads {
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
    let letters = "N images, Q queries, M heads, D channels a head, P points a level.";
    format!("Deformable attention (`fourtap bench msda`)\n{table}\n{letters}\n\n{descriptions}")
}
