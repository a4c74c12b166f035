//! Retention in the notation that nwaku's operators use: `time:2592000;size:10GB;capacity:1000000`.

use hark_archive::retention::{RetentionPolicy, RetentionRule};

use super::NS_PER_S;

/// A policy, and the text from which it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    text: String,
    /// The policy that the text describes.
    pub policy: RetentionPolicy,
}

impl Default for Retention {
    /// Keeps messages for 30 days.
    fn default() -> Self {
        let rules = vec![RetentionRule { older_than_s: 30 * 86_400, ..RetentionRule::default() }];
        let policy = RetentionPolicy { rules, ..for_ever() };
        Self { text: "time:2592000".into(), policy }
    }
}

fn for_ever() -> RetentionPolicy {
    RetentionPolicy { units_per_s: NS_PER_S, ..RetentionPolicy::default() }
}

impl std::fmt::Display for Retention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// The error for a part of a text that is not a retention rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of time:SECONDS, size:10GB and capacity:MESSAGES")]
pub struct RetentionTextError(String);

impl std::str::FromStr for Retention {
    type Err = RetentionTextError;

    /// Reads policies that are separated by `;`. All of them apply. An empty text or `none` keeps
    /// all messages.
    fn from_str(text: &str) -> Result<Self, RetentionTextError> {
        let mut policy = for_ever();
        for part in text.split(';').map(str::trim).filter(|part| !["", "none"].contains(part)) {
            let wrong = || RetentionTextError(part.to_owned());
            let (name, value) = part.split_once(':').ok_or_else(wrong)?;
            let number = |text: &str| {
                text.trim().parse::<u64>().ok().filter(|number| *number > 0).ok_or_else(wrong)
            };
            match name.trim() {
                "time" => {
                    let older_than_s = number(value)?;
                    policy.rules = vec![RetentionRule { older_than_s, ..RetentionRule::default() }];
                }
                "capacity" => policy.records_max = Some(number(value)?),
                "size" => {
                    let value = value.trim().to_ascii_uppercase();
                    let (digits, unit) = if let Some(digits) = value.strip_suffix("GB") {
                        (digits, 1 << 30)
                    } else if let Some(digits) = value.strip_suffix("MB") {
                        (digits, 1 << 20)
                    } else {
                        return Err(wrong());
                    };
                    let size = digits.trim().parse::<f64>().ok().filter(|size| *size > 0.0);
                    policy.bytes_max = Some((size.ok_or_else(wrong)? * f64::from(unit)) as u64);
                }
                _ => return Err(wrong()),
            }
        }
        Ok(Self { text: text.into(), policy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_nwaku_writes_them() {
        let read = |text: &str| {
            let policy = text.parse::<Retention>().unwrap().policy;
            let time = policy.rules.first().map(|rule| rule.older_than_s);
            (time, policy.bytes_max, policy.records_max)
        };
        assert_eq!(read(""), (None, None, None));
        assert_eq!(read("none"), (None, None, None));
        assert_eq!(read("time:172800"), (Some(172_800), None, None));
        assert_eq!(read("size:1.5GB"), (None, Some(3 << 29), None));
        let all = (Some(3_600), Some(25 << 20), Some(100));
        assert_eq!(read("time:3600; size:25mb ;capacity:100"), all);
        for wrong in ["time", "time:0", "time:1d", "size:10", "size:GB", "size:-1GB", "age:7"] {
            let said = wrong.parse::<Retention>().unwrap_err().to_string();
            assert!(said.contains(wrong), "{said}");
        }
        let default = Retention::default();
        assert_eq!(default.to_string().parse(), Ok(default));
    }
}
