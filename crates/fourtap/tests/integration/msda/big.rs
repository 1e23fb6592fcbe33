//! More than 2^32 elements: offsets do not wrap, on any path.

use fourtap::cpu::{Cpu, Simd};
use fourtap::msda::{self, Gradients, Inputs, Levels};
use fourtap::{Backend, DType, Layout, View, ViewMut, f16};

/// 2^26 pixels of 64 channels, 8 GiB of which only the pages written below take memory.
const HEIGHT: usize = 65_536;
const WIDTH: usize = 1_025;
const CHANNELS: usize = 64;

#[test]
fn the_last_pixel_of_more_than_four_billion_elements_is_found() {
    let levels = Levels::packed(&[(HEIGHT, WIDTH)]).unwrap();
    let elements = levels.pixels() * CHANNELS;
    assert!(elements > 1 << 32);
    // Integers come as untouched pages of zeros, which f16 would not.
    let mut bits = vec![0u16; elements];
    for (channel, bits) in bits[elements - CHANNELS..].iter_mut().enumerate() {
        *bits = f16::from_f32(channel as f32).to_bits();
    }
    let layout = Layout::contiguous(DType::F16, &[1, levels.pixels(), 1, CHANNELS]);
    // SAFETY: u16 and f16 have the same size, and any bits are an f16.
    let value = unsafe { View::from_raw(bits.as_ptr().cast(), layout) };
    // The centre of the last pixel. The height is a power of two, so its row is exact.
    let location = [1.0 - 0.5 / WIDTH as f32, 1.0 - 0.5 / HEIGHT as f32];
    let inputs = Inputs {
        value,
        levels: (&levels).into(),
        sampling_locations: View::new(&location, &[1, 1, 1, 1, 1, 2]),
        attention_weights: View::new(&[2.0f32], &[1, 1, 1, 1, 1]),
    };
    let grad_out = vec![f16::ONE; CHANNELS];
    for simd in Simd::available() {
        let backend = Backend::Cpu(Cpu::with_simd(simd).unwrap());
        let mut out = vec![f16::NAN; CHANNELS];
        msda::forward(&backend, inputs, ViewMut::new(&mut out, &[1, 1, CHANNELS])).unwrap();
        for (channel, found) in out.iter().enumerate() {
            let expected = 2.0 * channel as f32;
            assert!(
                (found.to_f32() - expected).abs() <= 1e-3 * expected,
                "{simd}: channel {channel} is {found}"
            );
        }
        let mut grad_weight = [f32::NAN];
        let gradients = Gradients {
            attention_weights: Some(ViewMut::new(&mut grad_weight, &[1, 1, 1, 1, 1])),
            ..Gradients::default()
        };
        msda::backward(
            &backend,
            inputs,
            View::new(&grad_out, &[1, 1, CHANNELS]),
            gradients,
        )
        .unwrap();
        let expected = (CHANNELS * (CHANNELS - 1) / 2) as f32;
        assert!(
            (grad_weight[0] - expected).abs() <= 1e-3 * expected,
            "{simd}: {grad_weight:?}"
        );
    }
}
