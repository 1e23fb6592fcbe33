//! What lies where in the scratch memory of a call.

use super::conversion::ConversionPlan;
use super::mask::MaskPlan;

/// Offsets in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Workspace {
    /// Maximum and sum of each row of blocks that share keys.
    pub states: usize,
    /// Their outputs.
    pub partial: usize,
    /// A mask as kernels read it.
    pub mask: usize,
    /// What is known of each of its tiles.
    pub mask_states: usize,
    /// Query, key and value of f32 as kernels multiply them.
    pub pieces: [usize; 3],
    /// What the numbers of each of their tiles are counted in.
    pub units: [usize; 3],
    /// All of it.
    pub bytes: usize,
}

/// As memory is allocated.
const ALIGNMENT: usize = 256;

impl Workspace {
    /// For that many rows of partial results, each of `head_v` channels.
    pub fn new(
        partial_rows: usize,
        head_v: u32,
        mask: Option<&MaskPlan>,
        conversion: Option<&ConversionPlan>,
    ) -> Self {
        let mut bytes = 0;
        let mut place = |needed: usize| {
            let at = bytes;
            bytes += needed.next_multiple_of(ALIGNMENT);
            at
        };
        let states = place(partial_rows * size_of::<[f32; 2]>());
        let partial = place(partial_rows * head_v as usize * size_of::<f32>());
        let of_mask = mask.map_or(0, |mask| mask.bytes);
        let of_states = mask.map_or(0, |mask| mask.state_bytes);
        let (mask, mask_states) = (place(of_mask), place(of_states));
        let converted = |index: usize| conversion.map_or([0; 2], |it| it.tensors[index].bytes());
        let mut pieces = [0; 3];
        let mut units = [0; 3];
        for index in 0..3 {
            [pieces[index], units[index]] = converted(index).map(&mut place);
        }
        Workspace {
            states,
            partial,
            mask,
            mask_states,
            pieces,
            units,
            bytes,
        }
    }
}
