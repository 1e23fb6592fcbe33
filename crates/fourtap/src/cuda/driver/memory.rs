//! Device memory.

use std::ffi::c_int;

use super::api;
use super::context::Context;
use super::error::{DriverError, DriverResult};
use super::library::{Address, OUT_OF_MEMORY, SUCCESS};
use super::stream::Stream;

/// A plain-old-data number: no padding, and every bit pattern is valid.
///
/// # Safety
/// Both are true of the type.
pub unsafe trait Plain: Copy + 'static {}

// SAFETY: integers and floats have no padding and no invalid bit patterns.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for i64 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f64 {}
// SAFETY: as above.
unsafe impl Plain for half::f16 {}
// SAFETY: as above.
unsafe impl Plain for half::bf16 {}

/// Bytes of device memory. Dropping it waits for the device, as the driver's own free does.
///
/// Neither allocating nor dropping can be part of a capture: drop buffers before it begins or after it ends, or the
/// driver refuses, and the memory is lost until the process ends.
#[derive(Debug)]
pub struct Buffer {
    address: Address,
    bytes: usize,
    context: &'static Context,
}

impl Buffer {
    /// Uninitialised memory. A buffer of 0 bytes has address 0.
    pub fn alloc(context: &'static Context, bytes: usize) -> DriverResult<Self> {
        let mut address = 0;
        if bytes > 0 {
            let _entered = context.enter()?;
            let api = context.api();
            // SAFETY: one address is written.
            let status = unsafe { (api.cuMemAlloc_v2)(&mut address, bytes) };
            if status == OUT_OF_MEMORY {
                let free = context.memory_info().map_or(0, |memory| memory.free);
                return Err(DriverError::OutOfMemory { bytes, free });
            }
            api.check(status, "allocate device memory")?;
        }
        Ok(Buffer {
            address,
            bytes,
            context,
        })
    }

    /// Zeroed memory; returns when the zeros are visible to every stream.
    pub fn zeroed(context: &'static Context, bytes: usize) -> DriverResult<Self> {
        let _entered = context.enter()?;
        let mut buffer = Buffer::alloc(context, bytes)?;
        buffer.fill(0, Stream::legacy_default())?;
        Stream::legacy_default().synchronize()?;
        Ok(buffer)
    }

    /// A copy of `data`; returns when it is visible to every stream.
    pub fn from_slice<T: Plain>(context: &'static Context, data: &[T]) -> DriverResult<Self> {
        let mut buffer = Buffer::alloc(context, size_of_val(data))?;
        buffer.copy_from_host(data)?;
        Ok(buffer)
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The context it was allocated in.
    pub fn context(&self) -> &'static Context {
        self.context
    }

    /// Overwrites the whole buffer from `data`, after the work of blocking streams; returns when it is done.
    pub fn copy_from_host<T: Plain>(&mut self, data: &[T]) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        let stream = Stream::legacy_default();
        // SAFETY: `data` is borrowed until the copy was waited for. The driver's blocking copy would not do: it may
        // return while the last bytes are under way, and streams that do not wait for the default stream then read
        // old ones.
        unsafe { self.copy_from_host_async(data, stream) }?;
        stream.synchronize()
    }

    /// Reads the whole buffer into `data`, after the work of blocking streams; returns when it is done.
    ///
    /// Work on non-blocking streams must be waited for first.
    pub fn copy_to_host<T: Plain>(&self, data: &mut [T]) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        let stream = Stream::legacy_default();
        // SAFETY: `data` is borrowed until the copy was waited for.
        unsafe { self.copy_to_host_async(data, stream) }?;
        stream.synchronize()
    }

    /// The whole buffer as a vector; as [`Buffer::copy_to_host`]. Bytes after the last whole element are an error.
    pub fn to_vec<T: Plain + Default>(&self) -> DriverResult<Vec<T>> {
        let mut data = vec![T::default(); self.bytes / size_of::<T>()];
        self.copy_to_host(&mut data)?;
        Ok(data)
    }

    /// Queues a copy of `data` to the buffer.
    ///
    /// # Safety
    /// `data` lives and is not written until the stream has done it.
    pub unsafe fn copy_from_host_async<T: Plain>(
        &mut self,
        data: &[T],
        stream: Stream<'_>,
    ) -> DriverResult<()> {
        self.check_length(size_of_val(data))?;
        if self.is_empty() {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let (api, source) = (self.context.api(), data.as_ptr().cast());
        // SAFETY: both sides have that many bytes; that `data` lives on is the caller's promise.
        let status = unsafe {
            (api.cuMemcpyHtoDAsync_v2)(self.address, source, self.bytes, stream.as_raw())
        };
        api.check(status, "copy to the device")
    }

    /// Queues a copy of the buffer to `data`.
    ///
    /// # Safety
    /// `data` lives and is neither read nor written until the stream has done it.
    pub unsafe fn copy_to_host_async<T: Plain>(
        &self,
        data: &mut [T],
        stream: Stream<'_>,
    ) -> DriverResult<()> {
        self.check_length(size_of_val(data))?;
        if self.is_empty() {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let (api, target) = (self.context.api(), data.as_mut_ptr().cast());
        // SAFETY: both sides have that many bytes, any of which make a `T`; that `data` lives on is the caller's
        // promise.
        let status = unsafe {
            (api.cuMemcpyDtoHAsync_v2)(target, self.address, self.bytes, stream.as_raw())
        };
        api.check(status, "copy from the device")
    }

    /// Queues a copy of another buffer of the same size into this one.
    pub fn copy_from(&mut self, source: &Buffer, stream: Stream<'_>) -> DriverResult<()> {
        self.check_length(source.bytes)?;
        self.copy_part_from(0, source, stream)
    }

    /// Queues a copy of another buffer into this one, from byte `offset` on.
    pub fn copy_part_from(
        &mut self,
        offset: usize,
        source: &Buffer,
        stream: Stream<'_>,
    ) -> DriverResult<()> {
        let room = self.bytes.saturating_sub(offset);
        if source.bytes > room {
            return Err(DriverError::Length {
                expected: room,
                found: source.bytes,
            });
        }
        if source.is_empty() {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let api = self.context.api();
        let target = self.address + offset as u64;
        // SAFETY: both have that many bytes there, and neither is freed before the device has done its work.
        let status = unsafe {
            (api.cuMemcpyDtoDAsync_v2)(target, source.address, source.bytes, stream.as_raw())
        };
        api.check(status, "copy on the device")
    }

    /// Queues setting every byte.
    pub fn fill(&mut self, byte: u8, stream: Stream<'_>) -> DriverResult<()> {
        self.fill_first(self.bytes, byte, stream)
    }

    /// Queues setting the first `bytes` bytes, or all if there are fewer.
    pub fn fill_first(&mut self, bytes: usize, byte: u8, stream: Stream<'_>) -> DriverResult<()> {
        let bytes = bytes.min(self.bytes);
        if bytes == 0 {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let api = self.context.api();
        // SAFETY: the buffer has that many bytes, and is not freed before the device has done its work.
        let status = unsafe { (api.cuMemsetD8Async)(self.address, byte, bytes, stream.as_raw()) };
        api.check(status, "fill device memory")
    }

    /// Queues setting every 32-bit word; the size must be a multiple of 4.
    pub fn fill_words(&mut self, word: u32, stream: Stream<'_>) -> DriverResult<()> {
        self.check_length(self.bytes / 4 * 4)?;
        if self.is_empty() {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let (api, words) = (self.context.api(), self.bytes / 4);
        // SAFETY: the buffer has that many words, aligned as every allocation is, and outlives the work.
        let status = unsafe { (api.cuMemsetD32Async)(self.address, word, words, stream.as_raw()) };
        api.check(status, "fill device memory")
    }

    fn check_length(&self, found: usize) -> DriverResult<()> {
        if found == self.bytes {
            return Ok(());
        }
        Err(DriverError::Length {
            expected: self.bytes,
            found,
        })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // Errors here come from earlier work and are reported to whoever waits for that.
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: allocated in `alloc`, and freed once.
            unsafe { (self.context.api().cuMemFree_v2)(self.address) };
        }
    }
}

/// Stream-ordered device memory from the device's pool. Allocating and freeing do not wait, and both may be part of a
/// capture.
#[derive(Debug)]
pub struct StreamMemory<'a> {
    address: Address,
    context: &'static Context,
    stream: Stream<'a>,
}

impl<'a> StreamMemory<'a> {
    /// Uninitialised memory, for work queued on the stream from now until it is dropped.
    pub fn alloc(
        context: &'static Context,
        bytes: usize,
        stream: Stream<'a>,
    ) -> DriverResult<Self> {
        let _entered = context.enter()?;
        let api = context.api();
        let mut address = 0;
        // SAFETY: one address is written.
        let status = unsafe { (api.cuMemAllocAsync)(&mut address, bytes, stream.as_raw()) };
        if status == OUT_OF_MEMORY {
            let free = context.memory_info().map_or(0, |memory| memory.free);
            return Err(DriverError::OutOfMemory { bytes, free });
        }
        api.check(status, "allocate device memory in a stream")?;
        Ok(StreamMemory {
            address,
            context,
            stream,
        })
    }

    /// Its address, for work on that stream.
    pub fn as_ptr(&self) -> u64 {
        self.address
    }
}

impl Drop for StreamMemory<'_> {
    fn drop(&mut self) {
        // Errors here come from earlier work and are reported to whoever waits for that.
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: allocated in `alloc` for this stream, and freed once.
            unsafe { (self.context.api().cuMemFreeAsync)(self.address, self.stream.as_raw()) };
        }
    }
}

/// Queues setting bytes to zero.
///
/// # Safety
/// A context of the stream's device is [entered](super::Context::enter), and that many bytes are allocated and used by
/// nothing else until the stream has done the work.
pub unsafe fn zero(address: u64, bytes: usize, stream: Stream<'_>) -> DriverResult<()> {
    if bytes == 0 {
        return Ok(());
    }
    let api = api()?;
    // SAFETY: as the caller promises.
    let status = unsafe { (api.cuMemsetD8Async)(address, 0, bytes, stream.as_raw()) };
    api.check(status, "set device memory to zero")
}

/// The device whose memory an address is in; `None` for host memory and for addresses that the driver did not allocate.
pub fn pointer_device(address: u64) -> Option<usize> {
    const MEMORY_TYPE: c_int = 2;
    const DEVICE_ORDINAL: c_int = 9;
    const DEVICE_MEMORY: c_int = 2;
    let api = api().ok()?;
    let read = |attribute| {
        let mut value: c_int = -1;
        // SAFETY: any address may be asked for, and both attributes are one number.
        let status =
            unsafe { (api.cuPointerGetAttribute)((&raw mut value).cast(), attribute, address) };
        (status == SUCCESS).then_some(value)
    };
    (read(MEMORY_TYPE)? == DEVICE_MEMORY).then_some(())?;
    usize::try_from(read(DEVICE_ORDINAL)?).ok()
}
