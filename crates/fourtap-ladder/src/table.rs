//! The list of rungs as a text table.

use comfy_table::ContentArrangement;
use fourtap_lab::extension::table::with_header;

use crate::rung::Contender;

/// Columns a terminal has at least.
const WIDTH: u16 = 100;

/// The rungs there are.
pub fn list(contenders: &[Contender]) -> String {
    let mut table = with_header(&["rung", "idea", "parameters (the default first)"]);
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH);
    for contender in contenders {
        let parameters: Vec<String> = contender
            .parameters()
            .iter()
            .map(|one| {
                let others = one.values.iter().filter(|&&value| value != one.default);
                let values: Vec<_> = [&one.default].into_iter().chain(others).collect();
                let values: Vec<_> = values.iter().map(|value| value.to_string()).collect();
                format!("{}={} ({})", one.name, values.join("|"), one.what)
            })
            .collect();
        table.add_row([
            contender.name().to_string(),
            format!("{}: {}", contender.title(), contender.idea()),
            parameters.join(", "),
        ]);
    }
    format!("{table}\n")
}
