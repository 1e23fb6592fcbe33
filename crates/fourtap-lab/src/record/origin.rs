//! What made a record.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{SCHEMA, VERSION};

/// What made a record, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Version of the records' form.
    pub schema: u32,
    /// Version of fourtap.
    pub version: String,
    /// The commit it was built from, with a `+` if files had been changed since; none outside a checkout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Hash of the library's sources, kernels included; none outside a checkout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_hash: Option<String>,
    /// When, in seconds since 1970.
    pub unix_time: u64,
}

impl Origin {
    /// This program, now.
    pub fn here() -> Self {
        Origin {
            schema: SCHEMA,
            version: VERSION.to_string(),
            commit: option_env!("FOURTAP_COMMIT").map(str::to_string),
            source_hash: option_env!("FOURTAP_SOURCE_HASH").map(str::to_string),
            unix_time: unix_time(),
        }
    }

    /// Whether both were made by the same code. Unknown code is never the same.
    pub fn is_same_code(&self, other: &Origin) -> bool {
        self.source_hash.is_some() && self.source_hash == other.source_hash
    }
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
