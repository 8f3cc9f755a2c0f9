//! One run of fio, and what it found.

use crate::ground::{Ground, Place, succeeded};
use crate::plan::Plan;

/// The pattern of accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pattern {
    Write,
    Read,
    RandomWrite,
    RandomRead,
}

impl Pattern {
    pub(crate) const ALL: [Self; 4] = [Self::Write, Self::Read, Self::RandomWrite, Self::RandomRead];

    /// The value of fio's `rw`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::RandomWrite => "randwrite",
            Self::RandomRead => "randread",
        }
    }

    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Write => "sequential writes",
            Self::Read => "sequential reads",
            Self::RandomWrite => "random writes",
            Self::RandomRead => "random reads",
        }
    }

    const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::RandomWrite)
    }
}

/// The file that fio works on.
pub(crate) const FILE: &str = "fio";

/// What fio is to do. The parameters that are not named here are the thesis' own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) engine: &'static str,
    pub(crate) pattern: Pattern,
    pub(crate) block_bytes: u64,
    /// True if fio asks for the time of as few calls as it can. It reports no latency then.
    pub(crate) reduced: bool,
}

/// What fio found.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Found {
    pub(crate) bytes_per_second: f64,
    /// The mean time of a call in nanoseconds, if calls were timed.
    pub(crate) latency_ns: Option<f64>,
}

impl Job {
    pub(crate) const fn psync(pattern: Pattern, block_bytes: u64, reduced: bool) -> Self {
        Self { engine: "psync", pattern, block_bytes, reduced }
    }

    /// The parameters as the report shows them.
    pub(crate) fn text(&self, plan: &Plan) -> String {
        self.arguments(plan).join(" ")
    }

    fn arguments(&self, plan: &Plan) -> Vec<String> {
        vec![
            "--numjobs=1".to_owned(),
            "--thread".to_owned(),
            format!("--ioengine={}", self.engine),
            format!("--rw={}", self.pattern.name()),
            format!("--bs={}", self.block_bytes),
            "--sync=0".to_owned(),
            "--direct=1".to_owned(),
            format!("--size={}", plan.file_bytes),
            "--time_based".to_owned(),
            format!("--runtime={}ms", plan.run_ms),
            format!("--ramp_time={}ms", plan.ramp_ms),
            format!("--gtod_reduce={}", u8::from(self.reduced)),
        ]
    }

    /// Runs fio on the place's file.
    pub(crate) fn run(&self, ground: &Ground, place: &Place, plan: &Plan) -> Result<Found, String> {
        let file = format!("--filename={}", place.directory.join(FILE).display());
        let mut run = ground.program("fio", place)?.args(["--name=report", "--output-format=json", &file]);
        if self.engine == "libpmem" {
            // Without it the engine refuses memory that no power cut spares.
            run = run.env("PMEM_IS_PMEM_FORCE", "1");
        }
        let output = run.args(self.arguments(plan)).output();
        let what = format!("fio --ioengine={} --rw={} --bs={}", self.engine, self.pattern.name(), self.block_bytes);
        parse(succeeded(&what, &output)?, self.pattern).map_err(|why| format!("{what}: {why}"))
    }
}

/// Reads fio's JSON, before which it may print lines.
fn parse(text: &str, pattern: Pattern) -> Result<Found, String> {
    let json = text.find('{').map(|at| &text[at..]).ok_or("no JSON in its output")?;
    let all: serde_json::Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let job = &all["jobs"][0];
    if job["error"].as_i64() != Some(0) {
        return Err(format!("error {}", job["error"]));
    }
    let side = &job[if pattern.writes() { "write" } else { "read" }];
    let rate = side["bw_bytes"].as_f64().filter(|rate| *rate > 0.0).ok_or("no bandwidth")?;
    let latency = side["lat_ns"]["mean"].as_f64().filter(|mean| *mean > 0.0);
    Ok(Found { bytes_per_second: rate, latency_ns: latency })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_says_is_read() {
        let text = r#"fio: a line before
            {"jobs": [{"error": 0, "read": {"bw_bytes": 0}, "write": {"bw_bytes": 4096, "lat_ns": {"mean": 12.5}}}]}"#;
        assert_eq!(parse(text, Pattern::Write), Ok(Found { bytes_per_second: 4096.0, latency_ns: Some(12.5) }));
        assert!(parse(text, Pattern::Read).is_err_and(|why| why.contains("bandwidth")));
        assert!(parse(&text.replace("\"error\": 0", "\"error\": 95"), Pattern::Write).is_err_and(|why| why.contains("95")));
        assert!(parse("nothing", Pattern::Write).is_err());
    }

    #[test]
    fn the_parameters_are_those_of_the_thesis() {
        let text = Job::psync(Pattern::RandomRead, 4096, false).text(&Plan::new(crate::plan::Extent::Usual));
        for word in ["--numjobs=1", "--ioengine=psync", "--bs=4096", "--sync=0", "--direct=1", "--rw=randread"] {
            assert!(text.contains(word), "{word} is not in {text}");
        }
    }
}
