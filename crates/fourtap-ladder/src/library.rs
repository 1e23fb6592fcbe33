//! Other libraries on the same problem: measured in their own process, verified like everything else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fourtap::dense::Sizes;
use fourtap::{DType, bf16, f16};
use fourtap_lab::extension::isolation::run;
use fourtap_lab::extension::record::{Timing, TrafficCounts};
use fourtap_lab::extension::{Error, Result, Rule, Verification};
use serde::Deserialize;
use serde_json::json;

use crate::dense::{self, Product};
use crate::rung::Claim;

const SCRIPT: &str = include_str!("../scripts/ladder_pytorch.py");

/// What one problem may take; most of it is PyTorch getting ready.
const LIMIT: Duration = Duration::from_secs(80);

/// A library's way to compute dense attention, or a part of it.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// As typed: "d09-flash".
    pub name: &'static str,
    /// In a few words.
    pub title: &'static str,
    /// What it does, in a sentence.
    pub idea: &'static str,
    /// What others published of it.
    pub claim: Option<Claim>,
    /// As the script knows it.
    what: &'static str,
    product: Product,
}

/// All of them.
pub const ALL: &[Library] = &[
    sdpa(
        "d09-flash",
        "flash",
        "PyTorch SDPA, FLASH",
        "scaled_dot_product_attention with FlashAttention-2 forced",
    ),
    Library {
        claim: Some(Claim {
            words: "47 us, 25.9 when measured well, on an L4",
            why: "on another, smaller GPU, by whichever backend PyTorch chose",
        }),
        ..sdpa(
            "d09-cudnn",
            "cudnn",
            "PyTorch SDPA, CUDNN",
            "scaled_dot_product_attention with cuDNN forced",
        )
    },
    sdpa(
        "d09-efficient",
        "efficient",
        "PyTorch SDPA, EFFICIENT",
        "scaled_dot_product_attention with the memory-efficient kernels forced",
    ),
    sdpa(
        "d09-math",
        "math",
        "PyTorch SDPA, MATH",
        "scaled_dot_product_attention as separate products and a softmax",
    ),
    Library {
        product: Product::Logits,
        ..sdpa(
            "d09-gemm",
            "gemm",
            "Q K^T alone, cuBLAS",
            "torch.matmul of queries and keys, half of the work and none of the softmax",
        )
    },
];

const fn sdpa(
    name: &'static str,
    what: &'static str,
    title: &'static str,
    idea: &'static str,
) -> Library {
    Library {
        name,
        title,
        idea,
        claim: None,
        what,
        product: Product::Attention,
    }
}

/// A Python that has PyTorch.
#[derive(Clone, Debug)]
pub struct Python {
    /// Its program.
    pub program: PathBuf,
    /// The device, as PyTorch counts.
    pub device: u32,
}

/// The result.
#[derive(Debug)]
pub enum Answer {
    /// There is no such library here, in words.
    Unavailable(String),
    /// It does not take the problem, in words.
    Refused(String),
    /// It computed.
    Computed {
        /// Its error against the oracle.
        verification: Verification,
        /// How long it took, if it was right.
        timing: Option<Timing>,
        /// What computed it, with versions.
        software: String,
    },
}

/// What the script says.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ScriptOutput {
    unavailable: Option<String>,
    refused: Option<String>,
    software: String,
    samples_ms: Vec<f64>,
    launches: u32,
    same_bits: bool,
}

impl Library {
    /// Bytes and operations of what it computes of a problem whose whole has these.
    pub fn traffic(&self, sizes: &Sizes, dtype: DType, whole: TrafficCounts) -> TrafficCounts {
        match self.product {
            Product::Attention => whole,
            Product::Logits => {
                let heads = sizes.batch * sizes.query_heads;
                let numbers = (sizes.queries + sizes.keys) * sizes.channels;
                let logits = sizes.queries * sizes.keys;
                TrafficCounts {
                    compulsory_bytes: (heads * (numbers + logits) * dtype.size()) as u64,
                    gathered_bytes: 0,
                    flop: 2 * (heads * logits * sizes.channels) as u64,
                }
            }
        }
    }

    /// Lets it compute a problem.
    pub fn measured(
        &self,
        numbers: &dense::Numbers,
        python: &Python,
        seed: u64,
        budget: Duration,
    ) -> Result<Answer> {
        if self.product == Product::Logits && numbers.is_causal() {
            return Ok(Answer::Refused("a product alone has no mask".to_string()));
        }
        let unwritable = |source| Error::Write {
            file: std::env::temp_dir(),
            source,
        };
        let folder = tempfile::tempdir().map_err(unwritable)?;
        let rows = numbers.sampled_rows(seed);
        self.prepare(folder.path(), numbers, &rows, python, budget)
            .map_err(unwritable)?;
        let mut command = Command::new(&python.program);
        command
            .arg(folder.path().join("ladder_pytorch.py"))
            .arg(folder.path());
        let ended = match run(&mut command, LIMIT) {
            Ok(ended) => ended,
            Err(Error::Start(error)) => {
                let program = python.program.display();
                return Ok(Answer::Unavailable(format!(
                    "{program}: {error}; --python names a Python with PyTorch"
                )));
            }
            Err(error) => return Err(error),
        };
        if let Some((_, words)) = ended.trouble(LIMIT) {
            // The last line of a traceback says what happened.
            let said = ended.stderr.lines().rfind(|line| !line.trim().is_empty());
            let words = said.map_or(words, str::to_string);
            return Ok(Answer::Unavailable(words));
        }
        let said: ScriptOutput = match ended.stdout.lines().last().map(serde_json::from_str) {
            Some(Ok(said)) => said,
            _ => {
                return Ok(Answer::Unavailable(
                    "it did not say what it did".to_string(),
                ));
            }
        };
        if let Some(words) = said.unavailable {
            return Ok(Answer::Unavailable(words));
        }
        if let Some(words) = said.refused {
            return Ok(Answer::Refused(words));
        }
        let file = folder.path().join("found.bin");
        let found = fs::read(&file).map_err(|source| Error::Read { file, source })?;
        let found = numbers_in(&found, numbers.inputs()[0].dtype());
        let mut verification = numbers.verify_rows(self.product, &rows, &found, Rule::Operator)?;
        if verification.passed && !said.same_bits {
            let words = "the timed computations are not bitwise equal to the first".to_string();
            verification = Verification::failed(words);
        }
        let timing = Timing {
            launches_a_sample: said.launches,
            ..Timing::of(said.samples_ms)
        };
        Ok(Answer::Computed {
            timing: (verification.passed && timing.is_sound()).then_some(timing),
            verification,
            software: said.software,
        })
    }

    /// Writes down what the script is to do.
    fn prepare(
        &self,
        folder: &Path,
        numbers: &dense::Numbers,
        rows: &[usize],
        python: &Python,
        budget: Duration,
    ) -> std::io::Result<()> {
        let inputs = numbers.inputs();
        let sizes = numbers.sizes();
        let names = ["query", "key", "value"];
        for (name, array) in names.iter().zip(inputs) {
            fs::write(folder.join(format!("{name}.bin")), array.bytes())?;
        }
        let task = json!({
            "what": self.what,
            "shapes": {"query": sizes.query(), "key": sizes.key(), "value": sizes.value()},
            "dtype": inputs[0].dtype().name(),
            "causal": numbers.is_causal(),
            "rows": rows,
            "device": python.device,
            "budget_s": budget.as_secs_f64(),
        });
        fs::write(folder.join("task.json"), task.to_string())?;
        fs::write(folder.join("ladder_pytorch.py"), SCRIPT)
    }
}

/// The 16-bit numbers in little-endian bytes.
fn numbers_in(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let number = |pair: &[u8; 2]| match dtype {
        DType::BF16 => bf16::from_le_bytes(*pair).to_f64(),
        _ => f16::from_le_bytes(*pair).to_f64(),
    };
    bytes.as_chunks().0.iter().map(number).collect()
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const WORKLOAD: dense::Workload = dense::Workload {
        name: "test",
        batch: 1,
        heads: 2,
        queries: 40,
        keys: 30,
        channels: 32,
        dtype: DType::F16,
    };

    /// A Python that leaves these numbers and says this.
    fn answered(found: &[u8], says: &str) -> Answer {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("python");
        fs::write(folder.path().join("found"), found).unwrap();
        let script = format!(
            "#!/bin/sh\ntest -s $2/query.bin || exit 1\ncp {} $2/found.bin\necho '{says}'\n",
            folder.path().join("found").display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        measured(program)
    }

    fn measured(program: PathBuf) -> Answer {
        let numbers = dense::Numbers::random(&WORKLOAD, false, 1.0, 3).unwrap();
        let python = Python { program, device: 0 };
        let budget = Duration::from_millis(1);
        ALL[0].measured(&numbers, &python, 5, budget).unwrap()
    }

    /// The rows that are asked for, as the library computes them on the processor.
    fn right_rows() -> Vec<u8> {
        let numbers = dense::Numbers::random(&WORKLOAD, false, 1.0, 3).unwrap();
        let [query, key, value] = numbers.inputs().map(fourtap_lab::extension::Array::view);
        let inputs = fourtap::dense::Inputs {
            query,
            key,
            value,
            attn_mask: None,
        };
        let mut out = numbers.poisoned().unwrap();
        let backend = fourtap::Backend::Auto;
        fourtap::dense::forward(&backend, inputs, Default::default(), out.view_mut()).unwrap();
        let row = |row: usize| out.bytes()[row * 64..][..64].to_vec();
        numbers.sampled_rows(5).into_iter().flat_map(row).collect()
    }

    const SAYS: &str = "{\"software\": \"a library\", \"samples_ms\": [1.0, 2.0, 3.0], \"launches\": 7, \"same_bits\": true}";

    #[test]
    fn what_is_right_has_a_time_and_a_name() {
        let Answer::Computed {
            verification,
            timing: Some(timing),
            software,
        } = answered(&right_rows(), SAYS)
        else {
            panic!("it computed");
        };
        assert!(verification.passed);
        assert_eq!((timing.median_ms, timing.launches_a_sample), (2.0, 7));
        assert_eq!(software, "a library");
    }

    #[test]
    fn what_is_wrong_has_none() {
        let mut rows = right_rows();
        rows[1] ^= 4; // an exponent
        let fewer = &right_rows()[64..];
        let other_bits = SAYS.replace("true", "false");
        for (found, says) in [
            (&rows[..], SAYS),
            (fewer, SAYS),
            (&right_rows(), &other_bits),
        ] {
            let Answer::Computed {
                verification,
                timing,
                ..
            } = answered(found, says)
            else {
                panic!("it computed");
            };
            assert!(!verification.passed && timing.is_none());
        }
    }

    #[test]
    fn what_is_not_there_is_told_in_words() {
        let missing = measured(PathBuf::from("/nowhere/python"));
        let silent = answered(b"", "nothing of the kind");
        let without = answered(b"", "{\"unavailable\": \"no PyTorch\"}");
        for (answer, words) in [
            (missing, "/nowhere/python: "),
            (silent, "it did not say what it did"),
            (without, "no PyTorch"),
        ] {
            let Answer::Unavailable(found) = answer else {
                panic!("{words}: {answer:?}");
            };
            assert!(found.starts_with(words), "{found}");
        }
        let refused = answered(b"", "{\"refused\": \"no kernel\"}");
        assert!(matches!(refused, Answer::Refused(_)));
    }
}
