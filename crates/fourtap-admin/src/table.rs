//! Tables for people.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table, TableComponent};
use fourtap::cuda::jit::{Entry, State};

use crate::units;

const KERNEL_NAME_WIDTH: usize = 44;

/// The kernels of a cache.
pub(crate) fn cached(entries: &[Entry]) -> String {
    let mut table = with_header(&["kernel", "for", "NVRTC", "size", "unused for", ""]);
    let or_unknown = |text: Option<String>| text.unwrap_or("?".to_string());
    for entry in entries {
        let unused = entry.last_used.elapsed().unwrap_or_default();
        table.add_row([
            shortened(&entry.name, KERNEL_NAME_WIDTH),
            or_unknown(entry.architecture.map(|it| it.to_string())),
            or_unknown(entry.nvrtc.map(|it| it.to_string())),
            units::bytes(entry.size),
            units::age(unused),
            match entry.state {
                State::Sound => "".to_string(),
                State::Damaged(_) => "damaged".to_string(),
            },
        ]);
    }
    align_right(&mut table, 2..5);
    format!("{table}\n")
}

/// A table with these columns, and rules around the header and at the end.
pub fn with_header(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    // No rules between the rows.
    for between in [
        TableComponent::HorizontalLines,
        TableComponent::MiddleIntersections,
        TableComponent::LeftBorderIntersections,
        TableComponent::RightBorderIntersections,
    ] {
        table.remove_style(between);
    }
    table.set_header(header);
    table
}

/// Right-aligns columns of numbers.
pub fn align_right(table: &mut Table, columns: std::ops::Range<usize>) {
    for index in columns {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Shortens a long name at its start, because its end says more.
pub fn shortened(name: &str, width: usize) -> String {
    let count = name.chars().count();
    if count <= width {
        return name.to_string();
    }
    let end: String = name.chars().skip(count - width + 1).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("detr-encoder", 28), "detr-encoder");
        let long = "/a/very/long/path/to/some/folder/with/inputs.safetensors";
        let short = shortened(long, 28);
        assert_eq!(short.chars().count(), 28);
        assert!(short.ends_with("inputs.safetensors"));
    }
}
