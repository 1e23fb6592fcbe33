//! A mask that owns its memory.

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

use crate::bool_view::BoolView;
use crate::verify::case::pick;

/// `value_mask`, in any layout.
#[derive(Clone, Debug)]
pub struct PaddingMask {
    bytes: Vec<u8>,
    shape: [usize; 2],
    strides: [isize; 2],
}

impl PaddingMask {
    /// Some pixels of each image; with gaps, between images only or between pixels too, or the same for every image.
    pub(super) fn random(rng: &mut Xoshiro256PlusPlus, images: usize, pixels: usize) -> Self {
        let (by_pixel, gap) = (pick(rng, &[1, 1, 1, 3]), pick(rng, &[0, 0, 5]));
        let row = pixels * by_pixel + gap;
        let by_image = if rng.random_bool(0.1) { 0 } else { row };
        let part = pick(rng, &[0.0, 0.1, 0.3, 1.0]);
        let byte = |_| match rng.random_bool(part) {
            // Any byte but 0 is true.
            true => rng.random_range(1..=255),
            false => 0,
        };
        PaddingMask {
            bytes: (0..images * row).map(byte).collect(),
            shape: [images, pixels],
            strides: [by_image as isize, by_pixel as isize],
        }
    }

    /// To read.
    pub fn view(&self) -> BoolView<'_> {
        // SAFETY: there are `images` rows with all pixels, and they live as long as the view.
        unsafe { BoolView::from_raw(self.bytes.as_ptr(), &self.shape, &self.strides) }
    }

    /// Whether a pixel of an image is masked.
    pub fn get(&self, image: usize, pixel: usize) -> bool {
        let [by_image, by_pixel] = self.strides.map(|stride| stride as usize);
        self.bytes[image * by_image + pixel * by_pixel] != 0
    }

    /// The memory it is in.
    #[cfg(feature = "cuda")]
    pub(super) fn memory(&self) -> &[u8] {
        &self.bytes
    }

    /// The same mask in a copy of its memory on a device.
    ///
    /// # Safety
    /// The copy is there, and outlives the view.
    #[cfg(feature = "cuda")]
    pub(super) unsafe fn view_on<'a>(&self, ordinal: usize, address: u64) -> BoolView<'a> {
        // SAFETY: as the caller promises.
        unsafe { BoolView::on_cuda(ordinal, address, &self.shape, &self.strides) }
    }
}
