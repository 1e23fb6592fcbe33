//! `fourtap compare`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

/// `fourtap compare`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Benchmarks are matched by name and sizes. The verdict is based on the ratio of hot medians, B / A,
and its confidence interval (99 % for all benchmarks together):
  SLOWER   the whole interval lies above 1 + noise
  FASTER   the whole interval lies below 1 - noise
  SAME     the whole interval lies within 3 % of 1
  UNCLEAR  anything else: measure again, longer or on a quieter machine
Noise is what two runs of the same code differ by. Repeated records of a benchmark, as after `bench
--json FILE` with the same FILE three times or in a folder of files, are pooled and measure it (1 %
at least). Single runs do not: then it is what single runs of one build were seen to differ by, 15 %
on a GPU and 2x on a CPU. For a sure answer time both builds in turns: `fourtap bench --against
OTHER`.

Conditions of --fail-on, one or several separated by commas:
  slower     any SLOWER; slower:3%: any that is slower by at least 3 %
  unclear    any UNCLEAR
  missing    a benchmark of A that B does not have
With any of them a wrong result in B is a failure as well.")]
pub struct CompareArgs {
    /// Reference results: a file of records, or a folder of such files
    #[arg(value_name = "A")]
    pub before: PathBuf,
    /// Results to judge
    #[arg(value_name = "B")]
    pub after: PathBuf,
    /// Exit with 3 on slower, slower:3%, unclear or missing: see below
    #[arg(long, value_name = "CONDITION", value_delimiter = ',')]
    pub fail_on: Vec<FailOn>,
    /// Only benchmarks with TEXT in their name, as in encoder/local/f16/forward
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Also show benchmarks that are the same
    #[arg(long)]
    pub all: bool,
    /// Print one JSON record per benchmark instead of a table
    #[arg(long)]
    pub json: bool,
}

/// What a comparison is to fail on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FailOn {
    /// A benchmark that is slower by at least this share.
    Slower(f64),
    /// A benchmark of which the samples do not tell.
    Unclear,
    /// A benchmark that is gone.
    Missing,
}

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = |text: &str| {
            let percent: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
            let is_sensible = percent.is_finite() && percent >= 0.0;
            is_sensible.then_some(FailOn::Slower(percent / 100.0))
        };
        match text {
            "slower" => Some(FailOn::Slower(0.0)),
            "unclear" => Some(FailOn::Unclear),
            "missing" => Some(FailOn::Missing),
            other => other.strip_prefix("slower:").and_then(share),
        }
        .ok_or_else(|| "expected slower, slower:3%, unclear or missing".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_conditions() {
        assert_eq!("slower".parse(), Ok(FailOn::Slower(0.0)));
        assert_eq!("slower:2.5%".parse(), Ok(FailOn::Slower(0.025)));
        assert_eq!("unclear".parse(), Ok(FailOn::Unclear));
        assert_eq!("missing".parse(), Ok(FailOn::Missing));
        for wrong in [
            "",
            "slower:",
            "slower:3",
            "slower:-1%",
            "slower:NaN%",
            "faster",
            "slower:inf%",
        ] {
            assert!(wrong.parse::<FailOn>().is_err(), "{wrong}");
        }
    }
}
