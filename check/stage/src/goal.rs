//! A figure that is held against a goal: what the bench tells as JSON, and the report reads.

use serde::{Deserialize, Serialize};

/// One figure held against its goal.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct Check {
    /// The unit of the value, or what it is compared with, as "of the limit".
    pub what: String,
    /// The figure.
    pub value: f64,
    /// The goal.
    pub goal: f64,
    /// Tells whether the value has to be at most the goal; otherwise it has to be at least that.
    pub at_most: bool,
    /// Tells whether the goal is met.
    pub ok: bool,
}

impl Check {
    /// A value that has to be at most `goal`.
    #[must_use]
    pub fn at_most(what: &str, value: f64, goal: f64) -> Self {
        Self { what: what.to_owned(), value, goal, at_most: true, ok: value <= goal }
    }

    /// A value that has to be at least `goal`.
    #[must_use]
    pub fn at_least(what: &str, value: f64, goal: f64) -> Self {
        Self { what: what.to_owned(), value, goal, at_most: false, ok: value >= goal }
    }

    /// The figure, its goal and the verdict, in one line for people.
    #[must_use]
    pub fn text(&self) -> String {
        let relation = if self.at_most { "<=" } else { ">=" };
        let verdict = if self.ok { "ok" } else { "SHORT" };
        format!("{} {} ({relation} {}) {verdict}", short(self.value), self.what, short(self.goal))
    }
}

fn short(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
