//! What exactly is wrong with a safetensors header.
//!
//! The parser refuses a bad file but seldom says which tensor is to blame. This walks the header once more, only
//! after a refusal, to name it.

use std::collections::BTreeMap;

use safetensors::SafeTensorError;
use safetensors::tensor::TensorInfo;

/// Bytes of the length that stands before the header.
const LENGTH_BYTES: usize = 8;

/// In words, why `bytes` were refused with `error`.
pub fn explain(bytes: &[u8], error: &SafeTensorError) -> String {
    let have = bytes.len();
    let length = bytes.first_chunk().map(|first| u64::from_le_bytes(*first));
    let Some(length) = length else {
        let bytes = if have == 1 { "byte" } else { "bytes" };
        return format!(
            "{have} {bytes}, too few for the {LENGTH_BYTES} that give the header's length"
        );
    };
    match error {
        SafeTensorError::HeaderTooLarge => {
            format!("a header of {length} bytes, more than the format allows")
        }
        SafeTensorError::InvalidHeaderLength => {
            format!("a header of {length} bytes in a file of {have}")
        }
        SafeTensorError::InvalidHeader(source) => format!("a header that is not UTF-8: {source}"),
        SafeTensorError::InvalidHeaderDeserialization(source) => {
            format!("a header that is not JSON of the right form: {source}")
        }
        other => blame(bytes, length).unwrap_or_else(|| other.to_string()),
    }
}

/// The first tensor that does not fit its place.
fn blame(bytes: &[u8], length: u64) -> Option<String> {
    let start = usize::try_from(length).ok()?.checked_add(LENGTH_BYTES)?;
    let mut header: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(bytes.get(LENGTH_BYTES..start)?).ok()?;
    header.remove("__metadata__");
    let mut tensors = Vec::new();
    for (name, value) in header {
        match serde_json::from_value::<TensorInfo>(value) {
            Ok(info) => tensors.push((info.data_offsets, name, info)),
            Err(error) => return Some(format!("tensor {name} with {error}")),
        }
    }
    tensors.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    let mut free = 0;
    for ((begin, end), name, info) in tensors {
        if begin != free || end < begin {
            let expected = format!("expected to begin at byte {free}, right after the one before");
            return Some(format!(
                "tensor {name} at bytes {begin} to {end} of the data, {expected}"
            ));
        }
        let bits = info
            .shape
            .iter()
            .try_fold(info.dtype.bitsize(), |product, &size| {
                product.checked_mul(size)
            });
        let place = format!(
            "tensor {name} of {} elements in shape {:?}",
            info.dtype, info.shape
        );
        let Some(bits) = bits else {
            return Some(format!("{place}, whose size overflows"));
        };
        if !bits.is_multiple_of(8) || bits / 8 != end - begin {
            let given = end - begin;
            return Some(format!(
                "{place}, which needs {} bytes, in a place of {given}",
                bits.div_ceil(8)
            ));
        }
        free = end;
    }
    let have = bytes.len() - start;
    (free != have)
        .then(|| format!("tensors of {free} bytes together in a file with {have} bytes of data"))
}
