//! Bounds-checked reading and writing of little-endian records.

/// Takes values off the front of a slice; `None` where the slice is too short.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(front)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A 64-bit length that fits the address space.
    pub fn length(&mut self) -> Option<usize> {
        self.u64()?.try_into().ok()
    }

    /// A text behind its 16-bit length.
    pub fn text(&mut self) -> Option<&'a str> {
        let length = self.u16()?;
        std::str::from_utf8(self.take(length.into())?).ok()
    }
}

/// Appends a text behind its 16-bit length, cut at a character if it is longer than that.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    let mut length = text.len().min(usize::from(u16::MAX));
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    out.extend((length as u16).to_le_bytes());
    out.extend(&text.as_bytes()[..length]);
}
