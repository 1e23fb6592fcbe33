//! Dense attention on a GPU.

mod calls;
mod hostile;
mod large;
mod oracle;
mod reproducible;
mod sanitizer;

use fourtap::DType;
use fourtap::cuda::Cuda;

/// The types there are kernels for.
const TYPES: [DType; 4] = DType::ALL;

/// The device, with work cut in every form it can be: large tiles, ever smaller ones, keys divided among blocks.
fn cuts(cuda: &Cuda) -> [Cuda; 5] {
    [1, 8, 40, 200, 100_000].map(|multiprocessors| cuda.for_multiprocessors(multiprocessors))
}
