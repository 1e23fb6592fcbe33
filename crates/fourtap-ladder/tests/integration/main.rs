//! The `fourtap-ladder` command as its users meet it, in one program with a module per subject.

mod cli;
mod ladder;
