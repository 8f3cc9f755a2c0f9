//! What a figure of the report is: what it shows, what the seed found, and what is expected of it.
//! Its data are records ([`crate::record`]).

/// Which values are good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// What the numbers of a figure count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// Bytes each second.
    Rate,
    /// Nanoseconds.
    Time,
    /// Operations each second.
    Operations,
    /// Times of something else.
    Factor,
}

/// How a figure is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A bar for each series.
    Bars,
    /// For each x a group of bars, one for each series.
    Groups,
    /// Lines along x, which is a number of bytes.
    Bytes,
    /// Lines along x, which is a count. Both axes are logarithmic.
    Growth,
}

/// A figure.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// Its name in records and links.
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) kind: Kind,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    /// What x is; empty for [`Kind::Bars`].
    pub(crate) x: &'static str,
    /// The series that others are held against.
    pub(crate) baseline: &'static str,
    /// What was measured, in plain words.
    pub(crate) measured: String,
    /// What the seed found.
    pub(crate) seed: String,
    /// Why what is found here may differ.
    pub(crate) differs: String,
    pub(crate) goals: Vec<Goal>,
}

/// A value that a series shall reach, as a multiple of another one.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    pub(crate) series: &'static str,
    pub(crate) against: &'static str,
    /// The x at which both are looked at; empty for [`Kind::Bars`].
    pub(crate) x: &'static str,
    /// Of rates the series' multiple of the other one; of times the other one's multiple of it.
    pub(crate) at_least: f64,
    /// Where the goal comes from.
    pub(crate) source: &'static str,
}

/// A value with its unit.
pub(crate) fn shown(value: f64, unit: Unit) -> String {
    let digits = |value: f64, unit: &str| {
        let digits = if value >= 100.0 {
            0
        } else if value >= 10.0 {
            1
        } else {
            2
        };
        format!("{value:.digits$} {unit}").trim_end().to_owned()
    };
    match unit {
        _ if value == 0.0 => "0".to_owned(),
        Unit::Rate if value >= 1e9 => digits(value / 1e9, "GB/s"),
        Unit::Rate if value >= 1e6 => digits(value / 1e6, "MB/s"),
        Unit::Rate => digits(value / 1e3, "kB/s"),
        Unit::Time if value >= 1e9 => digits(value / 1e9, "s"),
        Unit::Time if value >= 1e6 => digits(value / 1e6, "ms"),
        Unit::Time if value >= 1e3 => digits(value / 1e3, "µs"),
        Unit::Time => digits(value, "ns"),
        Unit::Operations if value >= 1e6 => digits(value / 1e6, "M/s"),
        Unit::Operations if value >= 1e3 => digits(value / 1e3, "k/s"),
        Unit::Operations => digits(value, "/s"),
        Unit::Factor => digits(value, "×"),
    }
}

/// A number of bytes as people write it.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{} KiB", count >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", count >> 20),
        _ => format!("{} GiB", count >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units_that_people_read() {
        assert_eq!(shown(2.345e9, Unit::Rate), "2.35 GB/s");
        assert_eq!(shown(345.6e6, Unit::Rate), "346 MB/s");
        assert_eq!(shown(1234.0, Unit::Time), "1.23 µs");
        assert_eq!(shown(12_345.0, Unit::Operations), "12.3 k/s");
        assert_eq!((bytes(64), bytes(4096), bytes(1 << 20)), ("64 B".into(), "4 KiB".into(), "1 MiB".into()));
    }
}
