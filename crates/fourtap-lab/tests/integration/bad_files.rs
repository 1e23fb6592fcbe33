//! Files that are no safetensors files: each ends in an error that names the file and what is wrong, never in a panic,
//! and leaves nothing behind.

use crate::common::{Bad, encode, fails, folder_with, fourtap, names, refuses, valid, with_header};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// 16 bytes of data under this header.
fn header(json: &str, expected: &'static str) -> Bad {
    (expected, with_header(json.as_bytes(), &[0; 16]), expected)
}

/// 16 bytes of data under a header that describes `value`, and perhaps `grad_out`, so.
fn placed(tensors: &[(&str, &str, &str)], expected: &'static str) -> Bad {
    let describe = |(name, (dtype, shape, offsets)): (&str, &(&str, &str, &str))| {
        format!(r#""{name}": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}"#)
    };
    let described: Vec<_> = ["value", "grad_out"]
        .into_iter()
        .zip(tensors)
        .map(describe)
        .collect();
    header(&format!("{{{}}}", described.join(", ")), expected)
}

/// A right file but for the length of its header.
fn length(length: u64, expected: &'static str) -> Bad {
    let mut bytes = encode(&valid());
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    (expected, bytes, expected)
}

#[test]
fn refuses_what_has_no_header() {
    let mut longer = encode(&valid());
    longer.push(0);
    refuses(
        &[
            ("nothing at all", vec![], "found 0 bytes, too few for the 8"),
            ("one byte", vec![7], "found 1 byte, too few for the 8"),
            (
                "seven bytes",
                vec![0; 7],
                "found 7 bytes, too few for the 8",
            ),
            (
                "a length alone",
                vec![9, 0, 0, 0, 0, 0, 0, 0],
                "a header of 9 bytes in a file of 8",
            ),
            ("zeros", vec![0; 64], "not JSON"),
            (
                "text",
                b"it is text, not tensors".to_vec(),
                "more than the format allows",
            ),
            (
                "a zip file",
                b"PK\x03\x04\x14\x00\x00\x00\x08\x00".to_vec(),
                "a header of",
            ),
            (
                "not UTF-8",
                with_header(b"{\"value\xff\xfe\": 1}", &[]),
                "a header that is not UTF-8",
            ),
            ("one byte too many", longer, "in a file with"),
            length(0, "a header that is not JSON"),
            length(1, "a header that is not JSON"),
            length(40, "a header that is not JSON of the right form"),
            length(90_000_000, "a header of 90000000 bytes in a file of"),
            length(
                1 << 63,
                "a header of 9223372036854775808 bytes, more than the format allows",
            ),
            length(
                u64::MAX,
                "a header of 18446744073709551615 bytes, more than the format allows",
            ),
        ],
        &[],
    );
}

#[test]
fn refuses_headers_of_another_form() {
    refuses(
        &[
            header("[1, 2, 3]", "not JSON of the right form"),
            header("42", "not JSON of the right form: invalid type: integer"),
            header("null", "not JSON of the right form: invalid type: null"),
            header("{", "not JSON of the right form: EOF"),
            header(r#"{"value": 3}"#, "not JSON of the right form"),
            header(
                r#"{"value": {"shape": [4], "data_offsets": [0, 16]}}"#,
                "missing field `dtype`",
            ),
            header(
                r#"{"value": {"dtype": "F32", "data_offsets": [0, 16]}}"#,
                "missing field `shape`",
            ),
            header(
                r#"{"value": {"dtype": "F32", "shape": [4]}}"#,
                "missing field `data_offsets`",
            ),
            placed(&[("Q4", "[4]", "[0, 16]")], "unknown variant `Q4`"),
            placed(&[("F32", "[-4]", "[0, 16]")], "integer `-4`"),
            placed(&[("F32", "[4.5]", "[0, 16]")], "floating point `4.5`"),
            placed(&[("F32", "4", "[0, 16]")], "not JSON of the right form"),
            placed(
                &[("F32", "[36893488147419103232]", "[0, 16]")],
                "not JSON of the right form",
            ),
            placed(&[("F32", "[4]", "[0]")], "not JSON of the right form"),
            placed(&[("F32", "[4]", "[-16, 0]")], "not JSON of the right form"),
        ],
        &[],
    );
}

#[test]
fn refuses_tensors_out_of_place() {
    let overlapping = "tensor grad_out at bytes 8 to 16 of the data, expected to begin at byte 12";
    let larger =
        "tensor value of F32 elements in shape [5], which needs 20 bytes, in a place of 16";
    let gap = "tensor value at bytes 8 to 16 of the data, expected to begin at byte 0";
    let far = "[18446744073709551599, 18446744073709551615]";
    refuses(
        &[
            placed(
                &[("F32", "[8]", "[0, 32]")],
                "tensors of 32 bytes together in a file with 16",
            ),
            placed(
                &[("F32", "[2]", "[0, 8]")],
                "tensors of 8 bytes together in a file with 16",
            ),
            placed(
                &[("F32", "[4]", "[16, 0]")],
                "tensor value at bytes 16 to 0",
            ),
            placed(&[("F32", "[2]", "[8, 16]")], gap),
            placed(
                &[("F32", "[4]", "[0, 16]"), ("F32", "[4]", "[0, 16]")],
                "expected to begin at byte 16",
            ),
            placed(
                &[("F32", "[3]", "[0, 12]"), ("F32", "[2]", "[8, 16]")],
                overlapping,
            ),
            placed(
                &[("F32", "[1]", "[0, 4]"), ("F32", "[2]", "[8, 16]")],
                "expected to begin at byte 4",
            ),
            placed(&[("F32", "[5]", "[0, 16]")], larger),
            placed(
                &[("F64", "[1]", "[0, 16]")],
                "which needs 8 bytes, in a place of 16",
            ),
            placed(
                &[("F32", "[]", "[0, 16]")],
                "in shape [], which needs 4 bytes",
            ),
            placed(
                &[("F32", "[4294967296, 4294967296, 2]", "[0, 16]")],
                "whose size overflows",
            ),
            placed(
                &[("F64", "[9223372036854775807]", "[0, 16]")],
                "whose size overflows",
            ),
            placed(&[("F4", "[3]", "[0, 16]")], "tensor value of F4 elements"),
            placed(&[("U8", "[16]", far)], "expected to begin at byte 0"),
        ],
        &[],
    );
}

#[test]
fn refuses_a_file_cut_anywhere() {
    let whole = encode(&valid());
    for length in (0..whole.len()).step_by(11).chain([whole.len() - 1]) {
        let folder = folder_with(&whole[..length]);
        let outcome = fourtap(
            folder.path(),
            ["run", "in.safetensors", "-o", "out.safetensors"],
        );
        let expected = "in.safetensors: expected a safetensors file, found";
        fails(&format!("{length} bytes"), &outcome, expected);
        assert_eq!(
            names(folder.path()).len(),
            1,
            "{length} bytes: something was left behind"
        );
    }
}

#[test]
fn survives_any_damage_to_a_header() {
    let whole = encode(&valid());
    let header = 8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    for round in 0..200 {
        let mut bytes = whole.clone();
        for _ in 0..rng.random_range(1..4) {
            bytes[rng.random_range(0..header)] = rng.random_range(b' '..b'~');
        }
        let folder = folder_with(&bytes);
        let call = ["run", "in.safetensors", "-o", "out.safetensors", "--grad"];
        let outcome = fourtap(folder.path(), call);
        assert!(
            matches!(outcome.code, Some(0 | 1)),
            "round {round}: {outcome:?}"
        );
        assert!(
            !outcome.stderr.contains("panicked"),
            "round {round}: {outcome:?}"
        );
        let left = 1 + usize::from(outcome.code == Some(0));
        assert_eq!(
            names(folder.path()).len(),
            left,
            "round {round}: {outcome:?}"
        );
    }
}
