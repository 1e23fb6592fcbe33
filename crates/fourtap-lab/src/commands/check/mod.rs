//! `fourtap check`: random problems against the oracle.

mod dense;
mod msda;

use std::ops::Range;

use fourtap_admin::check::{Mismatch, Report, msda_on_cpu};

use super::{note, print, print_json};
use crate::cli::CheckArgs;
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::target::Chosen;
use crate::workload::Operator;

pub fn execute(arguments: &CheckArgs) -> Result<ExitCode> {
    let seeds = seeds(arguments.seed, arguments.cases)?;
    let asked = |operator: &Operator| {
        arguments.operator.is_empty() || arguments.operator.contains(operator)
    };
    let operators: Vec<Operator> = Operator::ALL.into_iter().filter(asked).collect();
    if let (Some(_), [Operator::Dense]) = (arguments.target.kernel, &operators[..]) {
        return Err(Error::WrongOperator {
            option: "--kernel",
            expected: Operator::Msda,
            found: "dense".to_string(),
        });
    }
    let chosen = Chosen::new(&arguments.target)?;
    let mut code = ExitCode::SUCCESS;
    for operator in operators {
        let report = match (operator, &chosen) {
            (Operator::Msda, Chosen::Cpu(paths)) => msda_on_cpu(seeds.clone(), paths),
            (Operator::Msda, Chosen::Cuda(cuda)) => {
                msda::on_cuda(seeds.clone(), *cuda, &arguments.target)
            }
            (Operator::Dense, Chosen::Cpu(paths)) => dense::on_paths(seeds.clone(), paths),
            (Operator::Dense, Chosen::Cuda(cuda)) => dense::on_cuda(seeds.clone(), *cuda),
        };
        say(operator, &report, arguments.json)?;
        if !report.mismatches.is_empty() {
            code = report.exit_code();
        }
    }
    Ok(code)
}

fn say(operator: Operator, report: &Report, json: bool) -> Result<()> {
    if json {
        return print_json(report);
    }
    print(format!("{}: {}\n", operator.name(), report.summary()))?;
    for Mismatch {
        seed,
        path,
        found,
        repeat,
    } in &report.mismatches
    {
        note(&format!(
            "mismatch: problem {seed} of {} on {path}: {found}\n  repeat with: {repeat}",
            operator.in_words()
        ));
    }
    Ok(())
}

fn seeds(seed: u64, cases: u64) -> Result<Range<u64>> {
    let end = seed
        .checked_add(cases)
        .ok_or(Error::Seeds { seed, cases })?;
    Ok(seed..end)
}
