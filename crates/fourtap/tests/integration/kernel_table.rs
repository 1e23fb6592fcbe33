//! Every shipped kernel compiles for every architecture and uses the resources it used before: registers, stack (with
//! spills) and shared memory, compared with a committed table.
//!
//! A line of the table also has the fingerprint of what was compiled. The same compiler gives the same result, so an
//! unchanged kernel need not be compiled again; a changed one is, for all architectures. The long test compiles all.
//!
//! Needs NVRTC 13.0, which `cargo xtask test` installs. `FOURTAP_WRITE_TABLE=1 cargo xtask test` compiles everything and
//! writes the table anew.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use fourtap::DType;
use fourtap::cuda::jit::{Architecture, Nvrtc, NvrtcVersion, Program, Resources};
use fourtap::cuda::msda::{
    Channel, Gather, KernelVariant, Kind, Projection, Sampling, Sort, Types,
};
use fourtap::cuda::{DeviceSize, SpecialisedKernel, dense};
use fourtap::dense::{Alignment, Mask, Sizes};
use rayon::prelude::*;

const ARCHITECTURES: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100f", "sm_120f"];

fn types(value: DType) -> Types {
    Types {
        value,
        locations: DType::F32,
        weights: DType::F32,
    }
}

/// The kinds of problem the workloads have, with the kernel each gets, and both forms of the kernel for all others.
fn kernels() -> Vec<KernelVariant> {
    let mut kernels = Vec::new();
    for value in DType::ALL {
        for strided in [false, true] {
            kernels.push(KernelVariant::Channel(Channel {
                types: types(value),
                sampling: Sampling::Given,
                strided,
                level_capacity: 16,
            }));
        }
    }
    let detr = |value: DType| Gather {
        types: types(value),
        sampling: Sampling::Given,
        channels: 32,
        levels: 4,
        points: 4,
        pixel_units: 8 * 32 * value.size() as u32 / 16,
        threads: 896,
        per_lane: if value.size() == 2 { 2 } else { 1 },
        split: 1,
        heads_together: if value.size() == 2 { 2 } else { 1 },
        phases: if value.size() == 2 { 2 } else { 1 },
        dense: true,
        grads_dense: true,
        narrow: true,
        exact: value == DType::F32,
        alternate: false,
        keeps: false,
    };
    let one_head = Gather {
        points: 8,
        pixel_units: 4,
        heads_together: 1,
        phases: 1,
        alternate: true,
        ..detr(DType::F16)
    };
    let wide = |value: DType| Gather {
        channels: 64,
        points: 8,
        pixel_units: 8 * 64 * value.size() as u32 / 16,
        per_lane: 1,
        heads_together: 1,
        phases: 1,
        ..detr(value)
    };
    let small = Gather {
        levels: 3,
        threads: 64,
        per_lane: 1,
        split: 2,
        ..detr(DType::F32)
    };
    let half = DType::F16;
    let half_coordinates = Gather {
        types: Types {
            value: half,
            locations: half,
            weights: half,
        },
        ..detr(half)
    };
    let gathers = [
        detr(DType::F16),
        detr(DType::BF16),
        detr(DType::F32),
        one_head,
        one_head.keeping().expect("levels of one head can be kept"),
        wide(DType::F16),
        wide(DType::F32),
        small,
        half_coordinates,
        Gather {
            dense: false,
            ..detr(DType::F16)
        },
        // Channels that leave lanes idle, and samples that leave slots.
        Gather {
            channels: 48,
            points: 3,
            pixel_units: 48,
            per_lane: 1,
            heads_together: 1,
            phases: 1,
            ..detr(DType::F16)
        },
    ];
    kernels.extend(gathers.map(KernelVariant::Gather));
    kernels.extend(backward_kernels());
    for kernel in projected_kernels() {
        if !kernels.contains(&kernel) {
            kernels.push(kernel);
        }
    }
    kernels
}

/// Those of calls from projections: an encoder's points, a decoder's boxes, and levels with different numbers of points.
fn projected_kernels() -> Vec<KernelVariant> {
    let points = Projection {
        references: DType::F32,
        boxes: false,
        nearest: false,
        turns: 1,
        uneven: None,
    };
    let boxes = Projection {
        boxes: true,
        ..points
    };
    let mut first = [u16::MAX; 17];
    first[..4].copy_from_slice(&[0, 3, 9, 12]);
    let uneven = Projection {
        nearest: true,
        uneven: Some(first),
        ..boxes
    };
    let kind = |value: DType, projection, levels, points| Kind {
        types: Types {
            value,
            locations: value,
            weights: value,
        },
        sampling: Sampling::Projected(projection),
        heads: 8,
        channels: 32,
        levels,
        points,
    };
    let kinds = [
        kind(DType::BF16, points, 4, 4),
        kind(DType::F32, uneven, 3, 3),
    ];
    let mut kernels: Vec<_> = kinds.iter().flat_map(Kind::kernels).collect();
    // As slices of one linear layer's result are, and as they are sorted.
    for kernel in kernels.clone() {
        kernels.extend(match kernel {
            KernelVariant::Gather(gather) if gather.split == 1 => {
                Some(KernelVariant::Gather(Gather {
                    dense: false,
                    ..gather
                }))
            }
            KernelVariant::SamplesMatrix(gather) => Some(KernelVariant::SamplesMatrix(Gather {
                dense: false,
                ..gather
            })),
            KernelVariant::Sort(sort) => Some(KernelVariant::Sort(Sort {
                fours: true,
                ..sort
            })),
            _ => None,
        });
    }
    kernels
}

/// Those of backward for the same kinds of problem.
fn backward_kernels() -> Vec<KernelVariant> {
    let kind = |value, heads, channels, points| Kind {
        types: types(value),
        sampling: Sampling::Given,
        heads,
        channels,
        levels: 4,
        points,
    };
    let mut kernels = Vec::new();
    for kind in [
        kind(DType::F16, 8, 32, 4),
        kind(DType::BF16, 8, 32, 4),
        kind(DType::F32, 8, 32, 4),
        kind(DType::F64, 8, 32, 4),
        kind(DType::F16, 8, 64, 8),
        Kind {
            types: Types {
                value: DType::F16,
                locations: DType::F16,
                weights: DType::F16,
            },
            ..kind(DType::F16, 8, 32, 4)
        },
    ] {
        let of_kind = kind.kernels();
        let backward = of_kind
            .into_iter()
            .filter(|kernel| kernel.entry().starts_with("msda_backward"));
        for kernel in backward {
            if !kernels.contains(&kernel) {
                kernels.push(kernel);
            }
        }
    }
    kernels
}

/// Those of dense attention: every width's largest tile, with a mask; and of the widths most used, the other forms.
fn dense_kernels() -> Vec<dense::KernelVariant> {
    let described = |channels: usize, queries: usize, keys: usize| dense::ProblemDesc {
        sizes: Sizes {
            batch: 1,
            query_heads: 1,
            key_heads: 1,
            queries,
            keys,
            channels,
            value_channels: channels,
        },
        dtype: DType::F16,
        mask: Mask::default(),
        align: 16,
    };
    let causal = Mask::causal(Alignment::TopLeft);
    // With more and more multiprocessors to fill, tiles become smaller, and at last keys are divided.
    let cuts = [1, 8, 24, 40].map(|multiprocessors| DeviceSize {
        multiprocessors,
        l2_bytes: 40 << 20,
        shared_bytes: 99 << 10,
    });
    let plan = |described: dense::ProblemDesc, cut: usize| described.plan(cuts[cut]).unwrap();
    let mut plans = Vec::new();
    for channels in [32, 64, 96, 128, 192, 256] {
        let usual = described(channels, 640, 640);
        plans.push(plan(
            dense::ProblemDesc {
                mask: causal,
                ..usual
            },
            0,
        ));
        if [64, 128].contains(&channels) {
            plans.extend((0..cuts.len()).map(|cut| plan(usual, cut)));
        }
    }
    for channels in [64, 128] {
        let usual = dense::ProblemDesc {
            mask: causal,
            ..described(channels, 640, 640)
        };
        let odd = described(channels - 7, 640, 640).sizes;
        let strided = dense::ProblemDesc {
            sizes: odd,
            align: 2,
            ..usual
        };
        let bf16 = dense::ProblemDesc {
            dtype: DType::BF16,
            ..usual
        };
        plans.extend([plan(bf16, 0), plan(strided, 0)]);
        plans.push(plan(described(channels, 1, 10_000), 3));
    }
    let mut kernels = Vec::new();
    for step in plans.iter().flat_map(dense::Plan::steps) {
        if !kernels.contains(&step.kernel) {
            kernels.push(step.kernel);
        }
    }
    kernels
}

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
    /// Reads of 16 bytes there are at least.
    least_reads: Option<usize>,
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
                // A word or two that are needed once a chunk.
                KernelVariant::Sort(_) => 16,
                // Some words that are needed once a row. With fewer threads there would be room for them, which costs more.
                KernelVariant::SamplesMatrix(gather) if gather.sampling != Sampling::Given => 96,
                // A thread a row, or a warp a reference point: they wait for memory.
                KernelVariant::Statistics(_) | KernelVariant::References(_) => 96,
                _ => 0,
            },
            // Four neighbours of the samples of a chunk, or of all if they are fewer.
            least_reads: gather.map(|gather| {
                let samples = gather.group() * gather.per_lane;
                let samples = samples.min(gather.samples());
                4 * samples.div_ceil(gather.split) as usize
            }),
        }
    }

    fn dense(kernel: dense::KernelVariant) -> Self {
        TableKernel {
            kernel: Box::new(kernel),
            // The largest tiles leave no register free: a few words that a tile needs once are kept there.
            most_stack: 96,
            least_reads: None,
        }
    }

    /// What it takes.
    fn line(&self, nvrtc: &Nvrtc, program: &Program) -> String {
        let (code, line) = compile(nvrtc, program, self.kernel.entry(), self.most_stack);
        // Disassembling takes longer than compiling: only where it tells something.
        if let Some(least) = self.least_reads
            && let Some(counts) = count_instructions(&code, &["LDG.E.128", "LDL", "STL"])
        {
            assert!(counts[0] >= least, "{line}: {counts:?}");
            if self.most_stack == 0 {
                assert_eq!(counts[1..], [0, 0], "{line}");
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
    let known = match is_of_table && !writes {
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
            ARCHITECTURES.iter().enumerate().map(move |(number, name)| {
                let architecture: Architecture = name.parse().unwrap();
                (
                    kernel,
                    kernel.kernel.program(architecture),
                    again(kernel_number, number),
                )
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
