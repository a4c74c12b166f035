//! The error for an invalid use of the command line.

/// The error for an invalid use of the command line, such as flags that cannot be combined.
#[derive(Debug)]
pub(crate) struct WrongUse(pub(crate) String);

impl std::fmt::Display for WrongUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUse {}
