//! Random problems of deformable attention.

use std::ops::Range;

use fourtap::cuda::Cuda;
use fourtap::verify::{self, Case, Failure, LevelsIn};
use fourtap_admin::check::{Outcome, Path, Report, each};

use super::Msda;
use crate::cli::{Direction, KernelChoice, TargetArgs};
use crate::cuda::Mode;
use crate::operators::Operator;

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
    each(Msda.name(), seeds, names.collect(), |seed| {
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
    let cuda = cuda.with_msda(kernel);
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
            mode: mode.map(Mode::name),
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
