//! fourtap for C and C++: what `include/fourtap.h` declares, which is made from this crate.
//!
//! Every function follows one pattern. Descriptors are copied by their `struct_size` (`descriptor`), tensors become views
//! (`tensor`, `levels`), the call is prepared by the library and launched (`options`), and whatever goes wrong becomes a
//! status and a message (`status`). Nothing unwinds into the caller.

mod call;
mod dense;
mod descriptor;
mod levels;
mod msda;
mod options;
mod projections;
mod status;
mod tensor;
mod version;

pub use dense::{
    Alignment, DenseGradients, DenseInputs, DenseOutputs, fourtap_dense_backward,
    fourtap_dense_backward_workspace_size, fourtap_dense_forward,
    fourtap_dense_forward_workspace_size,
};
pub use msda::{
    MsdaGradients, MsdaInputs, fourtap_msda_backward, fourtap_msda_backward_workspace_size,
    fourtap_msda_forward, fourtap_msda_forward_workspace_size,
};
pub use options::{DETERMINISTIC, Options};
pub use projections::{
    Interpolation, ProjectionsGradients, ProjectionsInputs, fourtap_projections_backward,
    fourtap_projections_backward_workspace_size, fourtap_projections_forward,
    fourtap_projections_forward_workspace_size, fourtap_zero_pixels,
};
pub use status::{Status, fourtap_last_error_message};
pub use tensor::{DType, Device, MAX_RANK, Tensor};
pub use version::{ABI_VERSION, fourtap_abi_version, fourtap_version};
