//! The CUDA driver may be absent, too old, broken or without a GPU: a typed error each, and never a panic.
//!
//! The drivers here are small libraries in C, built where there is a compiler. Each is loaded by a process of its own,
//! this test again, because a process asks for the driver once.

use std::path::{Path, PathBuf};
use std::process::Command;

use fourtap::cuda::driver::{
    Buffer, Context, Driver, DriverError, Event, Launch, Library, OwnedStream, Stream,
    StreamMemory, Swizzle, TensorElement, TensorMap, TensorMapDesc, active_clusters, launch,
    pointer_device,
};

/// Tells the process started for a case which one it is.
const CASE: &str = "FOURTAP_TEST_DRIVER";

#[test]
fn this_machine_gives_a_driver_or_a_reason() {
    match Driver::get() {
        Ok(driver) => assert!(driver.version() >= (12, 0)),
        Err(reason) => {
            assert_eq!(reason.to_string().lines().count(), 1, "{reason}");
            assert_eq!(
                Driver::get().unwrap_err(),
                reason,
                "a failure is remembered"
            );
            assert_eq!(pointer_device(4096), None);
            assert_eq!(Stream::legacy_default().synchronize(), Err(reason.clone()));
            assert_eq!(Library::load(b"code").unwrap_err(), reason);
        }
    }
}

#[test]
fn an_old_driver_is_named_with_both_versions() {
    run(
        "too_old",
        "int cuDriverGetVersion(int *version) { *version = 11040; return 0; }",
    );
}

#[test]
fn a_driver_without_functions_is_incomplete() {
    run(
        "incomplete",
        "int cuDriverGetVersion(int *version) { *version = 12000; return 0; }",
    );
}

#[test]
fn a_library_that_is_no_driver_is_incomplete() {
    run("no_version", "int unrelated;");
}

#[test]
fn a_file_that_is_no_library_does_not_load() {
    let folder = folder("unloadable");
    std::fs::write(folder.join("libcuda.so.1"), "text").unwrap();
    run_in("unloadable", &folder);
}

#[test]
fn an_empty_folder_has_no_driver() {
    // On a machine with a driver, the system finds that one behind the empty folder.
    if matches!(Driver::get(), Err(DriverError::NoDriver { .. })) {
        run_in("absent", &folder("absent"));
    }
}

#[test]
fn a_machine_without_a_gpu_is_named_so() {
    run("no_device", &format!("#define INIT 100\n{FAKE}"));
}

#[test]
fn the_toolkits_stub_is_named_so() {
    run("stub", &format!("#define STUB\n{FAKE}"));
}

#[test]
fn the_layer_works_over_a_driver_that_works() {
    run("works", FAKE);
}

/// What the process of a case asserts.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn in_a_process_of_its_own() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    if case == "works" {
        return works();
    }
    let reason = Driver::get().unwrap_err();
    let text = reason.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    match case.as_str() {
        "absent" => {
            assert_eq!(text, "no NVIDIA driver: libcuda.so.1 was not found");
        }
        "too_old" => {
            let (found, needed) = ((11, 4), (12, 0));
            assert_eq!(reason, DriverError::TooOld { found, needed });
            assert!(text.contains("11.4") && text.contains("12.0"), "{text}");
        }
        "incomplete" => {
            let function = "cuInit";
            assert_eq!(reason, DriverError::MissingFunction { function });
        }
        "no_version" => {
            let function = "cuDriverGetVersion";
            assert_eq!(reason, DriverError::MissingFunction { function });
        }
        "unloadable" => assert!(matches!(reason, DriverError::Unloadable { .. }), "{text}"),
        "no_device" => assert_eq!(
            text,
            "the NVIDIA driver did not start: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected"
        ),
        "stub" => assert!(text.contains("CUDA_ERROR_STUB_LIBRARY (34)"), "{text}"),
        _ => panic!("no such case: {case}"),
    }
}

fn works() {
    let driver = Driver::get().unwrap();
    assert_eq!(driver.version(), (13, 0));
    assert_eq!(driver.device_count(), 1);
    assert_eq!(
        driver.device(1),
        Err(DriverError::NoSuchDevice {
            ordinal: 1,
            count: 1
        })
    );
    let device = driver.device(0).unwrap();
    assert_eq!(device.name(), "Fake GPU");
    assert_eq!(
        device.compute_capability(),
        (75, 76),
        "the fake's attributes are their numbers"
    );
    assert_eq!(device.facts().core_clock_khz, None, "the fake fails to say");
    assert_eq!(device.facts().pci_bus_id, "0000:0A:00.0");

    // The fake allows one retain.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| Context::primary(device).unwrap());
        }
    });
    let context = Context::primary(device).unwrap();

    // The fake refuses the default stream outside a context, and to push where one is current.
    let default = Stream::legacy_default();
    let outside = default.synchronize().unwrap_err();
    assert!(
        matches!(outside, DriverError::Call { code: 201, .. }),
        "{outside}"
    );
    {
        let _outer = context.enter().unwrap();
        let _inner = context.enter().unwrap();
        default.synchronize().unwrap();
    }
    assert_eq!(default.synchronize(), Err(outside));

    let numbers: Vec<i64> = (0..1000).collect();
    let mut buffer = Buffer::from_slice(context, &numbers).unwrap();
    assert_eq!(buffer.to_vec::<i64>().unwrap(), numbers);
    assert_eq!(
        buffer.copy_to_host(&mut [0u8; 3]),
        Err(DriverError::Length {
            expected: 8000,
            found: 3
        })
    );
    buffer.fill_words(7, default).unwrap();
    assert_eq!(buffer.to_vec::<u32>().unwrap(), vec![7; 2000]);
    assert_eq!(
        Buffer::zeroed(context, 3).unwrap().to_vec::<u8>().unwrap(),
        [0; 3]
    );
    assert!(
        Buffer::zeroed(context, 3)
            .unwrap()
            .fill_words(1, default)
            .is_err()
    );
    let empty = Buffer::from_slice::<f32>(context, &[]).unwrap();
    assert_eq!(
        (empty.as_ptr(), empty.to_vec::<f32>().unwrap()),
        (0, vec![])
    );
    assert_eq!(
        Buffer::alloc(context, 1 << 40).unwrap_err(),
        DriverError::OutOfMemory {
            bytes: 1 << 40,
            free: 12345
        }
    );
    assert_eq!(pointer_device(buffer.as_ptr()), Some(0));
    let memory = StreamMemory::alloc(context, 64, default).unwrap();
    assert_ne!(memory.as_ptr(), 0);
    drop(memory);
    assert_eq!(
        StreamMemory::alloc(context, 1 << 40, default).unwrap_err(),
        DriverError::OutOfMemory {
            bytes: 1 << 40,
            free: 12345
        }
    );

    let stream = OwnedStream::new(context, true).unwrap();
    let event = Event::timing(context).unwrap();
    event.record(stream.stream()).unwrap();
    assert_eq!(event.query(), Ok(false), "the fake is never ready");

    let library = Library::load(b"ptx").unwrap();
    let kernel = library.kernel("add").unwrap();
    let missing = library.kernel("gone").unwrap_err().to_string();
    assert_eq!(
        missing,
        "could not find kernel gone: CUDA_ERROR_NOT_FOUND (500): named symbol not found"
    );
    let unknown = library.kernel("odd").unwrap_err().to_string();
    assert_eq!(
        unknown,
        "could not find kernel odd: an error without a name (9999): the driver does not explain it"
    );
    assert_eq!(kernel.facts(device).unwrap().registers, 4);
    assert_eq!(kernel.occupancy(context, 128, 0), Ok(16));

    assert_eq!(kernel.allow_large_clusters(device), Ok(()));
    let clustered = Launch {
        cluster: Some([2, 1, 1]),
        ..Launch::default()
    };
    assert_eq!(active_clusters(&kernel, context, &clustered), Ok(4));
    encodes_tensor_maps(context);

    // The fake takes plain launches of one block, and extended ones of two in a cluster.
    let plain = Launch {
        stream: stream.stream(),
        ..Launch::default()
    };
    let clustered = Launch {
        grid: [2, 1, 1],
        cluster: Some([2, 1, 1]),
        overlap_previous: true,
        ..plain
    };
    let wrong = Launch {
        grid: [3, 1, 1],
        ..plain
    };
    let mut value = 5i32;
    let mut arguments = [(&raw mut value).cast()];
    // SAFETY: the fake's kernel takes one number and touches no memory.
    unsafe {
        launch(&kernel, &plain, &mut arguments).unwrap();
        launch(&kernel, &clustered, &mut arguments).unwrap();
        let refused = launch(&kernel, &wrong, &mut arguments)
            .unwrap_err()
            .to_string();
        assert!(
            refused.starts_with("could not launch kernel add with grid [3, 1, 1]"),
            "{refused}"
        );
    }
}

/// The fake refuses an inner box that is not a multiple of 16 bytes.
fn encodes_tensor_maps(context: &'static Context) {
    let tiled = TensorMapDesc {
        element: TensorElement::F16,
        address: 4096,
        dimensions: vec![32, 5],
        strides: vec![64],
        box_sides: vec![32, 2],
        element_strides: vec![1, 1],
        swizzle: Swizzle::None,
    };
    assert_eq!(size_of::<TensorMap>(), 128);
    TensorMap::encode(context, &tiled).unwrap();
    let narrow = TensorMapDesc {
        box_sides: vec![2, 2],
        ..tiled.clone()
    };
    // Of these the fake would read past the end of a list.
    let short = TensorMapDesc {
        box_sides: vec![32],
        ..tiled.clone()
    };
    let long = TensorMapDesc {
        strides: vec![64, 320],
        ..tiled
    };
    for refused in [narrow, short, long] {
        let reason = TensorMap::encode(context, &refused).unwrap_err();
        assert!(matches!(reason, DriverError::TensorMap { .. }), "{reason}");
        let text = reason.to_string();
        let sides = format!("box {:?}", refused.box_sides);
        assert!(text.contains(&sides) && text.lines().count() == 1, "{text}");
    }
}

/// Runs a case with the driver that `source` is compiled to; nothing where there is no compiler.
fn run(case: &str, source: &str) {
    let folder = folder(case);
    let file = folder.join("cuda.c");
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(folder.join("libcuda.so.1"))
        .arg(&file)
        .status();
    match compiled {
        Ok(status) => assert!(status.success(), "{case}: the fake does not compile"),
        Err(_) => return eprintln!("{case}: skipped, because there is no C compiler"),
    }
    run_in(case, &folder);
}

fn run_in(case: &str, folder: &Path) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "no_driver::in_a_process_of_its_own",
            "--ignored",
            "--nocapture",
        ])
        .env("LD_LIBRARY_PATH", folder)
        .env(CASE, case)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{case}: {text}"
    );
}

fn folder(case: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("no_driver")
        .join(case);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A driver of one device whose memory is the host's.
const FAKE: &str = r#"
#include <stdlib.h>
#include <string.h>
#ifdef STUB
#define START return 34
#else
#define START
#endif
#ifndef INIT
#define INIT 0
#endif
typedef unsigned long long u64;
typedef union { char pad[64]; unsigned cluster[3]; int flag; void *aligned; } Value;
typedef struct { unsigned id; char pad[4]; Value value; } Attribute;
typedef struct { unsigned grid[3], block[3], shared; void *stream; Attribute *attributes; unsigned count; } Config;
static __thread int depth;
static int retained;
#define OK(name) int name() { START; return 0; }
#define INSIDE if (!depth) return 201

int cuDriverGetVersion(int *version) { START; *version = 13000; return 0; }
int cuInit(unsigned flags) { return INIT; }
int cuGetErrorName(int code, const char **text) {
    START; if (code == 100) *text = "CUDA_ERROR_NO_DEVICE"; if (code == 500) *text = "CUDA_ERROR_NOT_FOUND"; return 0; }
int cuGetErrorString(int code, const char **text) {
    START; if (code == 100) *text = "no CUDA-capable device is detected";
    if (code == 500) *text = "named symbol not found"; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "Fake GPU", length); return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, 1, 16); return 0; }
int cuDeviceGetPCIBusId(char *id, int length, int device) { strncpy(id, "0000:0A:00.0", length); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute; return attribute == 13; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 54321; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &retained; return retained++ ? 1 : 0; }
int cuCtxGetCurrent(void **context) { *context = depth ? &retained : 0; return 0; }
int cuCtxGetDevice(int *device) { INSIDE; *device = 0; return 0; }
int cuCtxPushCurrent_v2(void *context) { if (depth) return 1; depth++; return 0; }
int cuCtxPopCurrent_v2(void **context) { INSIDE; depth--; return 0; }
int cuStreamSynchronize(void *stream) { INSIDE; return 0; }
int cuStreamCreate(void **stream, unsigned flags) { INSIDE; *stream = malloc(1); return flags != 1; }
int cuStreamDestroy_v2(void *stream) { INSIDE; free(stream); return 0; }
int cuEventCreate(void **event, unsigned flags) { INSIDE; *event = malloc(1); return 0; }
int cuEventDestroy_v2(void *event) { INSIDE; free(event); return 0; }
int cuEventQuery(void *event) { return 600; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { INSIDE; *free = 12345; *total = 54321; return 0; }
int cuMemAlloc_v2(u64 *address, size_t bytes) {
    INSIDE; if (bytes > 1 << 20) return 2; *address = (u64)malloc(bytes); return 0; }
int cuMemFree_v2(u64 address) { INSIDE; free((void *)address); return 0; }
int cuMemAllocAsync(u64 *address, size_t n, void *stream) { return cuMemAlloc_v2(address, n); }
int cuMemFreeAsync(u64 address, void *stream) { return cuMemFree_v2(address); }
int cuMemsetD8Async(u64 to, unsigned char byte, size_t n, void *stream) { memset((void *)to, byte, n); return 0; }
int cuMemsetD32Async(u64 to, unsigned word, size_t n, void *stream) {
    while (n--) ((unsigned *)to)[n] = word; return 0; }
int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t n, void *stream) { memcpy((void *)to, from, n); return 0; }
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t n, void *stream) { memcpy(to, (void *)from, n); return 0; }
int cuPointerGetAttribute(int *value, int attribute, u64 address) { *value = attribute == 2 ? 2 : 0; return 0; }
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    *kernel = malloc(1); return strcmp(name, "gone") ? strcmp(name, "odd") ? 0 : 9999 : 500; }
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) { *value = attribute; return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
    INSIDE; *blocks = 2048 / threads; return 0; }
int cuOccupancyMaxActiveClusters(int *clusters, void *function, const Config *c) {
    INSIDE; *clusters = 8 / c->attributes[0].value.cluster[0]; return c->count != 1; }
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, u64 address, const u64 *dimensions, const u64 *strides,
                           const unsigned *box, const unsigned *steps, int interleave, int swizzle, int promotion,
                           int fill) {
    INSIDE; if ((u64)map % 128 || type != 6 || interleave || swizzle || promotion || fill) return 999;
    for (unsigned i = 0; i < rank; i++) if (!dimensions[i] || !box[i] || !steps[i]) return 1;
    memset(map, 7, 128); return address % 16 || (rank > 1 && strides[0] % 16) || box[0] * 2 % 16; }
int cuLaunchKernel(void *kernel, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    return !(x * y * z * bx * by * bz == 1 && stream && *(int *)arguments[0] == 5 && !extra); }
int cuLaunchKernelEx(const Config *c, void *kernel, void **arguments, void **extra) {
    Attribute *a = c->attributes;
    return !(c->grid[0] == 2 && c->block[2] == 1 && c->stream && c->count == 2 && a[0].id == 4 &&
             a[0].value.cluster[0] == 2 && a[0].value.cluster[2] == 1 && a[1].id == 6 && a[1].value.flag == 1 &&
             *(int *)arguments[0] == 5 && !extra); }
OK(cuCtxSynchronize) OK(cuStreamQuery) OK(cuStreamWaitEvent) OK(cuStreamBeginCapture_v2) OK(cuStreamEndCapture)
OK(cuStreamIsCapturing) OK(cuEventRecord) OK(cuEventSynchronize) OK(cuEventElapsedTime)
OK(cuGraphInstantiateWithFlags) OK(cuGraphGetNodes) OK(cuGraphLaunch) OK(cuGraphDestroy) OK(cuGraphExecDestroy)
OK(cuMemcpyDtoDAsync_v2) OK(cuLibraryLoadData) OK(cuKernelGetFunction) OK(cuKernelSetAttribute)
OK(cuFuncGetAttribute)
"#;
