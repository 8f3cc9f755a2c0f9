//! The rules of an array, which say which level and chunk new files get (docs/rules.md), as `cxlraid
//! policy ARRAY show|check|set|unset|explain|drift|plan|lost` deals with them. Their text is read in
//! [`crate::rules_text`].

use crate::{
    args::RulesCommand,
    commands::called,
    drift::{self, Ruling},
    events,
    failure::{Exit, Failure},
    files::ArrayFiles,
    inspect, member,
    rules_text::{Frame, RulesText, no_rules},
    spec::{Source, chunk_text},
};
use array::{Array, config::normalise};
use format::{RuleShape, RulesFile};
use layout::Geometry;
use std::{
    fmt::Write as _,
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};
use units::Shown;

/// Shows, changes or explains the rules. Returns what is to be printed.
pub(crate) fn rules(source: &Source, command: &RulesCommand) -> Result<String, Failure> {
    let thing = called(source);
    let array = Array::attach(&inspect::config(source)?).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    let files = ArrayFiles::open({
        let tell = events::begin(source, thing, array.uuid());
        array.telling(tell)
    })?;
    let (core, array) = (files.core(), files.core().array());
    let own = own_shape(array);
    let frame = frame_of(core);
    if matches!(command, RulesCommand::Check { .. } | RulesCommand::Set { .. } | RulesCommand::Plan { .. }) {
        require_no_fast_members(thing, array)?;
    }
    let set = |make: &dyn Fn(u64) -> Vec<u8>| {
        core.set_rules(make).map_err(|error| inspect::refused(thing, &io::Error::from(error).to_string()))
    };
    match command {
        RulesCommand::Show => Ok(match rules_of(array).as_deref().map(RulesFile::decode) {
            Some(Ok(rules)) if !rules.text.is_empty() => String::from_utf8_lossy(rules.text).into_owned(),
            _ => format!("{thing}: no rules; new files get {}\n", shown(own)),
        }),
        RulesCommand::Check { file } => {
            let text = text_of(file)?;
            let rules = RulesText::parse(file, &text, &frame)?;
            Ok(format!("{}: {} can be set\n{}", file.display(), counted(rules.rules.len()), remarks(&rules, array)))
        }
        RulesCommand::Set { file } => {
            let text = text_of(file)?;
            let rules = RulesText::parse(file, &text, &frame)?;
            set(&|revision| rules.encode(array.uuid(), revision))?;
            Ok(format!(
                "{thing}: {} set; files that are there keep what they have\n{}",
                counted(rules.rules.len()),
                remarks(&rules, array)
            ))
        }
        RulesCommand::Unset => {
            set(&|revision| no_rules(array.uuid(), revision, own))?;
            Ok(format!("{thing}: no rules any more; new files get {}, files that are there keep what they have\n", shown(own)))
        }
        RulesCommand::Lost { without } => {
            let out = array.runtime().out();
            let out = match without {
                Some(member) => out.with(member::slot_of(array, member)?),
                None => out,
            };
            let lost = core.lost_without(out).map_err(|error| inspect::refused(thing, &io::Error::from(error).to_string()))?;
            let mut paths = files.names().paths_of(&lost, usize::MAX);
            paths.sort();
            let mut text = String::new();
            for path in &paths {
                let _ = writeln!(text, "{}", Shown(path));
            }
            if lost.len() > paths.len() {
                let _ = writeln!(text, "and {} without a name", lost.len() - paths.len());
            }
            Ok(text)
        }
        RulesCommand::Drift => Ok(drift::drift(files.names(), rules_of(array).as_deref(), own)),
        RulesCommand::Plan { file } => {
            let text = text_of(file)?;
            let rules = RulesText::parse(file, &text, &frame)?.encode(array.uuid(), 0);
            Ok(format!("{}: {}", file.display(), drift::plan(&files, &rules, own)))
        }
        RulesCommand::Explain { paths } => explain_all(&files, paths),
    }
}

/// What the levels of an array's files must fit.
pub(crate) fn frame_of(core: &file::Files) -> Frame<'_> {
    let array = core.array();
    Frame {
        own: own_shape(array),
        member_count: array.members().len(),
        prefixes: &array.config().prefixes,
        parity_count_max: core.parity_count_max(),
    }
}

/// Refuses what gives files levels of their own for a backed array.
pub(crate) fn require_no_fast_members(thing: &str, array: &Array) -> Result<(), Failure> {
    if array.fast().is_empty() {
        return Ok(());
    }
    let todo = "make an array without fast members for files of several levels";
    let what = "is a backed array, which keeps a copy of every file on each member and takes no rules yet";
    Err(Failure::new(thing, what, todo).with_exit(Exit::Usage))
}

/// Gives the rules of an array, if it has some, to members in use that lack them.
pub(crate) fn spread(source: &Source) {
    if !inspect::newest(source, called(source)).is_ok_and(|newest| newest.has_shapes()) {
        return;
    }
    let Ok(config) = inspect::config(source) else { return };
    if let Some(files) = Array::attach(&config).ok().and_then(|array| ArrayFiles::open(array).ok()) {
        files.core().spread_rules();
    }
}

/// Returns the line that says that an array has rules; nothing if it has none.
pub(crate) fn summary(array: &Array, thing: &str) -> String {
    match rules_of(array).as_deref().map(RulesFile::decode) {
        Some(Ok(rules)) if !rules.text.is_empty() => {
            let count = counted(rules.rules().count());
            format!("{thing}: {count} for new files; 'cxlraid policy {thing} show' prints them\n")
        }
        _ => String::new(),
    }
}

pub(crate) fn own_shape(array: &Array) -> RuleShape {
    RuleShape::of(array.default_geometry())
}

pub(crate) fn rules_of(array: &Array) -> Option<Vec<u8>> {
    array.read_rules().map(|(file, _)| file)
}

fn text_of(file: &Path) -> Result<String, Failure> {
    let bytes = fs::read(file).map_err(|error| Failure::new(file.display(), error, "").with_exit(Exit::Usage))?;
    let todo = "save the file as UTF-8";
    String::from_utf8(bytes).map_err(|_| Failure::new(file.display(), "is no text in UTF-8", todo).with_exit(Exit::Usage))
}

fn counted(count: usize) -> String {
    if count == 1 { "1 rule".to_owned() } else { format!("{count} rules") }
}

/// A level and its chunk, for people.
pub(crate) fn shown(shape: RuleShape) -> String {
    if shape.level.has_chunks() {
        format!("RAID {}, chunk {}", shape.level, chunk_text(shape.chunk))
    } else {
        format!("RAID {}", shape.level)
    }
}

/// What an operator may not expect of rules.
fn remarks(rules: &RulesText<'_>, array: &Array) -> String {
    let count = array.members().len();
    let own = array.default_geometry().level().failures_max(count);
    let mut text = String::new();
    let named = rules.rules.iter().map(|rule| (format!("rule '{}'", rule.name), rule.shape));
    for (name, shape) in named.chain([("[default]".to_owned(), rules.default)]) {
        let bears = shape.level.failures_max(count);
        if bears > own {
            let _ = writeln!(
                text,
                "  {name}: files of RAID {} would bear the loss of {bears} members, but the array stops with more than {own}",
                shape.level
            );
        }
    }
    text
}

/// Says of each path what [`explain`] does. A path that lies elsewhere keeps nobody from the answers
/// for the others.
fn explain_all(files: &ArrayFiles, paths: &[PathBuf]) -> Result<String, Failure> {
    let (mut text, mut failed) = (String::new(), None);
    for path in paths {
        match explain(files, path) {
            Ok(line) => text += &line,
            Err(failure) => drop(failed.replace(failure).map(|before| say!("{before}"))),
        }
    }
    match failed {
        None => Ok(text),
        Some(failure) => crate::commands::print(&text).and(Err(failure)),
    }
}

/// Says what a new file gets at a path, by which rule, and what the file there has.
fn explain(files: &ArrayFiles, path: &Path) -> Result<String, Failure> {
    files.require_inside(path)?;
    let array = files.core().array();
    let logical = normalise(path.as_os_str().as_bytes());
    let file = rules_of(array);
    let ruling = Ruling::of(file.as_deref(), own_shape(array));
    let (by, shape) = ruling.decide(&logical);
    let mut text = format!("{}: {by}: a new file gets {}", path.display(), shown(shape));
    let is_borne = Geometry::new(shape.level, array.members().len(), shape.chunk)
        .is_ok_and(|geometry| geometry.survives(array.runtime().out()));
    if !is_borne {
        let _ = write!(text, " (while members are out {}, which bears that)", shown(own_shape(array)));
    }
    if let Ok(Some(file)) = files.open_to_scrub(Path::new(std::ffi::OsStr::from_bytes(&logical))) {
        let geometry = file.geometry();
        let _ = write!(text, "; the file there has {}", shown(RuleShape::of(geometry)));
    }
    text.push('\n');
    Ok(text)
}
