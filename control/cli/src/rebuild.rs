//! `rebuild` and `replace`: a member that was lost is made anew, and what it held is computed from
//! the other members. (A member that works is replaced by [`crate::replace`].)
//!
//! First the member gets all names and tables: at once while no program uses the array
//! (`namespace::fill`), else when every program that uses it has been started since the member was
//! begun (`namespace::Joiner`). Then this process opens one file after the other for writing, which
//! has the bytes of each computed, while programs work. The inode tables say which files wait, so a
//! command that was cut short is given again and goes on where it was. One command at a time does
//! this to an array.

use crate::{
    backed,
    compute::compute,
    events,
    failure::Failure,
    inspect::{self, Found, look},
    job::{self, Pace},
    names_lock::NamesLocks,
    records,
    registry::{NamedArray, Registry},
    repairing::{self, Repairing},
    replace::{self, Replacement},
    runtime::{attached, users},
    spare,
    spec::{ArraySpec, Source},
    taken,
};
use array::{Array, Config, Member, Standing, events::EventKind, runtime::JobKind};
use format::Uuid;
use namespace::{Content, FillError, Joiner};
use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use sys::OsError;
use units::{Shown, Slot};

/// How long a command that waits to begin sleeps before it tries again.
const PERIOD: Duration = Duration::from_millis(200);
/// How long it sleeps at most after several attempts in which it gave a member all names in vain,
/// which programs had to wait for.
const PERIOD_MAX: Duration = Duration::from_secs(30);

/// So often it is tried at least to bring a member into use while programs start, which do not use
/// the member in the first moments.
const TRY_COUNT: u32 = 5;

/// Until when a command waits for the programs to end that use an array, and how fast it works
/// then.
pub(crate) struct Begin {
    until: Option<Instant>,
    pub(crate) pace: Pace,
}

impl Begin {
    /// It waits so long from now on at most.
    pub(crate) fn within(time: Duration, pace: Pace) -> Self {
        Self { until: Instant::now().checked_add(time), pace }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Sleeps so long, or until the time is over.
    fn sleep(&self, time: Duration) {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        // The last attempts come when the time is over.
        thread::sleep(left.map_or(time, |left| time.min(left.max(PERIOD))));
    }
}

/// Gives the members in `slots`, which are out, all that the others have but the bytes of files: at
/// once if no program uses the array, else as soon as every program has been started anew since the
/// members were begun. Nobody else does so until what is returned is dropped. What was so before
/// this command waited need not be so any more: `check` is asked before each attempt until a member
/// is begun. `renewed` is a directory whose former place in an array counts for nothing. `begun` is
/// called once the directory is that of a member: from then on programs are to find it.
fn fill(
    (source, renewed): (&Source, Option<&Path>),
    slots: &[Slot],
    thing: &str,
    (kind, content): (JobKind, Content),
    begin: &Begin,
    check: impl Fn() -> Result<(), Failure>,
    mut begun: impl FnMut() -> Result<(), Failure>,
) -> Result<Repairing, Failure> {
    let mut config = inspect::config(source)?;
    config.renewed = renewed.map(|path| path.as_os_str().as_bytes().to_vec());
    let mut left = slots;
    let (mut joiner, mut tries, mut period) = (None, 0, PERIOD);
    loop {
        let repairing = match Repairing::begin(source, thing, kind, slots.iter().copied().collect(), begin.pace)? {
            Ok(repairing) => repairing,
            Err(holder) if begin.is_over() => {
                return Err(repairing::refused(thing, &holder, "; --wait SECONDS waits for it"));
            }
            Err(_) => {
                thread::sleep(PERIOD);
                continue;
            }
        };
        loop {
            if job::is_ended() {
                return Err(cancelled_before_it_is_in(thing));
            }
            let Some((&slot, rest)) = left.split_first() else { return Ok(repairing) };
            if joiner.is_none() && is_in_use(&config, slot, thing)? {
                // Another command has brought it back meanwhile.
                left = rest;
                continue;
            }
            let mut filled = Err(FillError::InUse);
            if joiner.is_none() {
                check()?;
                if let Some(path) = config.mounts.get(slot) {
                    // Its device may have gone while this waited.
                    spare::require_mounted(Path::new(OsStr::from_bytes(path)))?;
                }
                filled = namespace::fill(&config, slot, content);
                if filled.is_ok() {
                    begun()?;
                }
            }
            if matches!(filled, Err(FillError::InUse)) {
                filled = join(&config, left, content, &mut joiner, &mut begun)?;
            }
            match filled {
                Ok(()) => left = rest,
                Err(error) if may_begin_later(&error) && (!begin.is_over() || joiner.is_some() && tries < TRY_COUNT) => {
                    period = if matches!(error, FillError::Busy) { PERIOD_MAX.min(2 * period) } else { PERIOD };
                    break;
                }
                Err(FillError::InUse) => return Err(in_use(source, thing)),
                Err(error @ FillError::Unbuilt) => {
                    return Err(match crate::fail::need_member(source, slot) {
                        Some(what) => Failure::new(thing, what, NEEDED),
                        None => not_filled(thing, error),
                    });
                }
                Err(error) => return Err(not_filled(thing, error)),
            }
        }
        // Not while it waits: another command may be able to begin.
        drop(repairing);
        tries += 1;
        begin.sleep(period);
    }
}

/// Tells whether a start would have a member in use.
fn is_in_use(config: &Config, slot: Slot, thing: &str) -> Result<bool, Failure> {
    let members = foreseen_by(config, thing)?;
    Ok(members.iter().any(|member| member.slot == slot && member.standing == Standing::InSync))
}

/// Says that a job was told to end before its members came into use.
pub(crate) fn cancelled_before_it_is_in(thing: &str) -> Failure {
    Failure::new(thing, "the job was cancelled before the member was in use", "give the command again to go on")
}

/// Whether what keeps a member from coming into use may end by itself.
const fn may_begin_later(error: &FillError) -> bool {
    matches!(error, FillError::InUse | FillError::Unreached(_) | FillError::Nameless | FillError::Busy)
}

/// Brings the first of the members in `slots` into use while programs use the array. `joiner` is
/// this process as one that uses the array, too, once all of them are begun.
fn join(
    config: &Config,
    slots: &[Slot],
    content: Content,
    joiner: &mut Option<Joiner>,
    begun: &mut impl FnMut() -> Result<(), Failure>,
) -> Result<Result<(), FillError>, Failure> {
    if joiner.as_ref().is_none_or(|joiner| !joiner.reaches()) {
        joiner.take().into_iter().for_each(Joiner::end);
        // All are begun before programs start again, so that each need do that once. The command
        // may be one that goes on where another was cut short.
        for &slot in slots.iter().rev() {
            joiner.take().into_iter().for_each(Joiner::end);
            match begin_for(config, slot, content) {
                Ok(found) => *joiner = Some(found),
                Err(error) => return Ok(Err(error)),
            }
        }
        begun()?;
    }
    let (Some(present), Some(&slot)) = (joiner.as_ref(), slots.first()) else { return Ok(Err(FillError::Busy)) };
    let joined = match holders(config, slot) {
        _ if present.is_in() => Ok(()),
        Some(holders) if holders.is_empty() => present.join(),
        Some(holders) => Err(FillError::Unreached(holders)),
        None => Err(FillError::Busy),
    };
    if joined.is_ok() {
        joiner.take().into_iter().for_each(Joiner::end);
    }
    Ok(joined)
}

/// Attaches to the array to bring a member into use, which is begun if it was not.
fn begin_for(config: &Config, slot: Slot, content: Content) -> Result<Joiner, FillError> {
    let found = Joiner::new(config, slot, content)?;
    if found.reaches() {
        return Ok(found);
    }
    found.end();
    namespace::begin(config, slot, content)?;
    let found = Joiner::new(config, slot, content)?;
    if found.reaches() {
        return Ok(found);
    }
    found.end();
    Err(FillError::Busy)
}

/// The processes that have something open in the directory of a member that is out, or work there:
/// since before the member was lost. The directory is emptied when the member gets its names. None
/// if that cannot be said now.
fn holders(config: &Config, slot: Slot) -> Option<Vec<u32>> {
    let member = Array::foresee(config).ok()?.into_iter().find(|member| member.slot == slot)?;
    let directory = fs::canonicalize(OsStr::from_bytes(&member.path)).ok()?;
    let own = directory.join(OsStr::from_bytes(format::DIRECTORY.to_bytes()));
    let lies_there = |link: &Path| {
        let to = fs::read_link(link).unwrap_or_default();
        to.starts_with(&directory) && to != directory && !to.starts_with(&own) && fs::exists(&to).unwrap_or(false)
    };
    let holds = |pid: &u32| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
        descriptors.chain([process.join("cwd")]).any(|link| lies_there(&link))
    };
    let uuid = config.uuid.or_else(|| members_uuid(&own))?;
    Some(attached(uuid).into_iter().filter(holds).collect())
}

/// The UUID of the array that a member with this `.cxlraid` belongs to.
fn members_uuid(meta: &Path) -> Option<Uuid> {
    match look(meta.parent()?) {
        Found::Member(superblock) => Some(superblock.array_uuid),
        _ => None,
    }
}

/// Says which processes keep a rebuild from beginning.
fn in_use(source: &Source, thing: &str) -> Failure {
    let pids = inspect::newest(source, thing).map_or_else(|_| Vec::new(), |superblock| attached(superblock.array_uuid));
    let todo = "the array has a journal: end its programs, and start them again when the member is in: its data is computed \
                while they run; --wait SECONDS waits for them to end";
    Failure::new(thing, format!("is in use by {}", users(&pids)), todo)
}

/// Makes members that are out anew in their directories: `member`, or all of them, or none with
/// `only_go_on`; and goes on with those that are being rebuilt. Returns what is to be printed; None
/// if there was nothing to do. Without `force` the only backing is not made anew.
pub(crate) fn rebuild(
    source: &Source,
    member: Option<&Path>,
    thing: &str,
    (only_go_on, force): (bool, bool),
    begin: &Begin,
) -> Result<Option<String>, Failure> {
    let members = foreseen(source, thing)?;
    let is_wanted = |found: &&Member| member.is_none_or(|member| is_at(found, member));
    let wanted: Vec<&Member> = members.iter().filter(is_wanted).collect();
    if let (Some(member), []) = (member, &wanted[..]) {
        let todo = "'cxlraid status' lists its members; 'cxlraid replace' puts a new directory in the place of one of them";
        return Err(Failure::new(member.display(), "not a member of the array", todo));
    }
    // Fast members that hold nothing are filled without being asked for.
    let blank = if only_go_on { backed::blank(source, true) } else { Vec::new() };
    let is_due = |member: &Member| !only_go_on || blank.iter().any(|(slot, _)| *slot == member.slot);
    let is_out = |member: &&&Member| member.standing != Standing::InSync && is_due(member);
    let mut out: Vec<Slot> = wanted.iter().filter(is_out).map(|member| member.slot).collect();
    for (slot, why) in backed::prepare_all(source)? {
        if out == [slot] {
            return Err(why);
        }
        if out.contains(&slot) {
            // The others are made anew all the same.
            say!("{why}");
            out.retain(|other| *other != slot);
        }
    }
    if out.is_empty() && !wanted.iter().any(|member| member.is_rebuilding) {
        return match member {
            Some(member) => Err(Failure::new(member.display(), "is in sync", "there is nothing to rebuild")),
            None => Ok(None),
        };
    }
    let require_there = |path: &Path| match look(path) {
        Found::Nothing(what) if what == array::why::NO_DIRECTORY => {
            let todo = "mount it, or make the directory; 'cxlraid replace' puts another in its place";
            Err(Failure::new(path.display(), format!("is missing: {what}"), todo))
        }
        _ => spare::require_mounted(path),
    };
    for (slot, path) in wanted.iter().map(|member| (member.slot, Path::new(OsStr::from_bytes(&member.path)))) {
        if out.contains(&slot)
            && let Err(why) = require_there(path)
        {
            out.retain(|other| *other != slot);
            if out.is_empty() && !wanted.iter().any(|member| member.is_rebuilding) {
                return Err(why);
            }
            // The others are made anew all the same.
            say!("{why}");
        }
    }
    if !force {
        backed::require_other_backing(source, &out, thing)?;
    }
    let repairing = fill((source, None), &out, thing, (JobKind::Rebuild, Content::Anew), begin, || Ok(()), || Ok(()))?;
    compute(source, thing, JobKind::Rebuild, begin, &repairing).map(Some)
}

/// Brings a member that was away back into use: what changed meanwhile is computed from the other
/// members. Where it cannot be proven what the member lacks, that is said, and all of it is made
/// anew. Returns what is to be printed.
pub(crate) fn re_add(source: &Source, member: &Path, thing: &str, force: bool, begin: &Begin) -> Result<String, Failure> {
    let members = foreseen(source, thing)?;
    let Some(found) = members.iter().find(|found| is_at(found, member)) else {
        return Err(Failure::new(member.display(), "not a member of the array", "'cxlraid status' lists its members"));
    };
    if found.standing == Standing::InSync && !found.is_rebuilding {
        return Err(Failure::new(member.display(), "is in sync", "there is nothing to bring back"));
    }
    if found.standing == Standing::Missing {
        let todo = "mount it where it was; 'cxlraid replace' puts another directory in its place";
        return Err(Failure::new(member.display(), "is missing", todo));
    }
    let (slot, is_out) = (found.slot, found.standing != Standing::InSync);
    let mut unproven = None;
    if is_out {
        let config = inspect::config(source)?;
        unproven = namespace::prove(&config, slot).map_err(|error| not_filled(thing, error))?.err();
        // Files that changed meanwhile are cut on it before they are computed from what is in memory.
        if !force {
            backed::require_other_backing(source, &[slot], thing)?;
        }
        let mut what = "only what changed while it was away is computed".to_owned();
        if let Some(unproven) = unproven {
            what = format!("all of it is made anew: {unproven}");
            say!("cxlraid: {thing}: {}: {what}", member.display());
        }
        let _ = events::begin(source, thing, inspect::newest(source, thing)?.array_uuid);
        events::tell(EventKind::ReAdd, Some(&found.path), None, &what);
    }
    let slots = if is_out { vec![slot] } else { vec![] };
    // What is in use already was brought back by a command before.
    let kind = if is_out { JobKind::ReAdd(unproven) } else { JobKind::Rebuild };
    let content = if unproven.is_some() { Content::Anew } else { Content::Kept };
    let repairing = fill((source, None), &slots, thing, (kind, content), begin, || Ok(()), || Ok(()))?;
    compute(source, thing, kind, begin, &repairing)
}

/// Puts the directory `new`, a spare or not, in the place of the member `old`. While `old` is in
/// use it stays so until `new` holds the same. Returns what is to be printed.
pub(crate) fn replace(registry: &Registry, array: &NamedArray, old: &Path, new: &Path, begin: &Begin) -> Result<String, Failure> {
    let thing = array.name.to_string();
    let [old, new] = [old, new].map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    let [old, new]: [PathBuf; 2] = [old, new].map(|path| path.components().collect());
    let source = |spec: &ArraySpec| Source::Named(array.name.clone(), spec.clone(), Some(array.uuid.clone()));
    let mut spec = array.spec.clone();
    let Some(place) = spec.members.iter().position(|member| *member == old) else {
        // A replacement that was cut short behind its last step but one is named already.
        let named = source(&array.spec);
        if foreseen(&named, &thing)?.iter().any(|member| is_at(member, &new) && member.is_rebuilding) {
            let repairing = fill((&named, None), &[], &thing, (JobKind::Replace, Content::Anew), begin, || Ok(()), || Ok(()))?;
            return compute(&named, &thing, JobKind::Replace, begin, &repairing);
        }
        if spec.members.contains(&new)
            && let Some(text) = replace::finish(&named, &thing, &old, &new)?
        {
            return Ok(text);
        }
        let todo = if spec.members.contains(&new) {
            "its place is taken already; 'cxlraid rebuild' goes on"
        } else {
            "'cxlraid status' lists its members"
        };
        return Err(Failure::new(old.display(), "not a member of the array", todo));
    };
    // The place of the old one if it is in use.
    let in_use = || {
        let works = |member: &&Member| is_at(member, &old) && member.standing == Standing::InSync;
        let members = foreseen(&source(&array.spec), &thing)?;
        let Some(member) = members.iter().find(works) else { return Ok(None) };
        if member.is_rebuilding {
            let todo = "'cxlraid rebuild' goes on; or take it out with 'cxlraid fail', then replace it";
            return Err(Failure::new(old.display(), "is being rebuilt", todo));
        }
        Ok(Some(member.slot))
    };
    backed::require_durable(&source(&array.spec), &thing, &old, &new)?;
    spare::require_mounted(&new)?;
    let require_free = || taken::require_free(registry, Some(&array.uuid), std::slice::from_ref(&new));
    require_free()?;
    let place_in_use = in_use()?;
    spec.members[place] = new.clone();
    let is_spare = spec.spares.contains(&new);
    spec.spares.retain(|spare| *spare != new);
    spec.check()?;
    let changed = source(&spec);
    if place_in_use.is_some() && matches!(look(&new), Found::Blank) {
        spare::require_room(&array.spec, &new)?;
    }
    let (old_source, mut is_named) = (source(&array.spec), false);
    let check_unchanged = || {
        if registry.find(&array.name)?.spec != array.spec {
            let todo = "look at it with 'cxlraid status', and give the command again";
            return Err(Failure::new(&thing, "members or spares were changed meanwhile", todo));
        }
        Ok(())
    };
    // Programs that start from then on are to find the new directory, also while it waits for
    // others to end.
    let mut name = |lock: &NamesLocks| {
        if is_named {
            return Ok(());
        }
        require_free()?;
        // Other spares may have come and gone while the member was filled.
        change_names(registry, lock, array, &old, &new)?;
        is_named = true;
        if is_spare && let Some(uuid) = Uuid::parse(array.uuid.as_bytes()) {
            let _ = events::begin(&changed, &thing, uuid);
            let what = format!("a spare takes the place of {}", Shown(old.as_os_str().as_bytes()));
            events::tell(EventKind::SpareUsed, Some(new.as_os_str().as_bytes()), None, &what);
        }
        Ok(())
    };
    if let Some(slot) = place_in_use {
        let (before, after, old, new) = (&old_source, &changed, &*old, &*new);
        let replacement = Replacement { registry, array, before, after, slot, old, new, begin, name: &mut name };
        if let Some(text) = replacement.run()? {
            return Ok(text);
        }
    }
    let mut config = inspect::config(&changed)?;
    // It may be a directory that was replaced once.
    config.renewed = Some(new.as_os_str().as_bytes().to_vec());
    let members = foreseen_by(&config, &thing)?;
    let Some(member) = members.iter().find(|member| is_at(member, &new)) else {
        return Err(Failure::new(new.display(), "has no place in the array", "'cxlraid status' lists its members"));
    };
    let slots = if member.standing == Standing::InSync { vec![] } else { vec![member.slot] };
    if matches!(look(&new), Found::Blank) {
        spare::require_room(&spec, &new)?;
    }
    let check = || {
        check_unchanged()?;
        match in_use()? {
            Some(_) => Err(Failure::new(old.display(), "is in use again", "give the command again")),
            None => Ok(()),
        }
    };
    let begun = || {
        note_replaced(&changed, &thing, &old);
        name(&registry.lock(&array.name)?)
    };
    let repairing = fill((&changed, Some(&new)), &slots, &thing, (JobKind::Replace, Content::Anew), begin, check, begun)?;
    name(&registry.lock(&array.name)?)?;
    note_replaced(&changed, &thing, &old);
    compute(&changed, &thing, JobKind::Replace, begin, &repairing)
}

/// Has all names of an array list the directory `new` in the place of `old`.
fn change_names(registry: &Registry, lock: &NamesLocks, array: &NamedArray, old: &Path, new: &Path) -> Result<(), Failure> {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let todo = format!("put {} in the place of {} there, or forget that name", new.display(), old.display());
    registry.change(lock, &array.name, &todo, |spec| {
        if spec.members.iter().any(|member| member == new) {
            return Ok(());
        }
        // Another name may have it by another path.
        let is_old = |member: &Path| identity(member).is_some_and(|found| Some(found) == identity(old));
        let listed = spec.members.iter().position(|member| member == old);
        let Some(place) = listed.or_else(|| spec.members.iter().position(|member| is_old(member))) else {
            let todo = "'cxlraid status' shows its members; give the command again";
            return Err(Failure::new(&array.name, format!("it does not list {}", old.display()), todo));
        };
        spec.members[place] = new.to_owned();
        spec.spares.retain(|spare| spare != new);
        spec.check()
    })
}

/// Has the directory of a member that is out say that another one has its place, if it is there and
/// can be told: paths that are out of date are refused by that.
fn note_replaced(after: &Source, thing: &str, old: &Path) {
    let Ok(newest) = inspect::newest(after, thing) else { return };
    if let Err(error) = array::note_replaced(old.as_os_str().as_bytes(), &newest) {
        let what = format!("could not be told that another directory has its place ({error})");
        say!("{}", Failure::new(old.display(), what, "do not use it as a member of the array again"));
    }
}

/// The members as a start would find them.
pub(crate) fn foreseen(source: &Source, thing: &str) -> Result<Vec<Member>, Failure> {
    foreseen_by(&inspect::config(source)?, thing)
}

/// As [`foreseen`], of a configuration.
fn foreseen_by(config: &Config, thing: &str) -> Result<Vec<Member>, Failure> {
    let members = Array::foresee(config).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    if members.is_empty() {
        return Err(Failure::new(thing, "has no members yet", "'cxlraid create' makes an array"));
    }
    Ok(members)
}

pub(crate) fn is_at(member: &Member, path: &Path) -> bool {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.components().collect::<PathBuf>() == Path::new(OsStr::from_bytes(&member.path))
}

/// What to do where files need what a member held.
const NEEDED: &str = "bring the member back with 'cxlraid re-add', if it can be, or remove these files; \
'cxlraid rebuild' makes it anew where no file needs what it held";

pub(crate) fn not_filled(thing: &str, error: FillError) -> Failure {
    let waits = "give the command again then; --wait SECONDS waits for it";
    match error {
        FillError::Unreached(pids) => {
            let what = format!("the member is begun; {} cannot use it: started before that, or in its directory", users(&pids));
            Failure::new(thing, what, format!("end these, or start them again one after the other, and {waits}"))
        }
        error @ (FillError::Nameless | FillError::Busy) => Failure::new(thing, error.to_string(), waits),
        FillError::Os(error @ (OsError::NOSPC | OsError::DQUOT)) => Failure::new(
            thing,
            format!("the member cannot be filled: {}", std::io::Error::from(error)),
            "make room on its device, or 'cxlraid replace' it by a directory on a larger one",
        ),
        FillError::Os(error) => Failure::new(
            thing,
            format!("the member cannot be filled: {}", std::io::Error::from(error)),
            "see to it that its device works, and try again",
        ),
        error => inspect::refused(thing, &error.to_string()),
    }
}

/// How many files wait for a member that is being rebuilt, and how many bytes they have, by the
/// inode table under another member's `.cxlraid`. None if this user may not read it.
pub(crate) fn waiting(meta: &Path, slot: Slot) -> Option<(usize, u64)> {
    let (mut count, mut bytes) = (0, 0u64);
    records::each(meta, |record| {
        if record.resync.is_some_and(|resync| resync.lost.contains(slot)) {
            count += 1;
            bytes = bytes.saturating_add(record.size);
        }
    })?;
    Some((count, bytes))
}
