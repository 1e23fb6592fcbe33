//! The name that was probably meant.

/// The candidate nearest to `wanted`, if it is near enough to be a slip of the pen.
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, candidate) = candidates
        .into_iter()
        .map(|candidate| (distance(wanted, candidate), candidate))
        .min()?;
    let length = wanted.chars().count().max(candidate.chars().count());
    (distance <= length / 3).then_some(candidate)
}

/// Letters to insert, delete or replace to get from one to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_slip_and_nothing_far() {
        let names = ["attention_weight", "values"];
        assert_eq!(
            nearest("attention_weights", names),
            Some("attention_weight")
        );
        assert_eq!(nearest("value", names), Some("values"));
        assert_eq!(nearest("grad_out", ["grad_output"]), Some("grad_output"));
        assert_eq!(nearest("grad_out", names), None);
        assert_eq!(nearest("value", []), None);
    }
}
