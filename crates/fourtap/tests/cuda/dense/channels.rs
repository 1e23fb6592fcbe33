//! Channels of very different sizes in one tensor: each of the output is as accurate as if it were alone.

use fourtap::DType;
use fourtap::dense::{Alignment, Mask, oracle};
use fourtap::verify::DenseOnCuda;

use super::{hostile, serving};
use crate::gpu;

/// By what a channel of the values is smaller: by as much as f16 and then two of them can tell apart, and by more than
/// either.
const SCALES: [i32; 4] = [0, -24, -34, -60];
/// Of the sum of magnitudes: some rounding errors of f32, of logits and of weights.
const TOLERANCE: f64 = 8e-6;

#[test]
#[ignore = "needs a CUDA device"]
fn a_small_channel_of_values_keeps_its_digits_beside_a_large_one() {
    let cuda = gpu::device();
    for (number, sizes) in [
        [100, 150, 64],
        [20, 700, 32],
        [3, 1300, 128],
        [70, 90, 40],
        [65, 129, 256],
    ]
    .into_iter()
    .enumerate()
    {
        let [_, _, channels] = sizes;
        let mask = match number % 2 {
            0 => Mask::default(),
            _ => Mask::causal(Alignment::BottomRight),
        };
        for dtype in [DType::F32, DType::F64] {
            let case = hostile::case(1, dtype, sizes, mask, |tensor, row, channel| {
                let usual = ((row * 31 + channel * 17) % 97) as f64 / 48.0 - 0.99;
                // Later keys are larger, as other tiles' units are.
                let grown = (row / 200) as i32;
                let scale = SCALES[channel % SCALES.len()] + grown;
                (tensor == 2).then(|| usual * f64::from(scale).exp2())
            });
            let expected = oracle::forward::<f64>(&case.inputs(), case.options).unwrap();
            for cuda in serving(&cuda, &case) {
                let mut on_device = DenseOnCuda::new(&case, cuda).unwrap();
                let plan = on_device.plan().unwrap();
                let [out, _] = on_device.forward(true).unwrap();
                let mut worst = [0.0f64; SCALES.len()];
                for (index, (found, sum)) in out.to_f64().iter().zip(&expected.out).enumerate() {
                    let error = (found - sum.total).abs() / sum.mass.max(f64::MIN_POSITIVE);
                    let worst = &mut worst[index % channels % SCALES.len()];
                    *worst = if error <= *worst { *worst } else { error };
                }
                println!("{dtype} {sizes:?}, {plan}: {worst:?}");
                assert!(
                    worst.iter().all(|&error| error <= TOLERANCE),
                    "{dtype} {sizes:?}, {plan}: errors of channels by their size {worst:?}"
                );
            }
        }
    }
}
