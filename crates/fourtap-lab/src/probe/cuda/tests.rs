//! The kernels, compiled and disassembled: loops are not left out, loads stay in flight, and each does what it says.

use std::process::Command;

use fourtap::cuda::jit::{Nvrtc, Resources};

use super::{
    atomic, cluster, copy, dsmem, fma, gather, latency, matrix, pattern, read, slice, tile, tma,
};
use crate::cuda::Source;

/// A kernel, the least registers its loads in flight take, the instructions it must have (and how many of them at
/// least), and whether it needs Hopper.
struct Expected {
    source: Source,
    registers: u32,
    instructions: Vec<(&'static str, usize)>,
    hopper: bool,
}

fn everywhere(source: Source, registers: u32, instructions: &[(&'static str, usize)]) -> Expected {
    Expected {
        source,
        registers,
        instructions: instructions.to_vec(),
        hopper: false,
    }
}

fn on_hopper(source: Source, registers: u32, instructions: &[(&'static str, usize)]) -> Expected {
    Expected {
        hopper: true,
        ..everywhere(source, registers, instructions)
    }
}

fn all() -> Vec<Expected> {
    let mut all = vec![
        everywhere(pattern::fill_source(), 0, &[("STG.E", 1)]),
        everywhere(copy::source(), 2 * 4, &[("LDG.E.128", 3), ("STG.E.128", 3)]),
        everywhere(read::source(), 8 * 4, &[("LDG.E.NA.128", 8)]),
        everywhere(latency::source(), 0, &[]),
        everywhere(atomic::Kind::F32.source(), 0, &[(".ADD.F32", 8)]),
        on_hopper(atomic::Kind::FourF32.source(), 0, &[(".ADD.F32x4", 8)]),
        on_hopper(atomic::Kind::EightF16.source(), 0, &[(".ADD.F16x8", 8)]),
        everywhere(fma::Kind::F32.source(), 16, &[("FFMA", 256)]),
        everywhere(fma::Kind::TwoF16.source(), 16, &[("HFMA2", 256)]),
        everywhere(matrix::Kind::Mma.source(), 32, &[("HMMA.16816.F32", 8)]),
        on_hopper(
            matrix::Kind::Wgmma.source(),
            128,
            &[("HGMMA.64x256x16.F32", 16)],
        ),
        on_hopper(
            dsmem::source(),
            8 * 4,
            &[("LD.E.128", 8), ("UCGABAR_WAIT", 2)],
        ),
        on_hopper(cluster::source(), 0, &[("LD.E", 1), ("UCGABAR_WAIT", 2)]),
    ];
    for gather in gather::ALL {
        let shared = gather.subject().name.contains("shared");
        let load = if shared { "LDS.128" } else { "LDG.E.128" };
        let registers = if shared { 5 * 4 } else { 8 * 4 };
        all.push(everywhere(gather.source(), registers, &[(load, 8)]));
    }
    for rank in 1..=5 {
        let load = [
            "UTMALDG.1D",
            "UTMALDG.2D",
            "UTMALDG.3D",
            "UTMALDG.4D",
            "UTMALDG.5D",
        ];
        let load = load[rank as usize - 1];
        all.push(on_hopper(tma::source(rank), 0, &[(load, 1)]));
    }
    for (channel, of_lane) in [(tile::Channel::F16, 4), (tile::Channel::F32, 8)] {
        let source = |method| tile::source(method, channel);
        let plain = [
            ("LDG.E.128", of_lane),
            ("STS.128", of_lane),
            ("LDS.128", of_lane),
        ];
        let in_flight = 4 * of_lane as u32;
        all.push(everywhere(source(tile::Method::Plain), in_flight, &plain));
        let copies = [("LDGSTS.E.BYPASS.128", of_lane), ("LDS.128", of_lane)];
        all.push(everywhere(source(tile::Method::CpAsync), 0, &copies));
        let boxes = [("UTMALDG.3D", 8), ("LDS.128", of_lane)];
        all.push(on_hopper(source(tile::Method::Tma), 0, &boxes));
    }
    let cooperative = [("LDG.E.128", 4), ("STS.128", 4), ("STG.E.128", 4)];
    all.push(everywhere(
        slice::Method::Cooperative.source(),
        16,
        &cooperative,
    ));
    let copies = [("LDGSTS.E.BYPASS.128", 1), ("STG.E.128", 1)];
    all.push(everywhere(slice::Method::CpAsync.source(), 0, &copies));
    let boxes = [("UTMALDG.3D", 1), ("UTMASTG.3D", 1)];
    all.push(on_hopper(slice::Method::Bulk.source(), 0, &boxes));
    all
}

fn compiler() -> Option<&'static Nvrtc> {
    let required = std::env::var_os("FOURTAP_REQUIRE_NVRTC").is_some();
    match Nvrtc::get() {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            assert!(!required, "{error}");
            None
        }
    }
}

/// The instructions of machine code, where there is a disassembler.
fn disassembled(code: &[u8]) -> Option<String> {
    let program = std::env::var_os("FOURTAP_CUOBJDUMP")?;
    let mut file = tempfile::NamedTempFile::with_suffix(".cubin").unwrap();
    std::io::Write::write_all(&mut file, code).unwrap();
    let output = Command::new(&program)
        .arg("-sass")
        .arg(file.path())
        // It calls nvdisasm, which lies beside it.
        .env("PATH", std::path::Path::new(&program).parent()?)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
#[ignore = "long: compiles every probe"]
fn the_kernels_compile_without_a_word_and_use_no_stack() {
    let Some(nvrtc) = compiler() else { return };
    for expected in all() {
        let architectures: &[&str] = match expected.hopper {
            true => &["sm_90a"],
            false => &["sm_80", "sm_90a"],
        };
        for name in architectures {
            let program = expected.source.program(name.parse().unwrap());
            let what = format!("{} {:?} for {name}", program.name, program.options);
            let compiled = nvrtc.compile(&program).unwrap();
            assert_eq!(compiled.log.trim(), "", "{what}");
            let kernels = Resources::of(&compiled.code).unwrap();
            assert_eq!(kernels.len(), 1, "{what}");
            assert_eq!(kernels[0].name, expected.source.entry, "{what}");
            assert_eq!(kernels[0].stack_bytes, 0, "{what}");
            let registers = kernels[0].registers;
            assert!(registers > expected.registers, "{what}: {registers}");
            let Some(code) = disassembled(&compiled.code) else {
                continue;
            };
            for (instruction, least) in &expected.instructions {
                let found = code.matches(instruction).count();
                assert!(found >= *least, "{what}: {found} of {instruction}");
            }
        }
    }
}

#[test]
fn names_are_those_that_others_look_up() {
    let names: Vec<String> = super::probes()
        .into_iter()
        .map(|probe| probe.name)
        .collect();
    for name in [
        "device",
        "copy",
        "dram-read",
        "l2-read",
        "gather-64-l1",
        "gather-128-l1",
        "gather-64-shared",
        "gather-64-1mb",
        "gather-64-10mb",
        "gather-64-40mb",
        "dsmem-read-2",
        "dsmem-read-16",
        "atomic-f32-spread",
        "atomic-v4f32-contended",
        "atomic-v4f16x2-spread",
        "fma-f32",
        "fma-f16x2",
        "tensor-mma-f16",
        "tensor-wgmma-f16",
        "launch-latency",
        "launch-latency-graph",
        "tma-1d",
        "tma-5d",
        "cluster-2-one-1kb",
        "cluster-16-many-80kb",
        "tile-plain-l2",
        "tile-tma-dram",
        "slice-cooperative",
        "slice-bulk",
    ] {
        assert!(names.iter().any(|found| found == name), "{name}");
    }
    let mut once = names.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), names.len(), "a name twice");
}
