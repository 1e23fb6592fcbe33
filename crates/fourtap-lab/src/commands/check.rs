//! `fourtap check`: random problems against the oracle.

use std::ops::Range;

use super::{note, print, print_json};
use crate::cli::CheckArgs;
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::operators::{OPERATORS, Operator, refused};
use crate::target::RequestedTarget;
use fourtap_admin::check::{Mismatch, Report};

pub fn execute(arguments: &CheckArgs) -> Result<ExitCode> {
    let seeds = seeds(arguments.seed, arguments.cases)?;
    let asked = |operator: &&'static dyn Operator| {
        arguments.operator.is_empty() || arguments.operator.contains(operator)
    };
    let operators: Vec<_> = OPERATORS.into_iter().filter(asked).collect();
    let has_names = operators.iter().any(|it| it.has_named_kernels());
    if arguments.target.kernel.is_some() && !has_names {
        let names: Vec<_> = operators.iter().map(|it| it.name()).collect();
        let found = names.join(", ");
        return Err(refused("--kernel", found, |it| it.has_named_kernels()));
    }
    let chosen = RequestedTarget::new(&arguments.target)?;
    let mut code = ExitCode::SUCCESS;
    for operator in operators {
        let report = match &chosen {
            RequestedTarget::Cpu(paths) => operator.check_on_cpu(seeds.clone(), paths),
            RequestedTarget::Cuda(cuda) => {
                operator.check_on_cuda(seeds.clone(), *cuda, &arguments.target)
            }
        };
        say(operator, &report, arguments.json)?;
        if !report.mismatches.is_empty() {
            code = report.exit_code();
        }
    }
    Ok(code)
}

fn say(operator: &dyn Operator, report: &Report, json: bool) -> Result<()> {
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
