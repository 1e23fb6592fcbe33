//! From projections on.

mod oracle;
