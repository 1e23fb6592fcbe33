//! Exit codes.

/// The exit code of a command. Unlike `std::process::ExitCode` it can be read, which the Python package needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(u8);

impl ExitCode {
    /// Success.
    pub const SUCCESS: ExitCode = ExitCode(0);
    /// An error.
    pub const FAILURE: ExitCode = ExitCode(1);
    /// Invalid command-line arguments.
    pub const USAGE: ExitCode = ExitCode(2);
    /// A verification failed.
    pub const MISMATCH: ExitCode = ExitCode(3);
    /// Ended by Ctrl-C, as shells say it: 128 and the number of the signal.
    pub const INTERRUPTED: ExitCode = ExitCode(130);

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
