//! What to distrust in results.

use crate::record::{BenchRecord, ProbeRecord};

/// Half the confidence interval, as a share of the median, that deserves a word.
const UNCERTAIN: f64 = 0.05;

/// In words, each kind of doubt and how many results it is about.
pub fn doubts(records: &[BenchRecord], ceilings: &[ProbeRecord], quick: bool) -> Vec<String> {
    let all = records.len();
    let count = |matches: &dyn Fn(&BenchRecord) -> bool| {
        records.iter().filter(|record| matches(record)).count()
    };
    let mut doubts = Vec::new();
    for ceiling in ceilings.iter().filter(|ceiling| !ceiling.is_measured()) {
        let ProbeRecord { name, words, .. } = ceiling;
        doubts.push(format!(
            "no result is compared with {name}, which was not measured: {words}"
        ));
    }
    let uncertain = count(&|record| {
        let hot = record.hot.as_ref();
        hot.is_some_and(|hot| hot.uncertainty() > UNCERTAIN)
    });
    if uncertain > 0 {
        let longer = match quick {
            true => ", or leave --quick out",
            false => "",
        };
        doubts.push(format!(
            "{uncertain} of {all} medians are uncertain by more than 5 %: close other programs{longer}"
        ));
    }
    let suspicious = count(&|record| record.roof.as_ref().is_some_and(|roof| roof.suspicious));
    if suspicious > 0 {
        doubts.push(format!(
            "{suspicious} of {all} results are faster than the measured ceilings allow, so one of the two is wrong: \
             see \"suspicious\" in the records"
        ));
    }
    let throttled = count(&|record| {
        let conditions = record.conditions.as_ref();
        conditions.is_some_and(|conditions| !conditions.throttled_by().is_empty())
    });
    if throttled > 0 {
        doubts.push(format!(
            "the device throttled its clocks during {throttled} of {all} benchmarks: see \"throttled_by\" in the \
             records"
        ));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Outcome;
    use crate::target::Device;

    #[test]
    fn a_ceiling_that_failed_is_said() {
        let device = Device {
            kind: "cpu".to_string(),
            model: None,
            simd: None,
            threads: None,
            cuda: None,
        };
        let mut failed = ProbeRecord::new("copy", "ceiling", "copy", &device, Outcome::Failed);
        failed.words = "no memory".to_string();
        let doubts = doubts(&[], &[failed], false);
        assert_eq!(doubts.len(), 1);
        assert!(
            doubts[0].contains("copy") && doubts[0].ends_with("no memory"),
            "{doubts:?}"
        );
    }
}
