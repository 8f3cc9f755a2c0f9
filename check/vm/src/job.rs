//! What the guest is to do, as both sides know it: words `vm.key=value` on the kernel's command
//! line.
//!
//! The kernel takes words with a dot for parameters of modules and leaves them alone. Values have
//! no blanks.

use crate::Outcome;
use std::{collections::BTreeMap, fmt, str::FromStr};

const PREFIX: &str = "vm.";

/// Keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job(BTreeMap<String, String>);

impl Job {
    /// A job of this name.
    pub(crate) fn new(name: &str) -> Self {
        Self(BTreeMap::new()).with("job", name)
    }

    pub(crate) fn with(mut self, key: &str, value: impl fmt::Display) -> Self {
        self.0.insert(key.to_owned(), value.to_string());
        self
    }

    pub(crate) fn from_command_line(line: &str) -> Self {
        let pairs = line.split_whitespace().filter_map(|word| word.strip_prefix(PREFIX)?.split_once('='));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// A value that must be there.
    pub(crate) fn get<T: FromStr>(&self, key: &str) -> Outcome<T> {
        self.find(key)?.ok_or_else(|| format!("the job says nothing of {key}"))
    }

    /// A value that may be there.
    pub(crate) fn find<T: FromStr>(&self, key: &str) -> Outcome<Option<T>> {
        let Some(text) = self.0.get(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("the job's {key} cannot be {text}"))
    }
}

impl fmt::Display for Job {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(key, value)| write!(formatter, "{PREFIX}{key}={value} "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_the_command_line() {
        let job = Job::new("recover").with("sqlite", 17).with("fs", "xfs");
        let line = format!("console=ttyS0 {job}quiet");
        assert_eq!(Job::from_command_line(&line), job);
        assert_eq!(job.get("sqlite"), Ok(17));
        assert_eq!(job.find::<u64>("without"), Ok(None));
        assert!(job.get::<u64>("fs").unwrap_err().contains("cannot be xfs"));
        assert!(job.get::<u64>("pg").is_err());
    }
}
