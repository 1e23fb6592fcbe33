//! Tuning: parameters of kernels that change their speed but not what they compute, and measured choices of them.
//!
//! Each kernel has a [`Space`]: its parameters, and the values worth trying. `fourtap tune` searches it. The best choice
//! becomes an [`Entry`] of a [`Table`], for one device, kernel, [`Class`] of problems and element type. Calls look in the
//! user's own table first, then in the built-in one, and use the kernel's defaults where neither has an entry:
//! [`active()`] gives the tables in use.
//!
//! ```
//! use fourtap::tuning::Space;
//!
//! let space = Space::named("cpu-msda-forward").unwrap();
//! let choice = space.choice(&[("task_bytes", 65536)]).unwrap();
//! assert_eq!(choice.get("task_bytes"), 65536);
//! assert!(space.keeps_bits(&choice));
//! assert!(space.choice(&[("task_bytes", 3)]).is_err());
//! ```

mod active;
mod class;
mod space;
pub(crate) mod spaces;
mod table;

pub use active::{ActiveTables, FILE_VARIABLE, active, user_file};
pub use class::Class;
pub use space::{Choice, Parameter, Space};
pub use table::{Entry, SkippedLine, Table};
