//! The kernels, compiled and disassembled: loops are not left out, loads stay in flight, and each does what it says.

use std::process::Command;

use fourtap::cuda::jit::{Nvrtc, Resources};

use super::experiment::{Needs, Room};
use super::{ceilings, pattern};
use crate::cuda::Source;

/// By the kernel's name: the least registers its loads in flight take, and the instructions it must have, with how many of
/// them at least.
type Expected = (&'static str, u32, &'static [(&'static str, usize)]);

const EXPECTED: [Expected; 11] = [
    ("probe_fill", 0, &[("STG.E", 1)]),
    ("probe_copy", 2 * 4, &[("LDG.E.128", 3), ("STG.E.128", 3)]),
    ("probe_read", 8 * 4, &[("LDG.E.NA.128", 8)]),
    // From memory or, with other letters in between, from shared memory.
    ("probe_gather", 5 * 4, &[(".128", 8)]),
    (
        "probe_dsmem",
        8 * 4,
        &[("LD.E.128", 8), ("UCGABAR_WAIT", 2)],
    ),
    ("probe_tile", 0, &[("UTMALDG.3D", 8), ("LDS.128", 4)]),
    ("probe_atomic", 0, &[(".ADD.F32x4", 8)]),
    ("probe_fma", 16, &[("FFMA", 256)]),
    ("probe_mma", 32, &[("HMMA.16816.F32", 8)]),
    ("probe_wgmma", 128, &[("HGMMA.64x256x16.F32", 16)]),
    ("probe_launch", 0, &[]),
];

/// Every kernel, and whether it needs Hopper.
fn kernels() -> Vec<(Source, bool)> {
    let of_probes = ceilings().into_iter();
    let of_probes = of_probes.map(|(_, it)| (it.kernel, it.needs != Needs::Nothing));
    of_probes.chain([(pattern::fill(), false)]).collect()
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
    for (source, needs_hopper) in kernels() {
        let (_, least_registers, instructions) = EXPECTED
            .iter()
            .find(|(name, ..)| *name == source.entry)
            .unwrap_or_else(|| panic!("{}", source.entry));
        let architectures: &[&str] = match needs_hopper {
            true => &["sm_90a"],
            false => &["sm_80", "sm_90a"],
        };
        for name in architectures {
            let program = source.program(name.parse().unwrap());
            let what = format!("{} {:?} for {name}", program.name, program.options);
            let compiled = nvrtc.compile(&program).unwrap();
            assert_eq!(compiled.log.trim(), "", "{what}");
            let kernels = Resources::of(&compiled.code).unwrap();
            assert_eq!(kernels.len(), 1, "{what}");
            assert_eq!(kernels[0].name, source.entry, "{what}");
            assert_eq!(kernels[0].stack_bytes, 0, "{what}");
            let registers = kernels[0].registers;
            assert!(registers > *least_registers, "{what}: {registers}");
            let Some(code) = disassembled(&compiled.code) else {
                continue;
            };
            for (instruction, least) in *instructions {
                let found = code.matches(instruction).count();
                assert!(found >= *least, "{what}: {found} of {instruction}");
            }
        }
    }
}

#[test]
fn a_wrong_address_or_a_missing_round_is_seen() {
    let room = Room {
        blocks: 16,
        l2_bytes: 1 << 20,
        large_bytes: 1 << 20,
    };
    for (name, experiment) in ceilings() {
        let work = (experiment.work)(room);
        let word = |index| (work.expected)(index, work.checked_rounds);
        let words: Vec<u32> = (0..work.words.min(512)).map(word).collect();
        assert!(
            words.iter().any(|&word| word != 0),
            "{name}: seen in a buffer of zeros"
        );
        // What adds has one right sum, and matrices and many additions give some numbers more than once.
        if !["atomic", "tensor", "launch"]
            .iter()
            .any(|some| name.starts_with(some))
        {
            let mut once = words.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), words.len(), "{name}: words alike");
        }
        if name != "copy" && !name.starts_with("atomic") {
            let other = (work.expected)(7 % work.words, work.checked_rounds + 1);
            assert_ne!(other, word(7 % work.words), "{name}: a round more");
        }
    }
}

#[test]
fn names_differ() {
    let mut names: Vec<&str> = ceilings().iter().map(|(name, _)| *name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
