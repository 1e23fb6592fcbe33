//! Structs that callers hand over, of this version or an older one.

use std::mem::MaybeUninit;

use crate::status::{Error, Result};

/// A struct that callers hand over by a pointer. New fields are added at its end, and mean when zero what their absence meant before;
/// so a struct of an older version is one of this version with zeros at its end.
///
/// # Safety
/// The struct is `repr(C)`, begins with `struct_size: u32`, and zeros are a valid value of it. The sizes ascend, and the last is that of
/// the struct.
pub unsafe trait Descriptor: Copy {
    /// The size it had in each version.
    const SIZES: &'static [usize];
}

/// Copies the descriptor of an argument.
///
/// # Safety
/// The pointer is null, or leads to a readable struct whose first member is the size that the others fit in.
pub unsafe fn read<T: Descriptor>(pointer: *const T, argument: &'static str) -> Result<T> {
    // SAFETY: as the caller promises.
    unsafe { read_optional(pointer, argument)? }.ok_or(Error::Null { argument })
}

/// The same; `None` if the pointer is null.
///
/// # Safety
/// As for [`read`].
pub unsafe fn read_optional<T: Descriptor>(
    pointer: *const T,
    argument: &'static str,
) -> Result<Option<T>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: a descriptor that is not null begins with its size.
    let found = unsafe { pointer.cast::<u32>().read_unaligned() };
    if !T::SIZES.contains(&(found as usize)) {
        let sizes: Vec<_> = T::SIZES.iter().map(usize::to_string).collect();
        return Err(Error::StructSize {
            argument,
            expected: sizes.join(" or "),
            found,
        });
    }
    let mut descriptor = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's struct has that many bytes, which is no more than ours has. With zeros after them ours is valid.
    let descriptor = unsafe {
        pointer
            .cast::<u8>()
            .copy_to_nonoverlapping(descriptor.as_mut_ptr().cast(), found as usize);
        descriptor.assume_init()
    };
    Ok(Some(descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Older {
        struct_size: u32,
        first: u32,
    }

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Newer {
        struct_size: u32,
        first: u32,
        second: u64,
    }

    // SAFETY: plain integers, as the trait asks for.
    unsafe impl Descriptor for Newer {
        const SIZES: &'static [usize] = &[size_of::<Older>(), size_of::<Newer>()];
    }

    #[test]
    fn a_descriptor_of_an_older_version_has_zeros_at_its_end() {
        let older = Older {
            struct_size: 8,
            first: 7,
        };
        // SAFETY: the struct has the size that it says.
        let read = unsafe { read((&raw const older).cast::<Newer>(), "it") }.unwrap();
        let expected = Newer {
            struct_size: 8,
            first: 7,
            second: 0,
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn unknown_sizes_are_refused() {
        for found in [0, 4, 12, 17, u32::MAX] {
            let newer = Newer {
                struct_size: found,
                first: 7,
                second: 9,
            };
            // SAFETY: only the size is read of a struct that is refused.
            let error = unsafe { read(&newer, "it") }.unwrap_err().to_string();
            assert_eq!(
                error,
                format!("it: expected struct_size 8 or 16, found {found}")
            );
        }
    }
}
