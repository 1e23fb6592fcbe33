//! More than 2^32 elements: offsets do not wrap.

use fourtap::cuda::driver::Buffer;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{self, Inputs, Levels};
use fourtap::{Backend, DType, Layout, View, f16};

use crate::gpu;
use crate::tensors::OnDevice;

/// The centre of the last pixel of the last image is read.
fn last_pixel(height: usize, width: usize, images: usize, channels: usize, wanted: KernelChoice) {
    let cuda = gpu::device();
    let cuda = cuda.with_msda(wanted);
    let levels = Levels::packed(&[(height, width)]).unwrap();
    let elements = images * levels.pixels() * channels;
    assert!(elements > 1 << 32);
    let free = cuda.context().memory_info().unwrap().free;
    if free < elements * 2 + (1 << 30) {
        eprintln!(
            "skipped: {} GiB needed, {} free",
            elements >> 29,
            free >> 30
        );
        return;
    }
    let mut value = Buffer::zeroed(cuda.context(), elements * 2).unwrap();
    let last: Vec<f16> = (0..channels).map(|c| f16::from_f32(c as f32)).collect();
    // Copies to the end through a buffer that begins there.
    let source = Buffer::from_slice(cuda.context(), &last).unwrap();
    value
        .copy_part_from((elements - channels) * 2, &source, cuda.stream())
        .unwrap();
    let layout = Layout::contiguous(DType::F16, &[images, levels.pixels(), 1, channels]);
    let centre = [1.0 - 0.5 / width as f32, 1.0 - 0.5 / height as f32];
    let locations: Vec<f32> = centre.iter().copied().cycle().take(2 * images).collect();
    let locations = OnDevice::new(&cuda, &locations, &[images, 1, 1, 1, 1, 2]);
    let weights = OnDevice::new(&cuda, &vec![2.0f32; images], &[images, 1, 1, 1, 1]);
    let mut out = OnDevice::poisoned(&cuda, DType::F16, &[images, 1, channels]);
    let inputs = Inputs {
        // SAFETY: the buffer holds so many elements and outlives the call's work.
        value: unsafe { View::on_cuda(cuda.ordinal(), value.as_ptr(), layout) },
        levels: (&levels).into(),
        sampling_locations: locations.view(),
        attention_weights: weights.view(),
    };
    msda::forward(&Backend::Cuda(cuda), inputs, out.view_mut()).unwrap();
    gpu::wait(&cuda);
    let found = out.buffer.to_vec::<f16>().unwrap();
    for (index, found) in found.iter().enumerate() {
        let (image, channel) = (index / channels, index % channels);
        let expected = if image + 1 == images {
            2.0 * channel as f32
        } else {
            0.0
        };
        assert!(
            (found.to_f32() - expected).abs() <= 1e-2 * expected,
            "{wanted:?}: image {image}, channel {channel} is {found}, expected {expected}"
        );
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn one_image_of_more_than_four_billion_elements() {
    last_pixel(65_536, 1_025, 1, 64, KernelChoice::Channel);
}

#[test]
#[ignore = "needs a CUDA device"]
fn many_images_of_together_more_than_four_billion_elements() {
    last_pixel(1_024, 1_025, 65, 64, KernelChoice::Gather);
}
