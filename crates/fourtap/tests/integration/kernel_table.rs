//! Every shipped kernel compiles for every architecture and uses the resources it used before: registers, stack (with
//! spills) and shared memory, compared with a committed table.
//!
//! A line of the table also has the fingerprint of what was compiled. The same compiler gives the same result, so an
//! unchanged kernel need not be compiled again; a changed one is, for all architectures. The long test compiles all.
//!
//! Needs NVRTC 13.0, which `cargo xtask test` installs. `FOURTAP_WRITE_TABLE=1 cargo xtask test` writes the table
//! anew, with the lines of kernels that have changed.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use fourtap::DType;
use fourtap::cuda::dense::AttnKind;
use fourtap::cuda::jit::{Architecture, Nvrtc, NvrtcVersion, Program, Resources};
use fourtap::cuda::msda::{KernelVariant, Sampling};
use fourtap::cuda::{SpecialisedKernel, dense};
use rayon::prelude::*;

use crate::tabled_kernels::{dense_kernels, kernels};

const ARCHITECTURES: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100f", "sm_120f"];

fn table_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernels/table.txt")
}

/// How many instructions of a kind the disassembler, if there is one, finds.
fn count_instructions(code: &[u8], kinds: &[&str]) -> Option<Vec<usize>> {
    let disassembler = std::env::var_os("FOURTAP_CUOBJDUMP")?;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), code).unwrap();
    let output = Command::new(disassembler)
        .arg("--dump-sass")
        .arg(file.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("EXIT"),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let count = |kind: &&str| {
        text.split_whitespace()
            .filter(|word| word.starts_with(kind))
            .count()
    };
    Some(kinds.iter().map(count).collect())
}

/// Compiles a kernel and says what it takes; it may take so many bytes of stack.
fn compile(nvrtc: &Nvrtc, program: &Program, entry: &str, allowed: u32) -> (Vec<u8>, String) {
    let (kernel, name) = (&program.name, program.architecture);
    let code = nvrtc.compile(program).unwrap().code;
    let resources = Resources::of(&code).unwrap();
    let [taken] = &resources[..] else {
        panic!("{kernel}: {resources:?}");
    };
    assert_eq!(taken.name, entry);
    assert!(
        taken.stack_bytes <= allowed,
        "{kernel} for {name} spills: {} bytes",
        taken.stack_bytes
    );
    let line = format!(
        "{} {} {} {}",
        start_of_line(program),
        taken.registers,
        taken.stack_bytes,
        taken.static_shared_bytes
    );
    (code, line)
}

/// What is compiled: the kernel, the architecture and enough of its fingerprint to know it by.
fn start_of_line(program: &Program) -> String {
    let fingerprint = program.fingerprint().to_string();
    format!(
        "{} {} {}",
        program.name,
        program.architecture,
        &fingerprint[..16]
    )
}

/// A shipped kernel, and what is expected of its machine code.
struct TableKernel {
    kernel: Box<dyn SpecialisedKernel>,
    /// Bytes of stack it may take.
    most_stack: u32,
    /// Instructions, and how many there are at least.
    least: Vec<(&'static str, usize)>,
}

impl TableKernel {
    fn msda(kernel: KernelVariant) -> Self {
        let gather = match kernel {
            KernelVariant::Gather(gather) => Some(gather),
            _ => None,
        };
        TableKernel {
            kernel: Box::new(kernel),
            most_stack: match kernel {
                // The kernels that sum sorted samples keep a little there that is needed once a run, not in the inner
                // loop.
                KernelVariant::ValueChannel(_) | KernelVariant::ValueMatrix(_) => 128,
                // Two words on sm_80, whose shared memory is too small for levels to be kept unless asked for.
                KernelVariant::Gather(gather) if gather.keeps => 8,
                // Some words that are needed once in four rows.
                KernelVariant::Matrix(_) => 48,
                // A word or two that are needed once a chunk, or once a block.
                KernelVariant::Sort(_) | KernelVariant::ValueBands(_) => 16,
                // Some words that are needed once a row. With fewer threads there would be room for them, which costs more.
                KernelVariant::SamplesMatrix(gather) if gather.sampling != Sampling::Given => 96,
                // Two words on Hopper.
                KernelVariant::SamplesMatrix(_) => 16,
                // A thread a row, or a warp a reference point: they wait for memory.
                KernelVariant::Statistics(_) | KernelVariant::References(_) => 96,
                _ => 0,
            },
            // Four neighbours of the samples of a chunk, or of all if they are fewer.
            least: Vec::from_iter(gather.map(|gather| {
                let samples = gather.group() * gather.per_lane;
                let samples = samples.min(gather.samples());
                ("LDG.E.128", 4 * samples.div_ceil(gather.split) as usize)
            })),
        }
    }

    fn dense(kernel: dense::KernelVariant) -> Self {
        TableKernel {
            kernel: Box::new(kernel),
            // The largest tiles leave no register free: a few words that a tile needs once are kept there. Those of the widest
            // heads of f32 more: two parts of everything.
            most_stack: match kernel {
                dense::KernelVariant::Mma(kernel) if kernel.dtype == DType::F32 => 160,
                dense::KernelVariant::Wgmma(kernel)
                    if kernel.attn == AttnKind::None && kernel.head < 256 =>
                {
                    0
                }
                dense::KernelVariant::Wgmma(_) | dense::KernelVariant::GradientWgmma(_) => 64,
                _ => 112,
            },
            // Of those for Hopper: both products, before the loop, in it and after it; copies by TMA; registers given and taken.
            least: match kernel {
                dense::KernelVariant::Wgmma(kernel) => {
                    let products = 2 * (kernel.head + kernel.tile.keys) as usize / 16;
                    vec![("HGMMA", products), ("UTMALDG", 3), ("USETMAXREG", 2)]
                }
                // The five products, copies of four tensors.
                dense::KernelVariant::GradientWgmma(_) => {
                    vec![("HGMMA", 20), ("UTMALDG", 4), ("USETMAXREG", 2)]
                }
                _ => Vec::new(),
            },
        }
    }

    /// What it takes.
    fn line(&self, nvrtc: &Nvrtc, program: &Program) -> String {
        let (code, line) = compile(nvrtc, program, self.kernel.entry(), self.most_stack);
        // Disassembling takes longer than compiling: only where it tells something.
        let kinds: Vec<&str> = self.least.iter().map(|(kind, _)| *kind).collect();
        if !kinds.is_empty()
            && let Some(counts) = count_instructions(&code, &[&kinds[..], &["LDL", "STL"]].concat())
        {
            for ((kind, least), count) in self.least.iter().zip(&counts) {
                assert!(
                    count >= least,
                    "{line}: {count} {kind}, at least {least} expected"
                );
            }
            if self.most_stack == 0 {
                assert_eq!(counts[kinds.len()..], [0, 0], "{line}");
            }
        }
        line
    }
}

/// The lines of a table by how they start.
fn lines_of(table: &str) -> HashMap<&str, &str> {
    let by_start = table.lines().filter_map(|line| {
        let (end, _) = line.match_indices(' ').nth(2)?;
        Some((&line[..end], line))
    });
    by_start.collect()
}

/// Checks every kernel against the table. An unchanged one is compiled again only for the architectures, by index, that
/// `again` selects for the kernel, by index.
fn check_against_table(again: impl Fn(usize, usize) -> bool) {
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            let required = std::env::var_os("FOURTAP_REQUIRE_NVRTC").is_some();
            assert!(!required, "NVRTC is required: {error}");
            eprintln!("skipped, no NVRTC: {error}");
            return;
        }
    };
    let writes = std::env::var_os("FOURTAP_WRITE_TABLE").is_some();
    let is_of_table = nvrtc.version()
        == (NvrtcVersion {
            major: 13,
            minor: 0,
        });
    let committed = fs::read_to_string(table_path()).unwrap_or_default();
    // A line whose fingerprint is still that of its program holds, also when the table is written anew.
    let known = match is_of_table {
        true => lines_of(&committed),
        false => HashMap::new(),
    };
    let kernels = kernels().into_iter().map(TableKernel::msda);
    let kernels = kernels.chain(dense_kernels().into_iter().map(TableKernel::dense));
    let kernels: Vec<TableKernel> = kernels.collect();
    let again = &again;
    let programs: Vec<_> = kernels
        .iter()
        .enumerate()
        .flat_map(|(kernel_number, kernel)| {
            let architectures = ARCHITECTURES.iter().enumerate();
            architectures.filter_map(move |(number, name)| {
                let architecture: Architecture = name.parse().unwrap();
                let program = kernel.kernel.program(architecture);
                let is_compiled = kernel.kernel.is_for(architecture);
                is_compiled.then(|| (kernel, program, again(kernel_number, number)))
            })
        })
        .collect();
    let lines = programs.par_iter().map(|(kernel, program, again)| {
        match known.get(&*start_of_line(program)) {
            Some(line) if !again => line.to_string(),
            _ => kernel.line(nvrtc, program),
        }
    });
    let lines: Vec<_> = lines.collect();
    let table = format!(
        "# What each kernel takes, by NVRTC 13.0: its fingerprint, registers, bytes of stack (spills), bytes of shared memory.\n\
         # Written by tests/kernel_table.rs with FOURTAP_WRITE_TABLE=1.\n{}\n",
        lines.join("\n")
    );
    if writes {
        fs::write(table_path(), table).unwrap();
        return;
    }
    // Another compiler allocates differently; that nothing is spilled holds for all.
    assert!(
        committed == table || !is_of_table,
        "kernels take other resources than kernels/table.txt says; if that is meant, write it anew with \
         FOURTAP_WRITE_TABLE=1 and commit it. Found:\n{table}"
    );
}

#[test]
fn changed_kernels_compile_for_every_architecture_and_take_what_the_table_says() {
    check_against_table(|_, _| false);
}

#[test]
#[ignore = "long: compiles every kernel, each for another architecture"]
fn unchanged_kernels_still_compile_to_what_the_table_says() {
    check_against_table(|kernel, architecture| architecture == kernel % ARCHITECTURES.len());
}
