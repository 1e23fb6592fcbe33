//! What the sampling points of one image touch.

use fourtap::msda::{Level, Sizes};
use serde::Serialize;

/// Where the points of the first image lie; the others have points of the same kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PixelCoverage {
    /// Share of the neighbours of samples that lie inside their level.
    pub in_bounds: f64,
    /// Share of the pixels of each level, head by head, that some sample reads.
    pub levels: Vec<f64>,
    /// The same of all of `value`.
    pub value: f64,
}

impl PixelCoverage {
    /// Counted from the points (x, y) of an image, in the order of `sampling_locations`.
    pub fn by(points: impl Iterator<Item = [f32; 2]>, sizes: &Sizes, levels: &[Level]) -> Self {
        let read = points.enumerate().map(|(index, [x, y])| {
            let level = index / sizes.points % sizes.levels;
            let head = index / (sizes.points * sizes.levels) % sizes.heads;
            (head, neighbours(&levels[level], x, y))
        });
        PixelCoverage::of_rows(read, 4, sizes, levels)
    }

    /// Counted from the head of each row of samples and the pixels that it reads, of at most `possible`.
    pub fn of_rows(
        rows: impl Iterator<Item = (usize, impl IntoIterator<Item = usize>)>,
        possible: usize,
        sizes: &Sizes,
        levels: &[Level],
    ) -> Self {
        let mut touched = vec![false; sizes.heads * sizes.pixels];
        let (mut inside, mut neighbours) = (0u64, 0u64);
        for (head, pixels) in rows {
            for pixel in pixels {
                touched[head * sizes.pixels + pixel] = true;
                inside += 1;
            }
            neighbours += possible as u64;
        }
        let count = |level: &Level| {
            let heads = touched.chunks(sizes.pixels.max(1));
            let of_level = |head: &[bool]| {
                let pixels = &head[level.start..level.start + level.pixels()];
                pixels.iter().filter(|&&touched| touched).count()
            };
            heads.map(of_level).sum::<usize>()
        };
        let counts: Vec<usize> = levels.iter().map(count).collect();
        let share = |count: usize, of: usize| count as f64 / (of as f64).max(1.0);
        PixelCoverage {
            in_bounds: inside as f64 / neighbours.max(1) as f64,
            levels: levels
                .iter()
                .zip(&counts)
                .map(|(level, &count)| share(count, sizes.heads * level.pixels()))
                .collect(),
            value: share(counts.iter().sum(), touched.len()),
        }
    }
}

/// The pixels, counted over all levels, that a sample of a level reads.
fn neighbours(level: &Level, x: f32, y: f32) -> impl Iterator<Item = usize> {
    let (width, height) = (level.width, level.height);
    let (start, px, py) = (
        level.start,
        x.mul_add(width as f32, -0.5),
        y.mul_add(height as f32, -0.5),
    );
    let takes_part = px > -1.0 && px < width as f32 && py > -1.0 && py < height as f32;
    let (left, top) = (px.floor() as i64, py.floor() as i64);
    let inside = move |at: i64, size: usize| usize::try_from(at).ok().filter(|&at| at < size);
    [(0, 0), (0, 1), (1, 0), (1, 1)]
        .into_iter()
        .filter(move |_| takes_part)
        .filter_map(move |(down, right)| {
            let row = inside(top + down, height)?;
            let column = inside(left + right, width)?;
            Some(start + row * width + column)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourtap::msda::Levels;

    fn found(x: f32, y: f32) -> Vec<usize> {
        let levels = Levels::packed(&[(1, 2), (2, 3)]).unwrap();
        neighbours(&levels[1], x, y).collect()
    }

    #[test]
    fn a_sample_reads_the_pixels_around_it() {
        assert_eq!(found(0.5, 0.5), [3, 4, 6, 7]);
        assert_eq!(found(0.0, 0.0), [2]);
        assert_eq!(found(1.0, 1.0), [7]);
    }

    #[test]
    fn shares_are_of_each_level_and_head() {
        let levels = Levels::packed(&[(1, 2), (2, 3)]).unwrap();
        let sizes = Sizes {
            images: 1,
            pixels: 8,
            heads: 2,
            channels: 1,
            queries: 1,
            levels: 2,
            points: 1,
        };
        // The first head reads one pixel of the first level and four of the second, the other head nothing.
        let points = [[0.0, 0.5], [0.5, 0.5], [9.0, 9.0], [9.0, 9.0]];
        let touched = PixelCoverage::by(points.into_iter(), &sizes, &levels);
        assert_eq!(touched.in_bounds, 5.0 / 16.0);
        assert_eq!(touched.levels, [0.25, 4.0 / 12.0]);
        assert_eq!(touched.value, 5.0 / 16.0);
    }

    #[test]
    fn points_outside_read_nothing() {
        for (x, y) in [
            (-0.5, 0.5),
            (0.5, 1.5),
            (f32::NAN, 0.5),
            (f32::INFINITY, 0.5),
        ] {
            assert!(found(x, y).is_empty(), "{x}, {y}");
        }
    }
}
