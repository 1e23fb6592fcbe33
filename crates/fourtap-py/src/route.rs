//! The routes of a call with PyTorch tensors.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::frameworks::torch::Torch;

/// How to proceed where the result cannot be computed directly: `fourtap._route.Route`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Registered,
    Autocast,
    Autograd,
    Broadcast,
}

/// The outcome of a call that may be plain.
pub enum Answer<'py> {
    /// A result.
    Done(Bound<'py, PyAny>),
    /// Nothing was computed: take this route.
    Take(Route),
}

impl Route {
    /// The route for tensors whose memory can be read directly; `None` if the call is plain.
    pub fn of_plain<const N: usize>(
        torch: &Torch,
        py: Python<'_>,
        real: [(&'static str, &Bound<'_, PyAny>); N],
    ) -> PyResult<Option<Route>> {
        if torch.casts(py)? {
            return Ok(Some(Route::Autocast));
        }
        let remembers = torch.wants_gradient(py, real)?;
        Ok(remembers.then_some(Route::Autograd))
    }

    /// The member of the Python class.
    fn member<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static MEMBERS: PyOnceLock<[Py<PyAny>; 4]> = PyOnceLock::new();
        let members = MEMBERS.get_or_try_init(py, || -> PyResult<_> {
            let class = py.import("fourtap._route")?.getattr("Route")?;
            let member = |name: &str| class.getattr(name).map(Bound::unbind);
            Ok([
                member("REGISTERED")?,
                member("AUTOCAST")?,
                member("AUTOGRAD")?,
                member("BROADCAST")?,
            ])
        })?;
        Ok(members[self as usize].bind(py).clone())
    }
}

impl<'py> IntoPyObject<'py> for Answer<'py> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Answer::Done(result) => Ok(result),
            Answer::Take(route) => route.member(py),
        }
    }
}
