//! Writing packs.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use super::bytes::put_text;
use super::pack::{FORMAT, GROUP, MAGIC, SLICE};
use super::{Architecture, Fingerprint, JitError};

/// Collects machine code for a [`Pack`](super::Pack).
#[derive(Clone, Debug, Default)]
pub struct PackBuilder {
    // Sorted, so that the same kernels give the same file.
    entries: BTreeMap<(String, Architecture, Fingerprint), Vec<u8>>,
}

impl PackBuilder {
    /// An empty pack.
    pub fn new() -> Self {
        PackBuilder::default()
    }

    /// Adds a program's machine code.
    pub fn add(
        &mut self,
        fingerprint: Fingerprint,
        name: &str,
        architecture: Architecture,
        code: Vec<u8>,
    ) {
        let key = (name.to_owned(), architecture, fingerprint);
        self.entries.insert(key, code);
    }

    /// Writes the pack. An existing file of that name is replaced atomically.
    pub fn write(&self, path: &Path) -> Result<(), JitError> {
        let failed = |error: &io::Error| JitError::io(path, "write the pack", error);
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".fourtap-pack-");
        // Temporary files are for their owner only; a pack is for others to read, as far as the umask lets them.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
        let mut part = builder
            .tempfile_in(directory)
            .map_err(|error| failed(&error))?;
        part.write_all(&self.to_bytes())
            .map_err(|error| failed(&error))?;
        part.as_file().sync_all().map_err(|error| failed(&error))?;
        part.persist(path).map_err(|error| failed(&error.error))?;
        // Not every file system supports this; the pack is then only less durable.
        #[cfg(unix)]
        let _ = std::fs::File::open(directory).and_then(|directory| directory.sync_all());
        Ok(())
    }

    /// The pack as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut index = Vec::new();
        for ((name, architecture, fingerprint), code) in &self.entries {
            index.extend(fingerprint.as_bytes());
            index.extend(blake3::hash(code).as_bytes());
            index.extend((code.len() as u64).to_le_bytes());
            put_text(&mut index, name);
            put_text(&mut index, &architecture.to_string());
        }
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(FORMAT.to_le_bytes());
        out.extend((index.len() as u64).to_le_bytes());
        out.extend(index);
        let checksum = blake3::hash(&out);
        out.extend(checksum.as_bytes());
        let codes: Vec<_> = self.entries.values().collect();
        for group in codes.chunks(GROUP) {
            let longest = group.iter().map(|code| code.len()).max().unwrap_or(0);
            for start in (0..longest).step_by(SLICE) {
                for code in group {
                    let end = code.len().min(start + SLICE);
                    out.extend(code.get(start..end).unwrap_or_default());
                }
            }
        }
        out
    }
}
