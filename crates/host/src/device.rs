//! Block devices.

use crate::error::Malformed;
use std::fmt;
use std::str::FromStr;

/// A block device by its numbers: `8:0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// Major number: the driver.
    pub major: u32,
    /// Minor number: the device.
    pub minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for Device {
    type Err = Malformed;
    fn from_str(text: &str) -> std::result::Result<Self, Malformed> {
        let number = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits)
        };
        let parsed = text
            .split_once(':')
            .and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
        match parsed {
            Some((major, minor)) => Ok(Self { major, minor }),
            None => Err(Malformed::new("a device such as \"8:0\"", text)),
        }
    }
}
