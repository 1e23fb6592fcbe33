//! A real NVRTC compiles for every architecture. Skipped without one, unless `FOURTAP_REQUIRE_NVRTC` is set.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use fourtap::cuda::jit::{
    self, Architecture, JitError, Nvrtc, NvrtcVersion, Origin, Pack, PackBuilder, PackFolder,
    Program, Resources,
};

const ARCHITECTURES: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100f", "sm_120f"];

/// Kernels that need little, shared memory, a stack, more registers than they get, and a call.
const SOURCE: &str = r#"
extern "C" __global__ void plain(float *x) { x[threadIdx.x] += ADDEND; }
extern "C" __global__ void shared_memory(float *x) {
    __shared__ float s[300];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[threadIdx.x ^ 1];
}
extern "C" __global__ void dynamic_shared_memory(float *x) {
    extern __shared__ float dynamic[];
    dynamic[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = dynamic[threadIdx.x ^ 1];
}
extern "C" __global__ void stack(float *x, const int *i) {
    float a[40];
    for (int k = 0; k < 40; k++) a[k] = x[k];
    for (int k = 0; k < 40; k++) a[i[k]] += a[i[k + 1]];
    for (int k = 0; k < 40; k++) x[k] = a[k];
}
extern "C" __global__ __launch_bounds__(1024, 2) void spills(float *x) {
    float a[80], sum = 0;
    for (int k = 0; k < 80; k++) a[k] = x[k * 1024 + threadIdx.x];
    __syncthreads();
    for (int k = 0; k < 80; k++) sum += a[k] * a[79 - k];
    for (int k = 0; k < 80; k++) x[k * 1024 + threadIdx.x] = a[k] * sum;
}
__device__ __noinline__ float helper(float v, int n) { return n <= 0 ? v : helper(v * 1.5f, n - 1) + v; }
extern "C" __global__ void calls(float *x, int n) { x[threadIdx.x] = helper(x[threadIdx.x], n); }
template <int D> __global__ void templated(float *x) { x[threadIdx.x] *= D; }
template __global__ void templated<32>(float *);
"#;

fn program(architecture: &str) -> Program {
    Program {
        name: "samples".into(),
        source: SOURCE.into(),
        options: vec!["-DADDEND=1.5f".into()],
        architecture: architecture.parse().unwrap(),
    }
}

fn nvrtc() -> Option<&'static Nvrtc> {
    match Nvrtc::get() {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) if std::env::var_os("FOURTAP_REQUIRE_NVRTC").is_some() => panic!("{error}"),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// The architectures this NVRTC knows; all six from 12.9 on.
fn architectures(nvrtc: &Nvrtc) -> Vec<&'static str> {
    let mut known = ARCHITECTURES.to_vec();
    known.retain(|name| nvrtc.supports(name.parse().unwrap()));
    let families = NvrtcVersion {
        major: 12,
        minor: 9,
    };
    if nvrtc.version() >= families {
        assert_eq!(known, ARCHITECTURES);
    }
    known
}

#[test]
fn compiles_for_every_architecture() {
    let Some(nvrtc) = nvrtc() else { return };
    println!(
        "NVRTC {}, {}: {}",
        nvrtc.version(),
        nvrtc.found(),
        nvrtc.path().display()
    );
    assert!(nvrtc.path().is_absolute());
    for name in architectures(nvrtc) {
        let compiled = nvrtc.compile(&program(name)).unwrap();
        assert!(compiled.code.starts_with(b"\x7fELF"), "{name}");
        assert_eq!(kernels(&compiled.code).len(), 7, "{name}");
    }
}

#[test]
fn several_threads_compile_at_once() {
    let Some(nvrtc) = nvrtc() else { return };
    // Not the same bytes: NVRTC 13.0 orders the instructions of a kernel with a local array now so, now so.
    let alone: Vec<_> = architectures(nvrtc)
        .into_iter()
        .map(|name| (name, nvrtc.compile(&program(name)).unwrap()))
        .collect();
    std::thread::scope(|scope| {
        for (name, expected) in &alone {
            scope.spawn(move || {
                let compiled = nvrtc.compile(&program(name)).unwrap();
                assert_eq!(kernels(&compiled.code), kernels(&expected.code), "{name}");
                assert_eq!(compiled.log, expected.log, "{name}");
            });
        }
    });
}

fn kernels(code: &[u8]) -> Vec<String> {
    let kernels = Resources::of(code).unwrap();
    kernels.into_iter().map(|kernel| kernel.name).collect()
}

#[test]
fn a_kernel_that_does_not_compile_is_named_with_the_log() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut broken = program("sm_80");
    broken.source.push_str("this is not C++");
    let error = nvrtc.compile(&broken).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, JitError::Compile { .. }), "{text}");
    for part in ["kernel samples", "sm_80", "samples.cu(", "error:"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }

    let mut option = program("sm_80");
    option.options.push("--no-such-option".into());
    let text = nvrtc.compile(&option).unwrap_err().to_string();
    assert!(text.contains("--no-such-option"), "{text}");

    let mut nul = program("sm_80");
    nul.options.push("-DX=\0".into());
    let error = nvrtc.compile(&nul).unwrap_err();
    assert!(matches!(error, JitError::NulByte { .. }), "{error}");
}

#[test]
fn picks_an_architecture_for_every_device() {
    let Some(nvrtc) = nvrtc() else { return };
    for (major, minor) in [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)] {
        match nvrtc.best_for(major, minor) {
            Ok(best) => assert!(best.runs_on(major, minor) && nvrtc.supports(best)),
            Err(error) => assert!(major >= 10 && nvrtc.version().major < 13, "{error}"),
        }
    }
    assert_eq!(nvrtc.best_for(9, 0), Ok(Architecture::of_device(9, 0)));
    if nvrtc.version().major >= 13 {
        assert_eq!(nvrtc.best_for(10, 3).unwrap().to_string(), "sm_100f");
        assert_eq!(nvrtc.best_for(12, 1).unwrap().to_string(), "sm_120f");
    }
    let newer = nvrtc.best_for(99, 0).unwrap_err();
    assert!(matches!(newer, JitError::DeviceUnsupported { .. }));
    assert!(newer.to_string().contains("99.0"), "{newer}");
    assert!(newer.to_string().contains("a newer one"), "{newer}");
    let older = nvrtc.best_for(3, 5).unwrap_err();
    assert!(older.to_string().contains("Install an older"), "{older}");

    let mut unknown = program("sm_80");
    unknown.architecture = "sm_990".parse().unwrap();
    let error = nvrtc.compile(&unknown).unwrap_err();
    assert!(
        matches!(error, JitError::ArchitectureUnsupported { .. }),
        "{error}"
    );
}

#[test]
fn resources_are_read_from_machine_code() {
    let Some(nvrtc) = nvrtc() else { return };
    let cuobjdump = nvrtc
        .path()
        .ancestors()
        .nth(2)
        .unwrap()
        .join("bin/cuobjdump");
    let cuobjdump = cuobjdump.is_file().then_some(cuobjdump);
    if cuobjdump.is_none() {
        println!("not compared with cuobjdump: there is none beside NVRTC");
    }
    for name in architectures(nvrtc) {
        let code = nvrtc.compile(&program(name)).unwrap().code;
        let kernels = Resources::of(&code).unwrap();
        let names: Vec<_> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        let templated = "_Z9templatedILi32EEvPf";
        let expected = [
            templated,
            "calls",
            "dynamic_shared_memory",
            "plain",
            "shared_memory",
            "spills",
            "stack",
        ];
        assert_eq!(names, expected);
        for kernel in &kernels {
            assert!((4..=255).contains(&kernel.registers), "{name}: {kernel:?}");
            let stack = match kernel.name.as_str() {
                "stack" => kernel.stack_bytes == 160,
                "spills" => kernel.stack_bytes > 0 && kernel.registers <= 64,
                _ => kernel.stack_bytes == 0,
            };
            assert!(stack, "{name}: {kernel:?}");
        }
        for kernel in &kernels {
            let expected = if kernel.name == "shared_memory" {
                1200
            } else {
                0
            };
            assert_eq!(kernel.static_shared_bytes, expected, "{name}: {kernel:?}");
        }
        if let Some(cuobjdump) = &cuobjdump {
            let expected = dumped(cuobjdump, &code);
            assert_eq!(expected.len(), kernels.len());
            for kernel in kernels {
                let [registers, stack, mut shared] = expected[&kernel.name];
                // There the system's part counts, too.
                if program(name).architecture.major() >= 9 {
                    shared = shared.saturating_sub(1024);
                }
                assert_eq!(u64::from(kernel.registers), registers, "{name}: {kernel:?}");
                assert_eq!(u64::from(kernel.stack_bytes), stack, "{name}: {kernel:?}");
                assert_eq!(kernel.static_shared_bytes, shared, "{name}: {kernel:?}");
            }
        }
    }
}

/// Registers, stack and shared memory by NVIDIA's own reader.
fn dumped(cuobjdump: &Path, code: &[u8]) -> BTreeMap<String, [u64; 3]> {
    let file = tempfile::Builder::new()
        .suffix(".cubin")
        .tempfile()
        .unwrap();
    std::fs::write(file.path(), code).unwrap();
    let output = Command::new(cuobjdump)
        .arg("--dump-resource-usage")
        .arg(file.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut found = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines().map(str::trim) {
        if let Some(function) = line.strip_prefix("Function ") {
            name = function.trim_end_matches(':').to_owned();
        } else if line.starts_with("REG:") {
            let number = |field: &str| -> u64 {
                let value = line.split(' ').find_map(|part| part.strip_prefix(field));
                value.unwrap().parse().unwrap()
            };
            found.insert(
                name.clone(),
                [number("REG:"), number("STACK:"), number("SHARED:")],
            );
        }
    }
    found
}

#[test]
fn damaged_machine_code_is_read_without_a_panic() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut small = program("sm_80");
    small.source = "extern \"C\" __global__ void k(float *x) { *x += 1; }".into();
    let code = nvrtc.compile(&small).unwrap().code;
    assert_eq!(Resources::of(&code).unwrap().len(), 1);
    for length in 0..code.len() {
        let _ = Resources::of(&code[..length]);
    }
    assert!(Resources::of(&code[..code.len() / 2]).is_err());
    for at in 0..code.len() {
        for value in [0, 0x7f, 0xff, code[at] ^ 1] {
            let mut damaged = code.clone();
            damaged[at] = value;
            let _ = Resources::of(&damaged);
        }
    }
}

#[test]
fn code_comes_from_pack_then_cache_then_compiler() {
    if nvrtc().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let run = |variables: &[(&str, &Path)]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "nvrtc::child", "--ignored", "--nocapture"])
            .env("NVRTC_TEST_CHILD", "machine code")
            .env("FOURTAP_CACHE_DIR", directory.path().join("cache"))
            .env_remove("FOURTAP_PACK");
        command.envs(variables.iter().copied());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert!(run(&[]).contains("origin Compiled"));
    assert!(run(&[]).contains("origin Cache"));
    let off = Path::new("off");
    assert!(run(&[("FOURTAP_CACHE_DIR", off)]).contains("origin Compiled"));

    let pack = directory.path().join("kernels.pack");
    sample_pack().write(&pack).unwrap();
    let nowhere = Path::new("/nowhere/libnvrtc.so");
    let out = run(&[("FOURTAP_PACK", &pack), ("FOURTAP_NVRTC", nowhere)]);
    assert!(out.contains("origin Pack"), "{out}");
    let out = run(&[("FOURTAP_PACK", nowhere)]);
    assert!(
        out.contains("error /nowhere/libnvrtc.so: expected to read a pack"),
        "{out}"
    );
    let out = run(&[("FOURTAP_NVRTC", nowhere)]);
    assert!(
        out.contains("error FOURTAP_NVRTC: expected the path"),
        "{out}"
    );
    check_folders(run, directory.path());
    // A library, but not this one.
    let libc = run(&[("FOURTAP_NVRTC", Path::new("libc.so.6"))]);
    assert!(libc.contains("without nvrtcVersion"), "{libc}");
}

/// A folder of packs serves without NVRTC; what is stale or damaged of it is compiled.
fn check_folders(run: impl Fn(&[(&str, &Path)]) -> String, directory: &Path) {
    let folder = directory.join("kernels");
    let packs = BTreeMap::from([("sm_80".parse().unwrap(), sample_pack())]);
    PackFolder::write(&folder, &packs).unwrap();
    let nowhere = Path::new("/nowhere/libnvrtc.so");
    for variable in ["FOURTAP_PACK", "NVRTC_TEST_FOLDER"] {
        let out = run(&[(variable, &folder), ("FOURTAP_NVRTC", nowhere)]);
        assert!(out.contains("origin Pack"), "{out}");
    }
    let off = Path::new("off");
    let out = run(&[("NVRTC_TEST_FOLDER", &folder), ("FOURTAP_PACK", off)]);
    assert!(out.contains("origin Cache"), "{out}");

    let pack = folder.join("sm_80.pack");
    let mut bytes = fs::read(&pack).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&pack, bytes).unwrap();
    let out = run(&[("NVRTC_TEST_FOLDER", &folder)]);
    assert!(out.contains("origin Cache"), "{out}");
    let warning = "warning: kernels are compiled instead";
    assert_eq!(out.matches(warning).count(), 1, "{out}");
    assert!(out.contains("checksum of kernel"), "{out}");

    let list = folder.join("kernels.txt");
    let stale = fs::read_to_string(&list).unwrap();
    fs::write(&list, stale.replace("fourtap ", "fourtap 99.")).unwrap();
    for variable in ["FOURTAP_PACK", "NVRTC_TEST_FOLDER"] {
        let out = run(&[(variable, &folder)]);
        assert!(out.contains("origin Cache"), "{out}");
        assert_eq!(out.matches(warning).count(), 1, "{out}");
        let version = env!("CARGO_PKG_VERSION");
        assert!(out.contains(&format!("of fourtap {version} (")), "{out}");
        assert!(out.contains(&format!("of fourtap 99.{version} (")), "{out}");
    }
}

fn sample_pack() -> PackBuilder {
    let program = program("sm_80");
    let mut pack = PackBuilder::new();
    pack.add(
        program.fingerprint(),
        &program.name,
        program.architecture,
        b"from the pack".to_vec(),
    );
    pack
}

/// What another test runs in a process with another environment.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn child() {
    if std::env::var_os("NVRTC_TEST_CHILD").is_none() {
        return;
    }
    jit::set_pack_folder(std::env::var_os("NVRTC_TEST_FOLDER").map(PathBuf::from));
    let found = jit::machine_code(&program("sm_80"));
    match found {
        Ok((code, origin)) => {
            assert_eq!(origin == Origin::Pack, code == b"from the pack");
            assert!(code.starts_with(b"\x7fELF") || origin == Origin::Pack);
            println!("origin {origin:?}");
        }
        Err(error) => println!("error {error}"),
    }
}

#[test]
fn a_registered_pack_is_asked_first() {
    let bytes = sample_pack().to_bytes();
    let pack = Pack::from_bytes(&PathBuf::from("kernels.pack"), bytes).unwrap();
    jit::set_pack(Some(Arc::new(pack)));
    let found = jit::machine_code(&program("sm_80"));
    jit::set_pack(None);
    assert_eq!(found, Ok((b"from the pack".to_vec(), Origin::Pack)));
}
