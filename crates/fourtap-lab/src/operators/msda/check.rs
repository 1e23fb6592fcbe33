//! Random problems of deformable attention.

use std::ops::Range;

use fourtap::Backend;
use fourtap::cpu::Simd;
use fourtap::cuda::Cuda;
use fourtap::verify::{self, Case, Failure, LevelsIn};

use super::Msda;
use crate::check::{Outcome, Path, Report, each};
use crate::cli::{Direction, KernelChoice, TargetArgs};
use crate::cuda::Mode;

/// Both passes of these problems through each of `paths`.
pub fn on_paths(seeds: Range<u64>, paths: &[Simd]) -> Report {
    let backends: Vec<_> = paths
        .iter()
        .map(|&simd| (simd.name(), verify::backends(simd)))
        .collect();
    let names = paths.iter().map(|simd| simd.name().to_string()).collect();
    each(&Msda, seeds, names, |seed| {
        let case = &Case::random(seed);
        let outcome = |(simd, backends): &(&'static str, Vec<Backend>)| {
            let mut checks = backends.iter().map(|one| verify::check(case, one));
            Outcome {
                path: Path::Cpu { simd },
                found: checks.find_map(|check| Some(check.err()?.to_string())),
                repeat: format!(
                    "fourtap check --operator msda --simd {simd} --cases 1 --seed {seed}"
                ),
            }
        };
        backends.iter().map(outcome).collect()
    })
}

/// Both passes of these problems through the kernels asked for, backward in the modes asked for, with levels in host
/// memory and, every third, in the device's.
pub fn on_cuda(seeds: Range<u64>, cuda: Cuda, target: &TargetArgs) -> Report {
    let kernels = match target.kernel {
        Some(kernel) => vec![kernel],
        None => vec![KernelChoice::Best, KernelChoice::Channel],
    };
    let modes: &[_] = match target.deterministic {
        true => &[Mode::Deterministic],
        false => &[Mode::Fast, Mode::Deterministic],
    };
    let device = cuda.ordinal();
    let backward = modes.iter().map(|&mode| Some(mode));
    let passes: Vec<Option<Mode>> = [None].into_iter().chain(backward).collect();
    let names = kernels
        .iter()
        .map(|kernel| format!("cuda:{device} ({})", kernel.name()));
    each(&Msda, seeds, names.collect(), |seed| {
        let case = &Case::random(seed);
        let mut tables = vec![LevelsIn::Host];
        // By the seed, so that repeating it alone takes the same way.
        if seed.is_multiple_of(3) {
            tables.push(LevelsIn::Device);
        }
        let mut outcomes = Vec::new();
        for &kernel in &kernels {
            for &mode in &passes {
                for &levels in &tables {
                    outcomes.extend(one_way(case, seed, cuda, kernel, mode, levels));
                }
            }
        }
        outcomes
    })
}

/// Backward in this mode, or forward, which has none. Nothing if the kernel, named by hand, does not serve the problem.
fn one_way(
    case: &Case,
    seed: u64,
    cuda: Cuda,
    kernel: KernelChoice,
    mode: Option<Mode>,
    levels: LevelsIn,
) -> Option<Outcome> {
    let cuda = cuda.with_kernel(kernel.into());
    let checked = match mode {
        None => verify::check_forward_on_cuda(case, &cuda, levels),
        Some(mode) => verify::check_backward_on_cuda(case, &mode.on(&cuda), levels),
    };
    let failure = checked.err();
    let refused = matches!(
        failure,
        Some(Failure::Refused(fourtap::Error::Unsupported { .. }))
    );
    if refused && kernel == KernelChoice::Gather {
        return None;
    }
    let (device, kernel) = (cuda.ordinal(), kernel.name());
    let pass = mode.map_or(Direction::Forward, |_| Direction::Backward);
    let more = match mode {
        Some(Mode::Deterministic) => " --deterministic",
        _ => "",
    };
    Some(Outcome {
        path: Path::Cuda {
            device,
            kernel: Some(kernel),
            pass: Some(pass.name()),
            mode,
            levels: Some(match levels {
                LevelsIn::Host => "host",
                LevelsIn::Device => "device",
            }),
        },
        found: failure.map(|failure| failure.to_string()),
        repeat: format!(
            "fourtap check --operator msda --device cuda:{device} --kernel {kernel}{more} --cases 1 --seed {seed}"
        ),
    })
}
