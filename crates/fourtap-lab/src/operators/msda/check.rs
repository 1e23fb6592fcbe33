//! Random problems of deformable attention.

use std::ops::Range;

use fourtap::cuda::Cuda;
use fourtap::verify::{
    self, Case, CudaProjectedCase, ExpectedProjectedResults, Failure, LevelsIn, ProjectedCase,
    ProjectedGradientSelection,
};
use fourtap_admin::check::{MsdaInputs, Outcome, Path, Report, each};

use super::Msda;
use crate::cli::{Direction, KernelChoice, TargetArgs};
use crate::cuda::Mode;
use crate::operators::Operator;

/// Both passes of these problems, one of each seed from given locations and weights and one from projections, through the
/// kernels asked for, backward in the modes asked for, with levels in host memory and, every third, in the device's.
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
        let problems = [
            Problem::Given(Box::new(Case::random(seed))),
            Problem::projected(seed),
        ];
        let mut tables = vec![LevelsIn::Host];
        // By the seed, so that repeating it alone takes the same way.
        if seed.is_multiple_of(3) {
            tables.push(LevelsIn::Device);
        }
        let mut outcomes = Vec::new();
        for problem in &problems {
            for &kernel in &kernels {
                for &mode in &passes {
                    for &levels in &tables {
                        outcomes.extend(one_way(problem, seed, cuda, kernel, mode, levels));
                    }
                }
            }
        }
        outcomes
    })
}

/// A random problem.
enum Problem {
    /// From sampling locations and attention weights.
    Given(Box<Case>),
    /// From projections.
    Projected(Box<ProjectedProblem>),
}

/// A random problem from projections, and its expected results, which all kernels share.
struct ProjectedProblem {
    case: ProjectedCase,
    expected: fourtap::Result<ExpectedProjectedResults>,
}

impl Problem {
    /// Every second one is laid out as the gather kernels want it, which few random ones are.
    fn projected(seed: u64) -> Self {
        let case = match seed.is_multiple_of(2) {
            true => ProjectedCase::aligned(seed),
            false => ProjectedCase::random(seed),
        };
        let expected = ExpectedProjectedResults::new(&case);
        Problem::Projected(Box::new(ProjectedProblem { case, expected }))
    }

    fn inputs(&self) -> MsdaInputs {
        match self {
            Problem::Given(_) => MsdaInputs::Given,
            Problem::Projected(..) => MsdaInputs::Projections,
        }
    }

    /// Backward in this mode, or forward, which has none.
    fn check(&self, cuda: &Cuda, mode: Option<Mode>, levels: LevelsIn) -> Result<(), Failure> {
        match (self, mode) {
            (Problem::Given(case), None) => verify::check_forward_on_cuda(case, cuda, levels),
            (Problem::Given(case), Some(mode)) => {
                verify::check_backward_on_cuda(case, &mode.on(cuda), levels)
            }
            (Problem::Projected(problem), mode) => {
                let expected = problem.expected.as_ref().map_err(Clone::clone)?;
                let cuda = mode.map_or(*cuda, |mode| mode.on(cuda));
                let copied = CudaProjectedCase::new(&problem.case, cuda)?;
                match mode {
                    None => expected.compare_forward(&copied.forward(levels)?),
                    Some(_) => {
                        let all = ProjectedGradientSelection::ALL;
                        expected.compare_backward(&copied.backward(levels, all)?)
                    }
                }
            }
        }
    }
}

/// Backward in this mode, or forward, which has none. Nothing if the kernel, named by hand, does not serve the problem.
fn one_way(
    problem: &Problem,
    seed: u64,
    cuda: Cuda,
    kernel: KernelChoice,
    mode: Option<Mode>,
    levels: LevelsIn,
) -> Option<Outcome> {
    let cuda = cuda.with_msda(kernel);
    let failure = problem.check(&cuda, mode, levels).err();
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
            inputs: Some(problem.inputs()),
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
