//! Deformable attention from projections: `fourtap run` and `fourtap bench`.

use std::fs;

use fourtap::msda::oracle::Sum;
use fourtap::msda::projections::{Interpolation, oracle};
use fourtap::verify::{Pass, ProjectedCase, Tensor, judge};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

use crate::common::{Bad, Entry, entry, f32s, folder_with, fourtap, i64s, refuses};
use crate::dense::file;
use crate::run::{integers, loaded, stored};

/// A small problem without fault: N 1, Q 3, M 2, D 2, P 2, levels 2x3 and 1x2.
fn valid() -> Vec<Entry> {
    vec![
        f32s("value", &[1, 8, 2, 2]),
        i64s("spatial_shapes", &[2, 2], &[2, 3, 1, 2]),
        f32s("reference_points", &[1, 3, 2, 2]),
        f32s("sampling_offsets", &[1, 3, 2, 4, 2]),
        f32s("attention_logits", &[1, 3, 2, 4]),
        entry("value_mask", "BOOL", &[1, 8], vec![0; 8]),
        f32s("grad_out", &[1, 3, 4]),
    ]
}

/// `valid` with one tensor replaced or added.
fn with(changed: Entry) -> Vec<Entry> {
    let mut entries = valid();
    entries.retain(|entry| entry.name != changed.name);
    entries.push(changed);
    entries
}

fn without(name: &str) -> Vec<Entry> {
    let kept = valid().into_iter().filter(|entry| entry.name != name);
    kept.collect()
}

/// Numbers with commas between them.
fn listed<T: ToString>(numbers: &[T]) -> Value {
    let words: Vec<String> = numbers.iter().map(T::to_string).collect();
    words.join(",").into()
}

/// The file of a case, and what its metadata must say.
fn case_file(case: &ProjectedCase) -> Vec<u8> {
    let shapes = case.levels.iter();
    let shapes: Vec<usize> = shapes
        .flat_map(|level| [level.height, level.width])
        .collect();
    let starts: Vec<usize> = case.levels.iter().map(|level| level.start).collect();
    let count = case.levels.len() as u64;
    let mut entries = vec![
        stored("value", &case.value),
        integers("spatial_shapes", &[count, 2], &shapes, true),
        integers("level_start_index", &[count], &starts, true),
        stored("reference_points", &case.reference_points),
        stored("sampling_offsets", &case.sampling_offsets),
        stored("attention_logits", &case.attention_logits),
        stored("grad_out", &case.grad_out),
    ];
    if let Some(mask) = &case.value_mask {
        let shape = case.value.shape();
        let [images, pixels] = [shape.sizes()[0], shape.sizes()[1]];
        let pixels = (0..images).flat_map(|n| (0..pixels).map(move |s| u8::from(mask.get(n, s))));
        let shape = &shape.sizes()[..2];
        let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
        entries.push(entry("value_mask", "BOOL", &shape, pixels.collect()));
    }
    let mut metadata = Map::new();
    if case.points_are_listed {
        metadata.insert("points_per_level".to_string(), listed(&case.points));
    }
    if case.interpolation == Interpolation::Nearest {
        metadata.insert("sampling".to_string(), "nearest".into());
    }
    if let Some(factors) = &case.box_scale {
        metadata.insert("box_scale".to_string(), listed(factors));
    }
    file(&entries, &Value::Object(metadata))
}

#[test]
fn writes_what_the_oracle_says() {
    let mut seen = 0;
    for seed in 0..40 {
        let case = ProjectedCase::random(seed);
        // A list of one, or of none, cannot be told from a number.
        if case.points.len() < 2 {
            continue;
        }
        seen += 1;
        let folder = folder_with(&case_file(&case));
        let call = ["run", "in.safetensors", "-o", "out.safetensors", "--grad"];
        let outcome = fourtap(folder.path(), call);
        assert_eq!(outcome.code, Some(0), "problem {seed}: {outcome:?}");
        let bytes = fs::read(folder.path().join("out.safetensors")).unwrap();
        let written = SafeTensors::deserialize(&bytes).unwrap();
        let (inputs, grad_out) = (case.inputs(), case.grad_out());
        let compare = |name: &str, pass, like: &Tensor, exact: &[Sum<f64>], naive: &[Sum<f32>]| {
            let mut found = loaded(&written, name, like);
            let (mut exact, mut naive) = (exact.to_vec(), naive.to_vec());
            for ((found, exact), naive) in found.iter_mut().zip(&mut exact).zip(&mut naive) {
                // Where the oracle says NaN, the result must, and is not judged otherwise.
                if exact.total.is_nan() && found.is_nan() {
                    (*found, *exact, *naive) = Default::default();
                }
            }
            let judgement = judge(pass, like.dtype(), &found, &exact, &naive);
            assert!(judgement.passed(), "problem {seed}: {name}: {judgement:?}");
        };
        let exact = oracle::forward(&inputs).unwrap();
        let naive = oracle::forward(&inputs).unwrap();
        compare("out", Pass::Forward, &case.grad_out, &exact, &naive);
        let exact = oracle::backward(&inputs, &grad_out).unwrap();
        let naive = oracle::backward(&inputs, &grad_out).unwrap();
        let gradients = [
            ("grad_value", &case.value, &exact.value, &naive.value),
            (
                "grad_references",
                &case.reference_points,
                &exact.reference_points,
                &naive.reference_points,
            ),
            (
                "grad_offsets",
                &case.sampling_offsets,
                &exact.sampling_offsets,
                &naive.sampling_offsets,
            ),
            (
                "grad_logits",
                &case.attention_logits,
                &exact.attention_logits,
                &naive.attention_logits,
            ),
        ];
        for (name, like, exact, naive) in gradients {
            compare(name, Pass::Backward, like, exact, naive);
        }
    }
    assert!(seen > 10, "{seen} problems with several levels");
}

#[test]
fn refuses_tensors_that_say_it_in_two_ways() {
    let plain = |entries: &[Entry]| file(entries, &json!({}));
    let bad: [Bad; 6] = [
        (
            "both ways",
            plain(&with(f32s("sampling_locations", &[1, 3, 2, 2, 2, 2]))),
            "found sampling_locations and reference_points",
        ),
        (
            "a mask for given locations",
            plain(
                &[
                    crate::common::valid(),
                    vec![entry("value_mask", "BOOL", &[1, 8], vec![0; 8])],
                ]
                .concat(),
            ),
            "found sampling_locations and value_mask",
        ),
        (
            "no offsets",
            plain(&without("sampling_offsets")),
            "expected a tensor sampling_offsets",
        ),
        (
            "a mask of numbers",
            plain(&with(f32s("value_mask", &[1, 8]))),
            "expected element type BOOL or U8",
        ),
        (
            "a mask of another size",
            plain(&with(entry("value_mask", "BOOL", &[1, 7], vec![0; 7]))),
            "value_mask",
        ),
        (
            "flat references",
            plain(&with(f32s("reference_points", &[3, 2]))),
            "reference_points",
        ),
    ];
    refuses(&bad, &[]);
}

#[test]
fn refuses_metadata_that_makes_no_sense() {
    let with = |metadata: Value| file(&valid(), &metadata);
    let bad: [Bad; 4] = [
        (
            "points that are no number",
            with(json!({"points_per_level": "2,x"})),
            "points_per_level",
        ),
        (
            "points of three levels",
            with(json!({"points_per_level": "2,1,1"})),
            "points_per_level",
        ),
        (
            "another sampling",
            with(json!({"sampling": "cubic"})),
            "bilinear or nearest",
        ),
        (
            "a scale of boxes for points",
            with(json!({"box_scale": "0.1"})),
            "box_scale",
        ),
    ];
    refuses(&bad, &[]);
}

const SMALL: &str = r#"
name = "small"
description = "milliseconds to time"
images = 1
queries = 20
heads = 2
channels = 8
levels = [[6, 7], [3, 3]]
points = 2
reference = "random"
"#;

#[test]
fn bench_times_both_ways_and_tells_them_apart() {
    for reference in ["random", "raster"] {
        let folder = tempfile::tempdir().unwrap();
        let text = SMALL.replace("\"random\"", &format!("\"{reference}\""));
        fs::write(folder.path().join("small.toml"), text).unwrap();
        let call = [
            "bench",
            "small.toml",
            "--device",
            "cpu",
            "--quick",
            "--dtype",
            "f16,f32",
            "--inputs",
            "given,projections",
            "--json",
            "results.jsonl",
            "--report",
            "report.html",
        ];
        let outcome = fourtap(folder.path(), call);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(outcome.stdout.contains("From projections"), "{outcome:?}");
        let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
        assert!(page.contains("local f16, projections"), "beside the others");
        let lines = fs::read_to_string(folder.path().join("results.jsonl")).unwrap();
        let lines = lines.lines();
        let records = lines.map(|line| serde_json::from_str(line).expect("only JSON"));
        let mut records: Vec<Value> = records
            .filter(|record: &Value| record["kind"] == "bench")
            .collect();
        assert_eq!(records.len(), 8);
        let projected = records.split_off(4);
        for (given, projected) in records.iter().zip(&projected) {
            assert_eq!(given["problem"]["inputs"], Value::Null);
            assert_eq!(projected["problem"]["inputs"], "projections");
            assert_eq!(projected["verification"]["passed"], true);
            assert_eq!(projected["dtypes"]["locations"], given["dtypes"]["value"]);
            let gathered = |record: &Value| record["traffic"]["gathered_bytes"].clone();
            assert_eq!(gathered(given), gathered(projected));
            // The same points, but for rounding.
            let inside = |record: &Value| record["in_bounds_fraction"].as_f64().unwrap();
            assert!((inside(given) - inside(projected)).abs() < 0.05);
        }
        let forward = |records: &[Value], dtype: &str| {
            let same = |it: &&Value| it["dtypes"]["value"] == dtype && it["direction"] == "forward";
            let record = records.iter().find(same).unwrap();
            record["traffic"]["compulsory_bytes"].as_u64().unwrap()
        };
        // Three numbers for each of 160 samples, in f32 and in f16, and in f32 40 points or boxes.
        let coordinates = if reference == "random" { 4 } else { 2 };
        assert_eq!(
            forward(&records, "f16") - 3 * 160 * 4,
            forward(&projected, "f16") - 3 * 160 * 2 - 40 * coordinates * 4,
        );
    }
}

#[test]
fn dense_attention_has_no_projections() {
    let folder = tempfile::tempdir().unwrap();
    let call = ["bench", "dense-s512-d64", "--inputs", "projections"];
    let outcome = fourtap(folder.path(), call.iter().chain(&["--device", "cpu"]));
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("--inputs projections: expected a problem of deformable attention"),
        "{outcome:?}"
    );
}

#[test]
fn explain_knows_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |pass: &str, inputs: &str| {
        let call = [
            "explain",
            "dino-decoder",
            "--json",
            "--direction",
            pass,
            "--inputs",
            inputs,
        ];
        let outcome = fourtap(folder.path(), call);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let explained: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let kernels = explained["machine"]["kernels"].to_string();
        assert_eq!(kernels.contains("boxes-f32"), inputs == "projections");
        let name = explained["name"].as_str().unwrap().to_string();
        assert_eq!(name.ends_with("/projections"), inputs == "projections");
        explained["amounts"]["compulsory_bytes"].as_u64().unwrap()
    };
    // N 4, Q 900, M 8, K 16: three numbers a sample in f32, or in f16 and boxes of four levels in f32.
    let (rows, references) = (4 * 900 * 8 * 16 * 3, 4 * 900 * 4 * 4 * 4);
    for (pass, times) in [("forward", 1), ("backward", 2)] {
        let spared = bytes(pass, "given") - bytes(pass, "projections");
        assert_eq!(spared, times * (2 * rows - references), "{pass}");
    }
}
