//! Custom operators for ONNX Runtime: deformable attention, under the names that existing exports of models use and under our own.
//!
//! ONNX Runtime loads this library and calls [`RegisterCustomOps`], which adds the nodes listed in `nodes` to a session's options.
//! A node's kernel (`kernel`) describes its inputs as views (`tensor`) and calls the library. `api` is the part of ONNX Runtime's C API
//! that this takes, `custom_op` the struct by which it asks about a node.

mod api;
mod attributes;
mod custom_op;
mod error;
mod kernel;
mod levels;
mod nodes;
mod parallel;
mod tensor;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use api::{Api, ApiBase, Domain, SessionOptions, Status};
use error::Result;
use fourtap::lock_free::List;

/// The oldest API with all that is used here, that of ONNX Runtime 1.17.
const API_VERSION: u32 = 17;

/// Adds our domains of nodes to the options of a session: what ONNX Runtime calls when it has loaded this library.
///
/// # Safety
/// The pointers are those that ONNX Runtime hands over.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name that ONNX Runtime looks for")]
pub unsafe extern "system" fn RegisterCustomOps(
    options: *mut SessionOptions,
    base: *const ApiBase,
) -> *mut Status {
    // SAFETY: as the caller promises.
    let api = match unsafe { Api::of(base, API_VERSION) } {
        Ok(api) => api,
        Err(status) => return status,
    };
    answer(api, || {
        for domain in domains(api)? {
            // SAFETY: as the caller promises; domains live as long as the process.
            unsafe { api.add_domain(options, *domain)? };
        }
        Ok(())
    })
}

/// Our domains, made once for every ONNX Runtime in the process: sessions go on using them.
fn domains(api: Api) -> Result<&'static [Domain]> {
    static MADE: List<(Api, Vec<Domain>)> = List::new();
    let made = MADE.find_or_add(|(of, _)| *of == api, || Ok((api, make_domains(api)?)));
    made.map(|(_, domains)| domains.as_slice())
}

fn make_domains(api: Api) -> Result<Vec<Domain>> {
    let mut domains = Vec::new();
    for (name, nodes) in nodes::by_domain() {
        let domain = api.create_domain(name)?;
        for node in nodes {
            // Lives as long as the process, as ONNX Runtime expects.
            let op = Box::leak(Box::new(custom_op::CustomOp::new(api, node)));
            api.add_op(domain, op)?;
        }
        domains.push(domain);
    }
    Ok(domains)
}

/// Runs the body of a function that ONNX Runtime calls: an error or a panic in it becomes a status.
fn answer(api: Api, body: impl FnOnce() -> Result<()>) -> *mut Status {
    // What a panic leaves half done is an output, which ONNX Runtime throws away with the failed run.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => null_mut(),
        Ok(Err(error)) => error.into_status(api),
        Err(_) => api.create_status(api::FAIL, "fourtap: a fault, which was printed"),
    }
}
