//! The `fourtap` command as its users meet it, in one program with a module per subject.

#[cfg(unix)]
mod against;
mod bad_calls;
mod bad_files;
mod bad_tensors;
mod bench;
mod browser;
mod cli;
mod common;
mod compare;
mod dense;
mod explain;
mod implementations;
#[cfg(unix)]
mod interrupted;
#[cfg(target_os = "linux")]
mod kernels;
mod probe;
#[cfg(unix)]
mod profile;
mod projections;
mod report;
mod report_in_browser;
mod run;
mod tune;
