//! From numbers to places.

/// What an axis shows at most: beyond this many powers of ten there is nothing to read off.
const MOST_DECADES: f64 = 600.0;

/// Places in proportion to logarithms.
#[derive(Clone, Copy, Debug)]
pub struct LogScale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl LogScale {
    /// So that all positive `numbers` lie between `from` and `to`, with room at both ends.
    pub fn around(numbers: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for number in numbers {
            if number.is_finite() && number > 0.0 {
                low = low.min(number.log10());
                high = high.max(number.log10());
            }
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let room = (0.06 * (high - low)).max(0.08);
        LogScale {
            low: low - room,
            high: high + room,
            from,
            to,
        }
    }

    /// Where a number lies; none if it is not positive.
    pub fn at(&self, number: f64) -> Option<f64> {
        (number.is_finite() && number > 0.0).then(|| self.at_log(number.log10()))
    }

    /// Where the number with this logarithm lies.
    pub fn at_log(&self, log: f64) -> f64 {
        self.from + (log - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Logarithms of the ends.
    pub fn range(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// Round numbers along it, about as many as `room` pixels apart.
    pub fn ticks(&self, room: f64) -> Vec<f64> {
        let decades = (self.high - self.low).clamp(1e-9, MOST_DECADES);
        let most = ((self.to - self.from).abs() / room).max(2.0);
        let steps: &[f64] = match most / decades {
            density if density >= 9.0 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
            density if density >= 5.0 => &[1.0, 2.0, 3.0, 5.0, 7.0],
            density if density >= 3.0 => &[1.0, 2.0, 5.0],
            density if density >= 2.0 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let stride = (decades / most).ceil().max(1.0) as usize;
        let powers = self.low.floor() as i32..=self.high.ceil() as i32;
        let numbers = powers
            .step_by(stride)
            .flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        numbers
            .filter(|number| number.is_finite() && *number > 0.0)
            .filter(|number| (self.low..=self.high).contains(&number.log10()))
            .collect()
    }
}

/// Places in proportion to numbers.
#[derive(Clone, Copy, Debug)]
pub struct LinearScale {
    /// The number at `from`.
    pub low: f64,
    /// The number at `to`.
    pub high: f64,
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
}

impl LinearScale {
    /// Where a number lies.
    pub fn at(&self, number: f64) -> f64 {
        self.from + (number - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Round numbers along it.
    pub fn ticks(&self, room: f64) -> Vec<f64> {
        let most = ((self.to - self.from).abs() / room).max(2.0);
        let rough = (self.high - self.low) / most;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(1.0);
        let first = (self.low / step).ceil() as i64;
        (first..)
            .map(|count| count as f64 * step)
            .take_while(|number| *number <= self.high)
            .take(64)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_lie_inside() {
        for (low, high) in [(1.0, 9.0), (0.9, 40.0), (0.003, 120.0), (1e-300, 1e300)] {
            let scale = LogScale::around([low, high], 0.0, 600.0);
            let ticks = scale.ticks(60.0);
            assert!((2..=20).contains(&ticks.len()), "{low} {high}: {ticks:?}");
            for tick in ticks {
                let place = scale.at(tick).unwrap();
                assert!((0.0..=600.0).contains(&place), "{tick}");
            }
        }
        let scale = LinearScale {
            low: -3.1,
            high: 12.0,
            from: 0.0,
            to: 300.0,
        };
        assert_eq!(scale.ticks(60.0), [0.0, 5.0, 10.0]);
    }

    #[test]
    fn nothing_lies_at_what_has_no_logarithm() {
        let scale = LogScale::around([0.0, -1.0, f64::INFINITY], 0.0, 100.0);
        for number in [0.0, -1.0, f64::INFINITY, f64::NAN] {
            assert_eq!(scale.at(number), None);
        }
        assert!(scale.at(1.0).unwrap().is_finite());
    }
}
