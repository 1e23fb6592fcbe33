//! Small levels kept in shared memory: which ones, and when it pays off.

use std::ops::Range;

use super::arguments::Schedule;
use super::specialised::{Gather, MOST_KEPT_BYTES};
use crate::cuda::device_size::DeviceSize;
use crate::msda::Levels;

/// Minimum rounds of a block per turn for levels to be kept: copying them and waiting for the last warp take time. It
/// was measured to pay off at 14 rounds; the break-even point was not measured.
const LEAST_ROUNDS: u32 = 8;

/// Levels kept in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedLevels {
    /// One bit per level.
    pub levels: u32,
    /// Their size.
    pub bytes: u32,
}

impl SharedLevels {
    /// The levels to keep, for a kernel that can, on this schedule; `None` unless the case is like those measured to pay off
    /// on an H200: many rows, and half of the samples on levels that fit.
    pub(super) fn where_it_pays(
        levels: &Levels,
        gather: &Gather,
        schedule: &Schedule,
        device: DeviceSize,
    ) -> Option<Self> {
        let half = |kept: &SharedLevels| 2 * kept.levels.count_ones() >= gather.levels;
        let pays = SharedLevels::can_pay(gather, schedule, device);
        SharedLevels::of(levels, gather, device).filter(|kept| pays && half(kept))
    }

    /// Whether there are rows and memory enough for that.
    pub(super) fn can_pay(gather: &Gather, schedule: &Schedule, device: DeviceSize) -> bool {
        let rows = LEAST_ROUNDS * gather.rows_per_block();
        let many = schedule.share >= rows && schedule.plane >= 2 * rows;
        many && device.shared_bytes >= 2 * MOST_KEPT_BYTES
    }

    /// The levels from number `first` on; `None` unless all of them can be kept in so many bytes.
    pub(super) fn all_from(
        first: usize,
        levels: &Levels,
        gather: &Gather,
        room: u32,
    ) -> Option<Self> {
        let numbers = first..levels.len();
        let kept = SharedLevels::fitting(numbers.clone(), levels, gather, room)?;
        (kept.levels.count_ones() as usize == numbers.len()).then_some(kept)
    }

    /// As many of the smallest levels as fit; `None` if not even one does.
    pub(super) fn of(levels: &Levels, gather: &Gather, device: DeviceSize) -> Option<Self> {
        let room = gather.room_for_levels(device.shared_bytes)?;
        SharedLevels::fitting(0..levels.len(), levels, gather, room)
    }

    /// The same among those with these numbers.
    fn fitting(numbers: Range<usize>, levels: &Levels, gather: &Gather, room: u32) -> Option<Self> {
        let pixel = gather.channels as usize * gather.types.value.size();
        // In a level of one column, pixels have no right-hand neighbour.
        let mut sizes: Vec<(usize, usize)> = levels
            .iter()
            .enumerate()
            .filter(|(number, level)| {
                numbers.contains(number) && level.width > 1 && level.height > 0
            })
            .map(|(number, level)| (level.pixels().saturating_mul(pixel), number))
            .collect();
        sizes.sort_unstable();
        let mut kept = SharedLevels {
            levels: 0,
            bytes: 0,
        };
        for (bytes, number) in sizes {
            let Some(total) = u32::try_from(bytes)
                .ok()
                .and_then(|bytes| bytes.checked_add(kept.bytes))
                .filter(|&total| total <= room)
            else {
                break;
            };
            kept.bytes = total;
            kept.levels |= 1 << number;
        }
        (kept.levels != 0).then_some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::device_size::H200;
    use crate::cuda::msda::schedule::{Dealing, schedule};
    use crate::cuda::msda::{Kind, Types};
    use crate::dtype::DType;
    use crate::msda::Sizes;

    fn kind(levels: usize) -> Kind {
        Kind {
            sampling: Default::default(),
            types: Types {
                value: DType::F16,
                locations: DType::F32,
                weights: DType::F32,
            },
            heads: 1,
            channels: 32,
            levels,
            points: 8,
        }
    }

    fn kept(shapes: &[(usize, usize)], queries: usize, device: DeviceSize) -> Option<SharedLevels> {
        let levels = Levels::packed(shapes).unwrap();
        let sizes = Sizes {
            images: 48,
            pixels: levels.pixels(),
            heads: 1,
            channels: 32,
            queries,
            levels: levels.len(),
            points: 8,
        };
        let gather = kind(levels.len()).gather(4, 1).keeping()?;
        let (schedule, _) = schedule(&sizes, &gather, Dealing::new(device));
        SharedLevels::where_it_pays(&levels, &gather, &schedule, device)
    }

    #[test]
    fn as_many_of_the_smallest_as_fit() {
        let pyramid = [(92, 160), (46, 80), (23, 40), (12, 20)];
        let found = kept(&pyramid, 15_422, H200).unwrap();
        assert_eq!((found.levels, found.bytes), (0b1100, (920 + 240) * 64));
        let mut upside_down = pyramid;
        upside_down.reverse();
        assert_eq!(kept(&upside_down, 15_422, H200).unwrap().levels, 0b0011);
    }

    #[test]
    fn all_from_a_level_on_or_none() {
        let kept = |shapes: &[(usize, usize)]| {
            let levels = Levels::packed(shapes).unwrap();
            let gather = kind(4).forward_matrix(4).unwrap();
            SharedLevels::all_from(2, &levels, &gather, 80 << 10)
        };
        let found = kept(&[(92, 160), (46, 80), (23, 40), (12, 20)]).unwrap();
        assert_eq!((found.levels, found.bytes), (0b1100, (920 + 240) * 64));
        // The first two are smaller, but not wanted.
        assert_eq!(kept(&[(2, 2), (2, 2), (23, 40), (12, 20)]).unwrap(), found);
        for other in [(240, 1), (0, 20), (92, 160)] {
            assert_eq!(
                kept(&[(92, 160), (46, 80), (23, 40), other]),
                None,
                "{other:?}"
            );
        }
    }

    #[test]
    fn not_where_it_does_not_pay() {
        let pyramid = [(92, 160), (46, 80), (23, 40), (12, 20)];
        assert_eq!(kept(&pyramid, 300, H200), None, "few rows");
        let large = [(92, 160), (46, 80), (46, 80), (12, 20)];
        assert_eq!(kept(&large, 15_422, H200), None, "a quarter of the samples");
        let narrow = [(92, 160), (46, 80), (920, 1), (240, 1)];
        assert_eq!(kept(&narrow, 15_422, H200), None, "one column");
        let small = DeviceSize {
            shared_bytes: 101_376,
            ..H200
        };
        assert_eq!(kept(&pyramid, 15_422, small), None, "little fast memory");
    }
}
