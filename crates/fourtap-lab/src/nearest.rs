//! "Did you mean": the nearest known name.

/// The candidate nearest to `wanted`, if it is near enough to be a slip of the pen.
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, candidate) = candidates
        .into_iter()
        .map(|candidate| (strsim::levenshtein(wanted, candidate), candidate))
        .min()?;
    let length = wanted.chars().count().max(candidate.chars().count());
    (distance <= length / 3).then_some(candidate)
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
