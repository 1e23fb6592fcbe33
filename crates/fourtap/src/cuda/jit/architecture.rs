//! The names of GPU architectures, and which device runs code for which.

use std::fmt;
use std::str::FromStr;

use super::JitError;

/// Integrated (Tegra) chips: only code for exactly their number is promised to run on them.
const INTEGRATED: [(u32, u32); 6] = [(5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (10, 1)];

/// Which devices run machine code for an architecture, and which instructions it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// No suffix: the common instructions.
    Plain,
    /// Suffix `f`: also those of the family.
    Family,
    /// Suffix `a`: also those of this one chip.
    Exact,
}

/// What machine code is compiled for.
///
/// ```
/// use fourtap::cuda::jit::Architecture;
/// let hopper: Architecture = "sm_90a".parse()?;
/// assert_eq!(hopper, Architecture::of_device(9, 0));
/// assert!(hopper.runs_on(9, 0) && !hopper.runs_on(10, 0));
/// # Ok::<(), fourtap::cuda::jit::JitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Architecture {
    major: u32,
    minor: u32,
    feature: Feature,
}

impl Architecture {
    /// Stands for none, where a compiler names no architecture at all.
    pub(super) const NONE: Architecture = Architecture::new(0, 0, Feature::Plain);

    /// The architecture `sm_<major><minor>` and a suffix.
    pub const fn new(major: u32, minor: u32, feature: Feature) -> Self {
        Architecture {
            major,
            minor,
            feature,
        }
    }

    /// What to compile for on a device of this compute capability.
    ///
    /// Blackwell chips get their family's first member, so that one compiled kernel serves 10.0 and 10.3, another
    /// 12.0 and 12.1.
    pub const fn of_device(major: u32, minor: u32) -> Self {
        match (major, minor) {
            (9, 0) => Self::new(9, 0, Feature::Exact),
            (10, 1) => Self::new(10, 1, Feature::Plain),
            (10, _) => Self::new(10, 0, Feature::Family),
            (12, _) => Self::new(12, 0, Feature::Family),
            _ => Self::new(major, minor, Feature::Plain),
        }
    }

    /// Whether a device of this compute capability runs machine code for this architecture.
    pub fn runs_on(self, major: u32, minor: u32) -> bool {
        let exact = (self.major, self.minor) == (major, minor);
        let integrated =
            INTEGRATED.contains(&(self.major, self.minor)) || INTEGRATED.contains(&(major, minor));
        match self.feature {
            Feature::Exact => exact,
            _ if integrated => exact,
            Feature::Plain | Feature::Family => self.major == major && self.minor <= minor,
        }
    }

    /// The first number of the compute capability.
    pub const fn major(self) -> u32 {
        self.major
    }

    /// The second number of the compute capability.
    pub const fn minor(self) -> u32 {
        self.minor
    }

    /// What the suffix says.
    pub const fn feature(self) -> Feature {
        self.feature
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.feature {
            Feature::Plain => "",
            Feature::Family => "f",
            Feature::Exact => "a",
        };
        f.pad(&format!("sm_{}{}{suffix}", self.major, self.minor))
    }
}

impl FromStr for Architecture {
    type Err = JitError;

    fn from_str(text: &str) -> Result<Self, JitError> {
        parse(text).ok_or_else(|| JitError::ArchitectureName {
            found: text.to_owned(),
        })
    }
}

fn parse(text: &str) -> Option<Architecture> {
    let rest = text.strip_prefix("sm_")?;
    let (digits, feature) = match rest.as_bytes().last()? {
        b'a' => (&rest[..rest.len() - 1], Feature::Exact),
        b'f' => (&rest[..rest.len() - 1], Feature::Family),
        _ => (rest, Feature::Plain),
    };
    // Two or three digits, no sign and no leading zero, so that a name and its architecture are one to one.
    let sound = matches!(digits.len(), 2 | 3)
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0');
    let number: u32 = sound.then(|| digits.parse().ok())??;
    Some(Architecture::new(number / 10, number % 10, feature))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arch(text: &str) -> Architecture {
        text.parse().unwrap()
    }

    #[test]
    fn names_survive_the_round_trip() {
        for name in [
            "sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100f", "sm_121a",
        ] {
            assert_eq!(arch(name).to_string(), name);
        }
        assert_eq!(format!("{:>8}|", arch("sm_80")), "   sm_80|");
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "",
            "sm_",
            "sm_a",
            "sm_8",
            "80",
            "sm_080",
            "sm_8x",
            "sm_90b",
            "sm_90aa",
            "sm_1234",
            "SM_80",
            "sm_+80",
            " sm_80",
            "sm_80 ",
            "sm_8é",
            "compute_80",
        ] {
            let found = name.to_owned();
            assert_eq!(
                name.parse::<Architecture>(),
                Err(JitError::ArchitectureName { found }),
                "{name}"
            );
        }
    }

    #[test]
    fn code_runs_where_cuda_says() {
        let devices = [
            (7, 5),
            (8, 0),
            (8, 6),
            (8, 7),
            (8, 9),
            (9, 0),
            (10, 0),
            (10, 1),
            (10, 3),
            (12, 0),
            (12, 1),
        ];
        for (name, expected) in [
            ("sm_80", &[(8, 0), (8, 6), (8, 9)][..]),
            ("sm_86", &[(8, 6), (8, 9)]),
            ("sm_87", &[(8, 7)]),
            ("sm_89", &[(8, 9)]),
            ("sm_90", &[(9, 0)]),
            ("sm_90a", &[(9, 0)]),
            ("sm_100", &[(10, 0), (10, 3)]),
            ("sm_100a", &[(10, 0)]),
            ("sm_100f", &[(10, 0), (10, 3)]),
            ("sm_103f", &[(10, 3)]),
            ("sm_120f", &[(12, 0), (12, 1)]),
            ("sm_121", &[(12, 1)]),
        ] {
            let found: Vec<_> = devices
                .into_iter()
                .filter(|&(major, minor)| arch(name).runs_on(major, minor))
                .collect();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn each_device_runs_what_is_compiled_for_it() {
        for major in 5..20 {
            for minor in 0..10 {
                assert!(Architecture::of_device(major, minor).runs_on(major, minor));
            }
        }
        assert_eq!(Architecture::of_device(9, 0), arch("sm_90a"));
        assert_eq!(Architecture::of_device(10, 3), arch("sm_100f"));
        assert_eq!(Architecture::of_device(12, 1), arch("sm_120f"));
        assert_eq!(Architecture::of_device(8, 6), arch("sm_86"));
    }
}
