//! What a command ends with.

/// The number a command ends with. Unlike `std::process::ExitCode` it can be read, which a Python that runs the command
/// needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(u8);

impl ExitCode {
    /// All is well.
    pub const SUCCESS: ExitCode = ExitCode(0);
    /// Something went wrong.
    pub const FAILURE: ExitCode = ExitCode(1);
    /// The command line was used wrongly.
    pub const USAGE: ExitCode = ExitCode(2);
    /// A verification failed.
    pub const MISMATCH: ExitCode = ExitCode(3);

    /// The number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl From<u8> for ExitCode {
    fn from(number: u8) -> Self {
        ExitCode(number)
    }
}
