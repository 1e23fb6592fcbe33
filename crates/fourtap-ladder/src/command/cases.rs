//! Which problems a run is about.

use std::path::PathBuf;

use fourtap_lab::extension::record::RungOperator;
use fourtap_lab::extension::{Distribution, Error, MsdaWorkload, Result};

use crate::case::Case;
use crate::cli::LadderArgs;
use crate::dense;
use crate::rung::Contender;

/// The shapes that were published with the ideas stand behind the two that matter.
const WORKLOADS: [&str; 5] = [
    "seed-full",
    "detr-encoder",
    "ladder-n8-q1024",
    "ladder-n4-q512",
    "ladder-n2-q256",
];

/// What every rung computes, each those of its operator.
pub struct Cases {
    msda: Vec<(PathBuf, MsdaWorkload)>,
    distributions: Vec<Distribution>,
    dense: Vec<dense::Workload>,
    causal: bool,
}

impl Cases {
    /// Those that were asked for, or the usual ones of both operators.
    pub fn of(arguments: &LadderArgs) -> Result<Self> {
        let mut cases = Cases {
            msda: Vec::new(),
            distributions: match &arguments.distribution[..] {
                [] => vec![Distribution::Uniform, Distribution::Local],
                chosen => chosen.to_vec(),
            },
            dense: Vec::new(),
            causal: arguments.causal,
        };
        let named = match &arguments.workload[..] {
            [] => {
                cases.dense = dense::BUILT_IN.to_vec();
                WORKLOADS.iter().map(PathBuf::from).collect()
            }
            named => named.to_vec(),
        };
        for name in named {
            match name.to_str().and_then(dense::Workload::named) {
                Some(workload) => cases.dense.push(workload),
                None => {
                    let workload = MsdaWorkload::named(&name, None)?;
                    cases.msda.push((name, workload));
                }
            }
        }
        Ok(cases)
    }

    /// Of the contenders those that have something to compute; it is a slip if none has.
    pub fn climbable(&self, chosen: Vec<Contender>) -> Result<Vec<Contender>> {
        let (with, without): (Vec<_>, Vec<_>) = chosen
            .into_iter()
            .partition(|contender| self.each(contender.operator()).next().is_some());
        match (with.is_empty(), without.first()) {
            (true, Some(contender)) => {
                let (operator, name) = (contender.operator(), contender.name());
                let known = match operator {
                    RungOperator::Msda => WORKLOADS.join(", "),
                    RungOperator::Dense => dense::BUILT_IN.map(|one| one.name).join(", "),
                };
                Err(Error::Workload {
                    origin: "--workload".to_string(),
                    found: format!(
                        "expected one of {}, which {name} computes, such as {known}; found none",
                        operator.in_words()
                    ),
                })
            }
            _ => Ok(with),
        }
    }

    /// Those of an operator, one after another.
    pub fn each(&self, operator: RungOperator) -> impl Iterator<Item = Case> {
        let msda = self.msda.iter().flat_map(|(_, workload)| {
            let distributions = self.distributions.iter();
            distributions.map(|&distribution| Case::Msda(workload.clone(), distribution))
        });
        let dense = self.dense.iter();
        let dense = dense.map(|&workload| Case::Dense(workload, self.causal));
        let all = msda.chain(dense);
        all.filter(move |case| case.operator() == operator)
    }

    /// How many of an operator are of its first workload.
    pub fn of_first_workload(&self, operator: RungOperator) -> usize {
        match operator {
            RungOperator::Msda => self.distributions.len(),
            RungOperator::Dense => 1,
        }
    }

    /// As typed, to be typed again, with the first so many workloads of an operator.
    pub fn words(&self, operator: RungOperator, workloads: usize) -> Vec<String> {
        let names: Vec<String> = match operator {
            RungOperator::Msda => {
                let names = self.msda.iter().map(|(path, _)| path.display().to_string());
                names.take(workloads).collect()
            }
            RungOperator::Dense => {
                let names = self.dense.iter().map(|workload| workload.name.to_string());
                names.take(workloads).collect()
            }
        };
        let distributions: Vec<_> = self.distributions.iter().map(|one| one.name()).collect();
        let words = [
            "--workload",
            &names.join(","),
            "--distribution",
            &distributions.join(","),
        ];
        let mut words = words.map(str::to_string).to_vec();
        if self.causal {
            words.push("--causal".to_string());
        }
        words
    }
}
