//! The project's tasks, `cargo xtask test` and others, with nothing but Rust and Python installed.

mod bundle;
mod c_library;
mod chore;
mod environment;
mod false_alarms;
mod neighbours;
mod nvrtc;
mod onnx;
mod packs;
mod parts;
mod python;
mod rust;
mod site;
mod tasks;
mod test;
mod workspace;

use std::process::ExitCode;

use tasks::Request;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = Request::new(&words).and_then(|request| match request {
        Request::Help(task) => {
            print!("{}", tasks::help(task));
            Ok(())
        }
        Request::Run(task, rest) => (task.run)(rest),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
