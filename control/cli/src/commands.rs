//! Each command, from its arguments to its exit status.

use crate::{
    access,
    args::{Add, Assemble, Command, JournalAction, Mount, ReAdd, Rebuild, Replace, Retrieve, Status},
    backed, control,
    copy::Copy,
    create, events, examine, fail,
    failure::{Exit, Failure},
    files::ArrayFiles,
    gc, inspect, journal, manual, member, migrate, monitor, mount,
    name::ArrayName,
    names,
    own::Own,
    policy, private,
    rebuild::{self, Begin},
    registry::Registry,
    rules, run, runtime, scrub, spare,
    spec::Source,
    top,
    tree::{Host, Kind, Tree},
    view::{self, ArrayView},
};
use array::{Array, JournalPlace, runtime::JobWish};
use std::{
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    time::Duration,
};
use sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Does what was asked.
pub(crate) fn execute(command: Command) -> Result<Exit, Failure> {
    // Who has stopped an array needs its shared memory no more; or it says why it is needed.
    let ends_use = matches!(command, Command::Stop(_));
    let done = execute_command(command);
    let is_told = |failure: &Failure| failure.is_about(Path::new(runtime::SHARED_MEMORY));
    if ends_use && done.as_ref().err().is_none_or(is_told) { done } else { runtime::unless_lost(done) }
}

fn execute_command(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Create(arguments) => print(&create::create(&arguments)?),
        Command::Access(arguments) => {
            let get = if arguments.options.is_given() { source_to_use } else { source };
            print(&access::access(&get(arguments.name.as_ref())?, &arguments)?)
        }
        Command::Run(arguments) => {
            let source = source(arguments.name.as_ref())?;
            backed::refill(&source);
            run::run(&source, arguments.name.as_ref().filter(|_| arguments.mount), &arguments.program)
        }
        Command::Info(arguments) => print(&inspect::view(&source(arguments.name.as_ref())?)?.info_text()),
        Command::Status(arguments) => status(&arguments),
        Command::Examine(arguments) => print(&examine::report(&arguments.member)?),
        Command::Add(arguments) => add(&arguments),
        Command::Retrieve(arguments) => retrieve(&arguments),
        Command::Journal(arguments) => journal_command(&arguments.action),
        Command::Rebuild(arguments) => rebuild(&arguments).inspect(|_| spread_rules(arguments.name.as_ref())),
        Command::ReAdd(arguments) => re_add(&arguments).inspect(|_| spread_rules(Some(&arguments.name))),
        Command::Replace(arguments) => replace(&arguments).inspect(|_| spread_rules(Some(&arguments.name))),
        Command::Scrub(arguments) => {
            let source = source_to_use(arguments.array())?;
            let (text, exit) = scrub::scrub(&source, called(&source), &arguments)?;
            print(&text)?;
            Ok(exit)
        }
        Command::Pause(arguments) => control(arguments.name.as_ref(), JobWish::Pause),
        Command::Resume(arguments) => control(arguments.name.as_ref(), JobWish::Go),
        Command::Cancel(arguments) => control(arguments.name.as_ref(), JobWish::Cancel),
        Command::Fail(arguments) => {
            let source = source_to_use(Some(&arguments.array))?;
            print(&fail::fail(&source, called(&source), &arguments.member, arguments.force)?)
        }
        Command::Remove(arguments) => {
            if let Some(text) = spare::remove(&Registry::from_environment(), &arguments.array, &arguments.member)? {
                return print(&text);
            }
            let source = source_to_use(Some(&arguments.array))?;
            print(&fail::remove(&source, called(&source), &arguments.member)?)
        }
        Command::Member(arguments) => {
            let source = source_to_use(Some(&arguments.array))?;
            print(&member::member(&source, &arguments)?)
        }
        Command::Policy(arguments) => {
            let source = source_to_use(Some(&arguments.array))?;
            let (text, exit) = policy::policy(&source, &arguments)?;
            print(&text)?;
            Ok(exit)
        }
        Command::Migrate(arguments) => migrate::migrate(&source_to_use(Some(&arguments.array))?, &arguments),
        Command::Events(arguments) => {
            // Of the environment's array if it says where its log is.
            let source = match &arguments.array {
                None if Source::environment_is_set() => Some(Source::Environment),
                None => None,
                name => Some(source(name.as_ref())?),
            };
            events::events(source.as_ref(), arguments.follow, arguments.json)
        }
        Command::Monitor(arguments) => {
            let program = arguments.program.as_deref().map(absolute).transpose()?;
            let prometheus = arguments.prometheus.as_deref().map(absolute).transpose()?;
            let delay = Duration::from_secs(arguments.delay);
            monitor::monitor(&arguments.arrays, program.as_deref(), prometheus, delay)
        }
        Command::Top(arguments) => top::top(&source(arguments.name.as_ref())?, &arguments),
        Command::Mount(arguments) => mount_once(&arguments),
        Command::Unmount(arguments) => mount::unmount(&arguments),
        Command::Stop(arguments) => stop(arguments.name.as_ref()),
        Command::Gc(arguments) => {
            let (text, exit) = gc::gc(&arguments)?;
            print(&text)?;
            Ok(exit)
        }
        Command::Assemble(arguments) => assemble(&arguments),
        Command::Forget(arguments) => forget(&arguments.name),
        Command::Completions(arguments) => manual::completions(arguments.shell).map(|()| Exit::Fine),
        Command::Man(arguments) => manual::pages(&arguments.directory).map(|()| Exit::Fine),
    }
}

/// The named array, or the environment's.
fn source(name: Option<&ArrayName>) -> Result<Source, Failure> {
    match name {
        Some(name) => named(name.clone(), &Registry::from_environment()),
        None => Ok(Source::Environment),
    }
}

/// The array of a command that uses it as a program does, or changes its members.
fn source_to_use(name: Option<&ArrayName>) -> Result<Source, Failure> {
    let source = source(name)?;
    run::refuse_beside_library(&inspect::config(&source)?, called(&source))?;
    Ok(source)
}

/// Mounts an array.
pub(crate) fn mount_once(arguments: &Mount) -> Result<Exit, Failure> {
    if arguments.private {
        if arguments.foreground {
            return runtime::unless_lost(private::serve(arguments));
        }
        // SAFETY: this process has opened nothing yet.
        #[allow(unsafe_code)]
        let _ = unsafe { sys::inherited::close_inherited() };
        return mount::in_background(arguments);
    }
    runtime::unless_lost(source_to_use(Some(&arguments.name)).and_then(|source| mount::mount(&source, arguments)))
}

fn named(name: ArrayName, registry: &Registry) -> Result<Source, Failure> {
    let found = registry.find(&name)?;
    Ok(Source::Named(name, found.spec, Some(found.uuid)))
}

/// What a message calls the array of `source`.
pub(crate) fn called(source: &Source) -> &str {
    match source {
        Source::Named(name, ..) => name.as_str(),
        Source::Environment => "array",
    }
}

fn attach(source: &Source) -> Result<Array, Failure> {
    let config = inspect::config(source)?;
    run::refuse_beside_library(&config, called(source))?;
    let array = Array::attach(&config).map_err(|error| inspect::refused(called(source), &error.to_string()))?;
    Ok(events::printing(array))
}

fn status(arguments: &Status) -> Result<Exit, Failure> {
    let mut unseen = None;
    let sources = match &arguments.name {
        Some(name) => vec![source(Some(name))],
        None if Source::environment_is_set() => vec![Ok(Source::Environment)],
        None => {
            let registry = Registry::from_environment();
            unseen = registry.unseen();
            registry.names()?.into_iter().map(|name| named(name, &registry)).collect()
        }
    };
    // What is wrong with one array's file must not hide the others.
    let (mut views, mut failures) = (Vec::new(), Vec::new());
    for source in sources {
        match source.and_then(|source| inspect::view(&source)) {
            Ok(mut view) => {
                names::note(&mut view);
                view.private = private::among(&view.processes);
                view.mounted = view.name.as_deref().map(mount::directories_of).unwrap_or_default();
                views.push(view);
            }
            Err(failure) => failures.push(failure),
        }
    }
    match unseen {
        // A script would take "none" for an answer.
        Some(failure) if views.is_empty() => failures.push(failure),
        Some(failure) => say!("{failure}"),
        None => {}
    }
    failures.iter().for_each(|failure| say!("{failure}"));
    if arguments.json {
        print(&(view::json(&views) + "\n"))?;
    } else if views.is_empty() && failures.is_empty() {
        print("no arrays; 'cxlraid create' makes one\n")?;
    } else {
        print(&views.iter().map(ArrayView::status_text).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(worst(views.iter().map(ArrayView::exit).chain(failures.iter().map(|failure| failure.exit))))
}

/// A failed array outweighs a degraded one.
fn worst(exits: impl Iterator<Item = Exit>) -> Exit {
    exits.fold(Exit::Fine, |worst, exit| match (worst, exit) {
        (Exit::Error | Exit::Usage, _) | (_, Exit::Error | Exit::Usage) => Exit::Error,
        (Exit::Degraded, _) | (_, Exit::Degraded) => Exit::Degraded,
        _ => Exit::Fine,
    })
}

fn add(arguments: &Add) -> Result<Exit, Failure> {
    if let Some(directory) = &arguments.spare {
        let wrong = |what: String| Failure::new("ARRAY", what, "say 'cxlraid add ARRAY --spare DIR'").with_exit(Exit::Usage);
        let name = arguments.host.to_string_lossy().parse().map_err(wrong)?;
        return print(&spare::add(&Registry::from_environment(), &name, &absolute(directory)?)?);
    }
    let (files, own) = files_to_copy(arguments.array.as_ref())?;
    let host = absolute(&arguments.host)?;
    let target = arguments.path.as_deref().map_or_else(|| Ok(files.default_target(&host)), absolute)?;
    files.require_inside(&target)?;
    refuse_own(&own, &host)?;
    if let Some(path) = &arguments.path {
        require_directory(&files, path, &target, arguments.recursive && host.is_dir())?;
    }
    let into_directories = arguments.path.is_some() && !arguments.no_target_directory;
    Copy { from: &Host, to: &files, recursive: arguments.recursive, own: &own }.run(&host, &target, into_directories)?;
    Ok(Exit::Fine)
}

fn retrieve(arguments: &Retrieve) -> Result<Exit, Failure> {
    let (files, own) = files_to_copy(arguments.array.as_ref())?;
    let path = absolute(&arguments.path)?;
    files.require_inside(&path)?;
    let target = arguments.host.as_deref().map_or_else(|| Ok(path.clone()), absolute)?;
    refuse_own(&own, &target)?;
    if let Some(host) = &arguments.host {
        let is_directory = || files.open(&path).is_ok_and(|found| matches!(found.stat.kind, Kind::Directory));
        require_directory(&Host, host, &target, arguments.recursive && is_directory())?;
    }
    let into_directories = arguments.host.is_some() && !arguments.no_target_directory;
    Copy { from: &files, to: &Host, recursive: arguments.recursive, own: &own }.run(&path, &target, into_directories)?;
    Ok(Exit::Fine)
}

/// The files of an array, and the host's directories that are its own.
fn files_to_copy(name: Option<&ArrayName>) -> Result<(ArrayFiles, Own), Failure> {
    // Each level of directories takes several descriptors.
    raise_descriptor_limit();
    let source = source(name)?;
    let array = attach(&source)?;
    let registry = Registry::from_environment();
    // The array may be mounted by another name than it is asked for by.
    let has_members = |name: &str| {
        let config = name.parse().ok().and_then(|name| named(name, &registry).and_then(|source| inspect::config(&source)).ok());
        config.is_some_and(|config| config.mounts == array.config().mounts)
    };
    let mounted = mount::directories(|name| name == called(&source) || has_members(name));
    let own = Own::of(&array, mounted);
    Ok((ArrayFiles::open(array)?, own))
}

/// Lets this process have as many descriptors as its user may.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Refuses a target that is written as a directory (with a slash at its end) and is none, unless a
/// directory is copied there.
fn require_directory(to: &dyn Tree, written: &Path, target: &Path, is_directory: bool) -> Result<(), Failure> {
    let is_there = || to.open(target).is_ok_and(|found| matches!(found.stat.kind, Kind::Directory));
    if is_directory || !written.as_os_str().as_bytes().ends_with(b"/") || is_there() {
        return Ok(());
    }
    Err(Failure::new(written.display(), "no such directory", "make it, or leave out the slash at the end"))
}

/// Refuses a host's path in a directory that is the array's own.
fn refuse_own(own: &Own, path: &Path) -> Result<(), Failure> {
    let Some(directory) = own.around(path) else { return Ok(()) };
    let what = format!("lies in {}, a member or a mount of this array", directory.display());
    Err(Failure::new(path.display(), what, "give a path outside of it"))
}

pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    if path.as_os_str().is_empty() {
        return Err(Failure::new("path", "an empty one was given", "write the path from the root").with_exit(Exit::Usage));
    }
    std::path::absolute(path).map_err(|error| Failure::new(path.display(), error, "write the path from the root"))
}

/// `internal`, or a path that counts from the working directory.
pub(crate) fn journal_place(text: &OsStr) -> Result<JournalPlace, Failure> {
    match JournalPlace::parse(text.as_bytes()) {
        JournalPlace::Members => Ok(JournalPlace::Members),
        JournalPlace::File(_) => Ok(JournalPlace::File(absolute(Path::new(text))?.into_os_string().into_vec())),
    }
}

fn journal_command(action: &JournalAction) -> Result<Exit, Failure> {
    let place = |text: &OsString| journal_place(text);
    match action {
        JournalAction::Show { name, json } => {
            let source = source(name.as_ref())?;
            let (text, exit) = journal::show(&source, called(&source), *json)?;
            print(&text)?;
            Ok(exit)
        }
        JournalAction::Replay { name } => {
            let source = source(name.as_ref())?;
            let count = journal::replay(attach(&source)?, called(&source))?;
            print(&format!("{}: {count} writes replayed\n", called(&source)))
        }
        JournalAction::Clear { name, force, to } => {
            let source = source_to_use(name.as_ref())?;
            if !force {
                let what = "clearing the journal gives up the writes that wait in it, for good";
                return Err(Failure::new(called(&source), what, "'cxlraid journal replay' keeps them; --force clears")
                    .with_exit(Exit::Usage));
            }
            let to = to.as_ref().map(place).transpose()?;
            print(&journal::clear(&inspect::config(&source)?, to.as_ref(), called(&source))?)
        }
        JournalAction::Add { name, place: text } => {
            let source = source_to_use(Some(name))?;
            print(&journal::add(&inspect::config(&source)?, &place(text)?, called(&source))?)
        }
        JournalAction::Remove { name } => {
            let source = source_to_use(name.as_ref())?;
            print(&journal::remove(&inspect::config(&source)?, called(&source))?)
        }
    }
}

/// Gives a member that was made anew the array's rules. The others have them, so what goes wrong is
/// left to the next such command.
fn spread_rules(name: Option<&ArrayName>) {
    if let Ok(from) = source(name) {
        rules::spread(&from);
    }
}

/// A rebuild in the background that could not be done is tried again after so long.
const DETACHED_PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(20)];

fn rebuild(arguments: &Rebuild) -> Result<Exit, Failure> {
    if arguments.detached {
        // SAFETY: this process has opened nothing yet.
        #[allow(unsafe_code)]
        let _ = unsafe { sys::inherited::close_inherited() };
        // Nobody reads why a rebuild in the background fails, and the reason may pass: another command
        // that is about to end, or members that change at this moment.
        for pause in DETACHED_PAUSES {
            if let Ok(exit) = rebuild_once(arguments) {
                return Ok(exit);
            }
            std::thread::sleep(pause);
        }
    }
    rebuild_once(arguments)
}

fn rebuild_once(arguments: &Rebuild) -> Result<Exit, Failure> {
    let begin = Begin::within(Duration::from_secs(arguments.patience.wait), arguments.pace.pace());
    let from = source_to_use(arguments.name.as_ref())?;
    let mut taken = String::new();
    if let (Source::Named(name, ..), None) = (&from, &arguments.member) {
        taken = spare::take(&Registry::from_environment(), name, &begin)?;
        // What was done is said, whatever becomes of the rest.
        print(&taken)?;
    }
    let from = source(arguments.name.as_ref())?;
    let thing = called(&from);
    match rebuild::rebuild(&from, arguments.member.as_deref(), thing, (arguments.spares, arguments.force), &begin)? {
        Some(text) => print(&text),
        None if !taken.is_empty() => Ok(Exit::Fine),
        None if arguments.spares => print(&format!("{thing}: there is nothing for a spare to do\n")),
        None => print(&format!("{thing}: every member is in sync; there is nothing to rebuild\n")),
    }
}

fn re_add(arguments: &ReAdd) -> Result<Exit, Failure> {
    let begin = Begin::within(Duration::from_secs(arguments.patience.wait), arguments.pace.pace());
    let from = source_to_use(Some(&arguments.name))?;
    print(&rebuild::re_add(&from, &arguments.member, called(&from), arguments.force, &begin)?)
}

fn replace(arguments: &Replace) -> Result<Exit, Failure> {
    let registry = Registry::from_environment();
    source_to_use(Some(&arguments.name))?;
    let array = registry.find(&arguments.name)?;
    let others = array.spec.members.iter().filter(|member| **member != arguments.old).cloned();
    let members: Vec<PathBuf> = others.chain([arguments.new.clone()]).collect();
    let begin = Begin::within(Duration::from_secs(arguments.patience.wait), arguments.pace.pace());
    let text = rebuild::replace(&registry, &array, &arguments.old, &arguments.new, &begin)?;
    for warning in create::shared_devices(&members).iter().filter(|warning| warning.is_about(&arguments.new)) {
        say!("{warning}");
    }
    print(&text)
}

fn control(name: Option<&ArrayName>, wish: JobWish) -> Result<Exit, Failure> {
    let source = source(name)?;
    print(&control::tell(&source, called(&source), wish)?)
}

fn stop(name: Option<&ArrayName>) -> Result<Exit, Failure> {
    let source = source_to_use(name)?;
    let thing = called(&source);
    private::await_end(&source);
    let stopped = runtime::stop(&source, thing)?;
    print(&if stopped { format!("{thing}: stopped\n") } else { format!("{thing}: was not running\n") })
}

fn assemble(arguments: &Assemble) -> Result<Exit, Failure> {
    let source = source_to_use(arguments.name.as_ref())?;
    let thing = called(&source);
    let superblock = inspect::newest(&source, thing)?;
    if !runtime::attached(superblock.array_uuid).is_empty() {
        return Err(Failure::new(thing, "is in use", "end its programs first"));
    }
    let config = inspect::config(&source)?;
    let member = crate::spec::absolute(&arguments.prefer).into_os_string().into_encoded_bytes();
    if !config.mounts.contains(&member) {
        return Err(Failure::new(arguments.prefer.display(), "not a member of the array", "'cxlraid status' lists its members"));
    }
    let set_aside = array::split::prefer(&config, &member).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    if set_aside.is_empty() {
        return print(&format!("{thing}: the members were not used apart; nothing was changed\n"));
    }
    // What a segment from before says of members is past.
    runtime::stop(&source, thing)?;
    let shown: Vec<String> = set_aside.iter().map(|path| units::Shown(path).to_string()).collect();
    print(&format!("{thing}: keeps what {} has; stale: {}\n", arguments.prefer.display(), shown.join(", ")))
}

fn forget(name: &ArrayName) -> Result<Exit, Failure> {
    let file = Registry::from_environment().forget(name)?;
    print(&format!("{name}: forgotten ({} removed); its members are as they were\n", view::shown(&file.to_string_lossy())))
}

pub(crate) fn print(text: &str) -> Result<Exit, Failure> {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => Ok(Exit::Fine),
        // As other tools: whoever closed the pipe has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Fine),
        Err(error) => Err(Failure::new("standard output", error, "")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_array_outweighs_a_degraded_one() {
        use Exit::{Degraded, Error, Fine};
        assert_eq!(worst([].into_iter()), Fine);
        assert_eq!(worst([Fine, Degraded, Fine].into_iter()), Degraded);
        assert_eq!(worst([Error, Degraded].into_iter()), Error);
        assert_eq!(worst([Degraded, Error].into_iter()), Error);
    }
}
