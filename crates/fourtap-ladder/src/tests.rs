//! Every rung compiles for every shape and parameter it takes, keeps to the limits of a device, and says what it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use fourtap::DType;
use fourtap::cuda::jit::{Architecture, Nvrtc, Program};
use fourtap_lab::extension::record::RungOperator;
use rayon::prelude::*;

use crate::numbers::AnyShape;
use crate::plan::{Choice, Hardware, Level, Shape};
use crate::rung::{Contender, contenders};
use crate::trial::source;
use crate::{dense, library, rungs};

/// An H200, as its driver describes it.
pub const H200: Hardware = Hardware {
    multiprocessors: 132,
    shared_bytes: 232_448,
    threads: 2048,
    l2_bytes: 62_914_560,
    has_clusters: true,
    has_tensor_maps: true,
};

fn shape([images, queries, heads, channels, points]: [u32; 5], levels: &[(u32, u32)]) -> Shape {
    let mut start = 0;
    let mut packed = Vec::new();
    for &(height, width) in levels {
        packed.push(Level {
            width,
            height,
            start,
        });
        start += width * height;
    }
    Shape {
        images,
        queries,
        heads,
        channels,
        points,
        pixels: start,
        levels: packed,
    }
}

fn dense_shape(
    [planes, queries, keys, channels]: [u32; 4],
    dtype: DType,
    causal: bool,
) -> AnyShape {
    AnyShape::Dense(dense::Shape {
        planes,
        queries,
        keys,
        channels,
        dtype,
        causal,
    })
}

/// Large and small ones; the first is that of published figures.
fn shapes(operator: RungOperator) -> Vec<AnyShape> {
    if operator == RungOperator::Dense {
        return vec![
            dense_shape([8, 512, 512, 64], DType::F16, false),
            dense_shape([64, 2048, 2048, 64], DType::F16, true),
            dense_shape([3, 130, 203, 32], DType::BF16, true),
            dense_shape([1, 1, 1, 128], DType::F16, false),
            dense_shape([16, 4096, 4096, 128], DType::BF16, false),
        ];
    }
    let seed = [(92, 160), (46, 80), (23, 40), (12, 20)];
    let detr = [(100, 167), (50, 84), (25, 42), (13, 21)];
    let shapes = [
        shape([48, 15422, 1, 32, 8], &seed),
        shape([4, 22223, 8, 32, 4], &detr),
        shape(
            [6, 10000, 8, 64, 8],
            &[(116, 200), (58, 100), (29, 50), (15, 25)],
        ),
        shape([1, 1, 1, 16, 1], &[(1, 1)]),
        shape(
            [2, 33, 1, 128, 2],
            &[(7, 13), (1, 9), (4, 1), (1, 1), (2, 2)],
        ),
    ];
    shapes.map(AnyShape::Msda).to_vec()
}

#[test]
fn names_are_unique_and_every_rung_says_what_it_is() {
    let rungs = rungs::all();
    let names: BTreeSet<_> = rungs.iter().map(|rung| rung.name).collect();
    assert_eq!(names.len(), rungs.len());
    for rung in &rungs {
        for words in [rung.title, rung.idea, rung.expected] {
            assert!(!words.is_empty(), "{}", rung.name);
        }
        assert!(rung.source.starts_with("// "), "{}: a header", rung.name);
        if let Some(base) = rung.builds_on {
            assert!(names.contains(base), "{} builds on {base}", rung.name);
        }
        for parameter in rung.parameters {
            assert!(parameter.values.contains(&parameter.default));
            assert!(parameter.values.is_sorted());
        }
    }
}

#[test]
fn plans_keep_to_the_device() {
    for rung in rungs::all() {
        let choice = Choice::new(rung.parameters, &[]);
        let mut planned = 0;
        for shape in shapes(rung.operator()) {
            let Ok(plan) = rung.planned(&shape, &H200, &choice) else {
                continue;
            };
            planned += 1;
            assert!(plan.cleared_bytes <= plan.scratch_bytes, "{}", rung.name);
            for step in &plan.steps {
                assert!(
                    step.threads <= 1024 && step.threads % 32 == 0,
                    "{}",
                    rung.name
                );
                assert!(step.shared_bytes <= H200.shared_bytes, "{}", rung.name);
            }
        }
        assert!(planned > 0, "{} takes no shape", rung.name);
        let poor = Hardware {
            has_clusters: false,
            has_tensor_maps: false,
            shared_bytes: 49_152,
            ..H200
        };
        for shape in shapes(rung.operator()) {
            if let Ok(plan) = rung.planned(&shape, &poor, &choice) {
                let fits = |step: &super::plan::Step| {
                    step.shared_bytes <= poor.shared_bytes && step.cluster.is_none()
                };
                assert!(
                    plan.steps.iter().all(fits) && plan.maps.is_empty(),
                    "{}",
                    rung.name
                );
            }
        }
    }
}

/// All that rungs are compiled to with some choice or shape: what it is, and whether it is a rung's first.
fn programs() -> Vec<(String, Program, bool)> {
    let hopper = Architecture::of_device(9, 0);
    let mut programs = Vec::new();
    for rung in rungs::all() {
        let mut choices = vec![vec![]];
        for parameter in rung.parameters {
            let others = parameter
                .values
                .iter()
                .filter(|&&one| one != parameter.default);
            choices.extend(others.map(|&value| vec![(parameter.name.to_string(), value)]));
        }
        let mut is_first = true;
        for (number, chosen) in choices.iter().enumerate() {
            let choice = Choice::new(rung.parameters, chosen);
            // Other parameters than the defaults need not be tried on every shape.
            let shapes = shapes(rung.operator()).into_iter();
            let shapes = shapes.take(if number == 0 { 5 } else { 1 });
            for (shape, number) in shapes.zip(1..) {
                let Ok(plan) = rung.planned(&shape, &H200, &choice) else {
                    continue;
                };
                let Some(step) = plan.steps.first() else {
                    continue;
                };
                let program = source(&rung, &shape, &choice, &plan, step.entry).program(hopper);
                let chosen = chosen
                    .iter()
                    .map(|(name, value)| format!(" {name}={value}"));
                let chosen: String = chosen.collect();
                let words = format!("{} shape {number}{chosen}", rung.name);
                programs.push((words, program, is_first));
                is_first = false;
            }
        }
    }
    programs
}

#[test]
fn every_rung_compiles_for_every_value_of_its_parameters() {
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            assert!(
                std::env::var_os("FOURTAP_REQUIRE_NVRTC").is_none(),
                "{error}"
            );
            return;
        }
    };
    let writes = std::env::var_os("FOURTAP_WRITE_TABLE").is_some();
    let is_of_table = (nvrtc.version().major, nvrtc.version().minor) == (13, 0);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/compiled.txt");
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let known: BTreeSet<&str> = match is_of_table && !writes {
        true => committed.lines().collect(),
        false => BTreeSet::new(),
    };
    let programs = programs();
    let lines = programs.par_iter().map(|(words, program, is_first)| {
        let fingerprint = program.fingerprint().to_string();
        let line = format!("{words} {}", &fingerprint[..16]);
        // What is as it was compiled once need not be compiled again, but for one of each rung.
        if *is_first || !known.contains(&*line) {
            let compiled = nvrtc.compile(program);
            assert!(compiled.is_ok(), "{words}: {}", compiled.unwrap_err());
        }
        line
    });
    let lines: Vec<_> = lines.collect();
    let table = format!(
        "# What rungs were compiled to by NVRTC 13.0, without an error: by their fingerprints. Written by the test \
         of the ladder\n# that compares it, with FOURTAP_WRITE_TABLE=1.\n{}\n",
        lines.join("\n")
    );
    if writes {
        fs::write(path, table).unwrap();
        return;
    }
    assert!(
        committed == table || !is_of_table,
        "all rungs compile, but to something else than kernels/compiled.txt says; if that is meant, rewrite it with \
         FOURTAP_WRITE_TABLE=1 and commit it"
    );
}

#[test]
fn a_rung_computes_its_own_operator_only() {
    for rung in rungs::all() {
        let other = match rung.operator() {
            RungOperator::Msda => RungOperator::Dense,
            RungOperator::Dense => RungOperator::Msda,
        };
        let choice = Choice::new(rung.parameters, &[]);
        let refused = rung.planned(&shapes(other)[0], &H200, &choice);
        assert!(refused.is_err(), "{}", rung.name);
        let dense = rung.name.starts_with('d');
        assert_eq!(
            dense,
            rung.operator() == RungOperator::Dense,
            "{}",
            rung.name
        );
    }
}

#[test]
fn dense_rungs_refuse_in_words_what_they_are_not_written_for() {
    let dense = rungs::all().into_iter();
    for rung in dense.filter(|rung| rung.operator() == RungOperator::Dense) {
        let choice = Choice::new(rung.parameters, &[]);
        for (shape, words) in [
            (dense_shape([1, 8, 8, 80], DType::F16, false), "80 channels"),
            (dense_shape([1, 8, 8, 64], DType::F32, false), "f32: "),
            (dense_shape([1, 8, 0, 64], DType::F16, true), "no key"),
        ] {
            let refused = rung.planned(&shape, &H200, &choice).unwrap_err();
            assert!(refused.contains(words), "{}: {refused}", rung.name);
        }
    }
    // What a device cannot have is refused too, whatever is chosen.
    let large = [("KEYS".to_string(), 128), ("STAGES".to_string(), 3)];
    let d06 = rungs::all().into_iter().find(|rung| rung.name == "d06");
    let d06 = d06.expect("a rung of that name");
    let choice = Choice::new(d06.parameters, &large);
    let shape = dense_shape([1, 512, 512, 128], DType::F16, false);
    let poor = Hardware {
        shared_bytes: 101_376,
        ..H200
    };
    assert!(d06.planned(&shape, &H200, &choice).is_ok());
    let refused = d06.planned(&shape, &poor, &choice).unwrap_err();
    assert!(refused.contains("bytes of shared memory"), "{refused}");
}

#[test]
fn what_only_hopper_has_is_refused_elsewhere() {
    let shape = dense_shape([64, 2048, 2048, 64], DType::F16, false);
    let all = rungs::all().into_iter();
    for rung in all.filter(|rung| rung.name.starts_with("d08")) {
        let choice = Choice::new(rung.parameters, &[]);
        let plan = rung.planned(&shape, &H200, &choice).unwrap();
        assert_eq!(plan.maps.len(), 3);
        assert!(plan.clone().for_capability((9, 0)).is_ok());
        let refused = plan.for_capability((10, 0)).unwrap_err();
        assert!(refused.contains("this device has 10.0"), "{refused}");
    }
}

#[test]
fn everything_that_takes_part_has_a_name_of_its_own() {
    let all = contenders();
    let names: BTreeSet<_> = all.iter().map(Contender::name).collect();
    assert_eq!(names.len(), all.len());
    let dense = all
        .iter()
        .filter(|one| one.operator() == RungOperator::Dense);
    assert_eq!(dense.count(), 14 + 1 + library::ALL.len());
    for operator in [RungOperator::Msda, RungOperator::Dense] {
        assert!(names.contains(operator.plainest()) && names.contains(operator.shipped()));
    }
}
