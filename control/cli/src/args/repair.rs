//! The words of the commands about members and rules: those that take members out, bring them back,
//! make them anew and compare them; those that steer such a job; and those that say how a member is
//! used (`member`), which level new files get and which copies are read (`policy`), and to which
//! level files are moved (`migrate`).

use crate::{job::Pace, name::ArrayName};
use clap::{Args, Subcommand, ValueHint};
use layout::Level;
use std::path::{Path, PathBuf};
use units::{ChunkBytes, parse_bytes};

/// Make members that were lost whole again, in their own directories
///
/// A member that is out comes back: an empty directory (a new device mounted where the old one
/// was), or a member that was away, whose old content is given up. It gets all names, and then what
/// its files held is computed from the other members while programs work. Until then each file has
/// the redundancy that it had without the member, and the array is degraded. Cut short, the command
/// goes on where it was when it is given again.
///
/// Programs may run. Those that were started before the member is begun cannot use it: they must
/// end, or be started again one after the other, before it comes into use. The command names them,
/// or waits for them with --wait; given again, it goes on. Files that are open as the member comes
/// into use go on without it until all programs have closed them, and are computed then. An array
/// with a journal must be at rest.
///
/// If the array has spares ('cxlraid add ARRAY --spare DIR') and no member is named, spares take
/// the places of members that are out, and only the other members are made whole in their own
/// directories.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid rebuild db
  cxlraid rebuild db --wait 600
  cxlraid rebuild db --rate 500M --idle
  cxlraid rebuild db /mnt/b")]
pub(crate) struct Rebuild {
    /// Name of the array; without it the environment says which
    pub(crate) name: Option<ArrayName>,
    /// The member [default: every member that is out]
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) member: Option<PathBuf>,
    /// Only put spares in the places of members that are out, fill blank fast members of a backed
    /// array, and go on with what was cut short
    #[arg(long, conflicts_with = "member")]
    pub(crate) spares: bool,
    /// Make a member anew, also if it is all of a backed array's backing: what is durable is given up
    /// before there is anything new
    #[arg(long)]
    pub(crate) force: bool,
    /// Let go of what was inherited
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) pace: PaceOptions,
}

/// Bring a member back that was away: it gets what changed meanwhile
///
/// While a member is out, the others mark each file of which bytes change. The member that comes
/// back gets the names of the others, and the bytes of marked files are computed from the other
/// members; all other files keep the bytes that they have on it. Programs may run, and a command
/// that was cut short goes on when it is given again, as with 'cxlraid rebuild'.
///
/// That takes a member which is proven to be what it was as it left: taken out by 'cxlraid fail',
/// moved or unmounted while programs went on with the others, or missing since the array was ended
/// with 'cxlraid stop'. Of one that had an error, or is a copy, or an older state, and in an array
/// with a journal, all is made anew, as by 'cxlraid rebuild'; the command says so. A file that
/// somebody has changed on the member meanwhile is computed, too.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid re-add db /mnt/b
  cxlraid re-add db /mnt/b --wait 600")]
pub(crate) struct ReAdd {
    /// Name of the array
    pub(crate) name: ArrayName,
    /// The member
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) member: PathBuf,
    /// Make all of it anew where it must be, also if it is all of a backed array's backing
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) pace: PaceOptions,
}

/// How long a rebuild waits for programs.
#[derive(Args, Debug)]
pub(crate) struct Patience {
    /// Wait so long for programs to end that keep the member from coming into use, and for files to
    /// be closed that are open since before
    #[arg(short, long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub(crate) wait: u64,
}

/// How fast a rebuild, a replacement, a re-add or a scrub works.
#[derive(Args, Debug)]
pub(crate) struct PaceOptions {
    /// Do no more bytes of files in a second, say 500M; a file that a program waits for is computed
    /// without this limit
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    pub(crate) rate: Option<u64>,
    /// Give way: do no more than 10M in a second while programs that use the array are busy, which
    /// is when they have used a processor within the last half second
    #[arg(long)]
    pub(crate) idle: bool,
    /// So many threads work on as many files [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: Option<u16>,
}

impl PaceOptions {
    /// The pace that the options ask for.
    pub(crate) fn pace(&self) -> Pace {
        let processors = std::thread::available_parallelism().map_or(1, usize::from).min(256);
        Pace { rate: self.rate, gives_way: self.idle, workers: self.workers.map_or(processors, usize::from) }
    }
}

/// Reads a rate in bytes a second. A rate below 1 MiB is refused: a job would seem to pause between
/// two pieces of its work.
fn parse_rate(text: &str) -> Result<u64, String> {
    parse_bytes(text)
        .filter(|&rate| rate >= 1 << 20)
        .ok_or_else(|| "a rate is in bytes a second and at least 1M; say for example 500M".to_owned())
}

/// Let the job that runs on an array pause: a rebuild, a replacement, a re-add or a scrub
///
/// Whoever may use the array may pause its job, which another process or user may have begun. While
/// it is paused it holds no lock of a file; a file whose bytes it is just computing is begun again
/// when it goes on. It goes on after 'cxlraid resume'; if the process of a paused job ends, nothing
/// is paused any more, and the same command, given again, goes on. 'cxlraid status' shows the job.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid pause db")]
pub(crate) struct Pause {
    /// Name of the array; without it the environment says which
    pub(crate) name: Option<ArrayName>,
}

/// Let the job of an array go on that was paused
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid resume db")]
pub(crate) struct Resume {
    /// Name of the array; without it the environment says which
    pub(crate) name: Option<ArrayName>,
}

/// End the job that runs on an array: a rebuild, a replacement, a re-add or a scrub
///
/// What is done stays done, and nothing is left half done: a rebuild goes on when it is given again
/// ('cxlraid rebuild', also after a replacement or a re-add), a scrub tells what it has found. The
/// command waits until the job has ended.
///
/// 'cxlraid monitor' goes on with a rebuild that was cut short or cancelled; 'cxlraid pause' holds
/// it up.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid cancel db")]
pub(crate) struct Cancel {
    /// Name of the array; without it the environment says which
    pub(crate) name: Option<ArrayName>,
}

/// Put a new directory in the place of a member
///
/// The new directory is empty, and has room for what the fullest member holds. It takes the place
/// of the old one in the array and in the file that keeps the array's name.
///
/// If the old member works it stays a member, and a source, until the new directory holds the same:
/// no redundancy is given up meanwhile, and a level without any can be replaced, too. Programs may
/// use the array while it is copied. For the exchange itself no program may use it: programs that
/// run are named, and --wait SECONDS waits for them to end; what they changed is copied then. What
/// the old member cannot give is computed from the others after the exchange. The old member's
/// superblock says afterwards that it was replaced, and nothing else of it is changed.
///
/// If the old member is out, the new directory is rebuilt as by 'cxlraid rebuild'. A member that is
/// being rebuilt is not replaced.
///
/// If the command is cut short, by whatever, one of the two directories is the member; the same
/// command, given again, goes on.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid replace db /mnt/b /mnt/new")]
pub(crate) struct Replace {
    /// Name of the array
    pub(crate) name: ArrayName,
    /// The member
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) old: PathBuf,
    /// The directory that takes its place
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) new: PathBuf,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) pace: PaceOptions,
}

/// Read everything that members hold and compare it, while programs work
///
/// Of each file copies and parity are compared with the data, of each name what the members have
/// (kind, owner, mode, number of names, extended attributes, time of modification, length), and of
/// the members' tables, log of names, superblocks and journal their checks and each other. Each
/// thing that does not fit is told by the file's name and offset, with what can be known: with P
/// and Q (RAID 6) one wrong member of a stripe is located; of three copies and more those that
/// differ from most; else which is wrong cannot be known without checksums.
///
/// --check changes nothing but what every program changes that opens a file: what a crash or a
/// process that died left is made good, and a member that lacks a file, or has it shorter, gets its
/// bytes from the others. --repair rewrites a member that is located from the others; where
/// nothing says which is wrong, parity and later copies are made from the data, as by mdadm's
/// repair: what is wrong in the data stays. Modes, owners, extended attributes and times become
/// those of most members, else those of the lowest; names that a member still lacks then are told
/// and left: 'cxlraid rebuild' makes a member anew. Bytes are judged in units of 4 KiB of each
/// member.
///
/// SIGINT and 'cxlraid cancel' end a scrub, which tells what it has found.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status:
  0  everything was compared, and fits
  1  it could not run, or was ended before anything was found
  3  something does not fit (also where it was mended), or could not be compared: members are out, files cannot be read

Examples:
  cxlraid scrub db
  cxlraid scrub db --repair --idle
  cxlraid scrub db /data/tables --json")]
pub(crate) struct Scrub {
    /// Name of the array; without it (then a path comes first) the environment says which
    #[arg(value_name = "ARRAY", value_parser = parse_first)]
    pub(crate) first: Option<First>,
    /// Only look (the default)
    #[arg(long, conflicts_with = "repair")]
    pub(crate) check: bool,
    /// Mend what does not fit
    #[arg(long)]
    pub(crate) repair: bool,
    /// Print one JSON document (its keys only ever grow within a "version")
    #[arg(long)]
    pub(crate) json: bool,
    /// Only these files and directories of the array, and none of its tables
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) pace: PaceOptions,
}

/// The first word of `cxlraid scrub`, whose array need not be named.
#[derive(Clone, Debug)]
pub(crate) enum First {
    /// The array's name.
    Array(ArrayName),
    /// A path on the array of the environment.
    Path(PathBuf),
}

/// Takes a word with a slash for a path, and any other for an array's name.
fn parse_first(text: &str) -> Result<First, String> {
    if text.contains('/') {
        return Ok(First::Path(text.into()));
    }
    text.parse().map(First::Array)
}

impl Scrub {
    /// Returns the array's name, if the command names it.
    pub(crate) const fn array(&self) -> Option<&ArrayName> {
        match &self.first {
            Some(First::Array(name)) => Some(name),
            _ => None,
        }
    }

    /// Returns the paths that are to be compared; none stand for the whole array.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let first = if let Some(First::Path(path)) = &self.first { Some(path) } else { None };
        first.into_iter().chain(&self.paths).map(PathBuf::as_path)
    }
}

/// Take a member out of use by hand, while programs run
///
/// As mdadm's --fail: the member counts as failed from now on. Every process that uses the array
/// serves from the other members by its next operation; what was stored through mappings is brought
/// to them first, so nothing is lost. The member lacks what changes afterwards, and is not used
/// again before 'cxlraid re-add' has brought it back, which computes only what changed meanwhile, or
/// 'cxlraid rebuild' has made it anew. A member that the others cannot do without is refused, with
/// the names of files that would be lost; --force takes it out all the same: what only it has cannot
/// be read then, until 'cxlraid stop', and since nothing of that is put on record the next use of
/// the array has the member again.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid fail db /mnt/b")]
pub(crate) struct Fail {
    /// Name of the array
    pub(crate) array: ArrayName,
    /// The member
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) member: PathBuf,
    /// Do it, also if files cannot be read afterwards
    #[arg(long)]
    pub(crate) force: bool,
}

/// Show or change how a member is used
///
/// With --write-mostly on, as mdadm's option of that name, the member gets every write and is read
/// from only where no other member in use has a copy of the bytes: for a slow device beside a fast
/// one. That is so at once for every program that runs, and stays with the member's place in the
/// array until --write-mostly off. Only levels 1, 01 and 10 keep copies. What programs map (mmap)
/// they load from the first member that has a copy and is in use, whatever is said here.
///
/// With --fast on a restart of the machine may empty the member: that is no failure then, and the
/// member is filled again from the others, the backing. While no member of the backing works, a
/// program's fsync(2) fails (EIO). Programs that start from then on go by a change.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid member db /mnt/b
  cxlraid member db /mnt/b --write-mostly on
  cxlraid member db /dev/shm/db --fast on")]
pub(crate) struct Member {
    /// Name of the array
    pub(crate) array: ArrayName,
    /// The member
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) member: PathBuf,
    /// Whether the member is read from only where no other one has a copy
    #[arg(long, value_name = "on|off")]
    pub(crate) write_mostly: Option<Switch>,
    /// Whether a restart of the machine may empty the member
    #[arg(long, value_name = "on|off")]
    pub(crate) fast: Option<Switch>,
}

/// Show or change the level that new files get, and which copies are read
///
/// RULES. Every file has a level and a chunk of its own, fixed when it is made. Rules say which, by
/// the file's path: they are asked in order, the first that holds decides, and for files that none
/// holds for there is a default. 'set' replaces all rules by those of a file; files that are there
/// keep what they have. Programs that run follow at once. A rule's level must bear every loss that
/// the level bears with which the array was made. What the array as a whole bears goes by that one,
/// so a file of a higher level outlives no more members than the array does.
///
/// In patterns * stands for any characters but a slash, ? for one, [a-z] for one of these, {a,b} for
/// either, and ** as a whole component for any number of directories.
///
/// READS (--read). Levels 1, 01 and 10 keep copies. With 'round-robin' copies take turns: by file, and
/// within a file every 1 MiB, so that the same bytes come from the same copy each time and lie in the
/// processor's caches once. With 'local' a program reads the copies in memory that is nearest to the
/// processor on which it runs (NUMA), and these take turns; where all members are equally near, as on
/// a machine with one node, that is round-robin. With 'latency' about one of 256 reads is timed, and
/// members get shares in inverse proportion to how long their reads take; a difference of less than a
/// half counts as none. Whatever the policy, a member that is written mostly ('cxlraid member') is
/// read only where no other one has a copy. A change is on record, and every program that runs follows
/// it at once. What programs map (mmap) they load from the first member that has a copy and is in use.
#[derive(Args, Debug)]
#[command(after_help = "\
A file of rules (TOML):
  [[rule]]
  name  = 'media'
  under = '/data'                  # the files below this directory; left out: all
  match = ['**/*.{avi,mpg}']       # of these, those whose path below it fits; left out: all
  level = 4                        # 0, 1, 4, 5, 6, 10 or '01'
  chunk = '1M'
  [default]
  level = 5

Examples:
  cxlraid policy db                     (which copies are read, and whether there are rules)
  cxlraid policy db check rules.toml
  cxlraid policy db set rules.toml
  cxlraid policy db explain /data/a.avi
  cxlraid policy db drift        (which files have another level than the rules give now)
  cxlraid policy db plan rules.toml  (what members would hold by these rules)
  cxlraid policy db apply            (moves these files to the level that the rules give now)
  cxlraid policy db lost --without /mnt/b  (which files its loss would take along)
  cxlraid policy db --read latency
  cxlraid policy db --verify read")]
pub(crate) struct Policy {
    /// Name of the array
    pub(crate) array: ArrayName,
    /// Which copies are read from now on
    #[arg(long, value_name = "POLICY")]
    pub(crate) read: Option<ReadPolicyName>,
    /// Whether reads compare what they return with its checksums from now on
    #[arg(long, value_name = "read|none")]
    pub(crate) verify: Option<super::VerifyName>,
    /// What to do with the rules
    #[command(subcommand)]
    pub(crate) rules: Option<PolicyCommand>,
}

/// What is done about rules, and about files that are not as rules say.
#[derive(Subcommand, Debug)]
pub(crate) enum PolicyCommand {
    #[command(flatten)]
    Rules(RulesCommand),
    Apply(Apply),
}

/// Move the files that have another level or chunk than the rules give now: those that drift lists
///
/// As 'cxlraid migrate', which says how, to what the rules say at each file's path.
#[derive(Args, Debug)]
pub(crate) struct Apply {
    /// Only these files, and the files below these directories
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) moving: Moving,
}

/// How files are moved to another level.
#[derive(Args, Debug)]
pub(crate) struct Moving {
    /// Wait so long for the programs to end that use the array
    #[arg(short, long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub(crate) wait: u64,
    /// Say which files would be moved, and change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Move files to another RAID level or chunk
///
/// Each file is copied into a new one of that level, which then takes its name: with its bytes, holes,
/// owner, mode, access lists, extended attributes, capabilities and times, but for those of its making
/// and of its last change. Redundancy that does not fit its data is found before, and the file stays.
///
/// No program may use the array meanwhile, nor a mount: the refusal names those that do, and --wait
/// SECONDS waits for them to end. Programs that start wait; after half a minute of work they come in
/// between two files, and the command goes on when they have ended. All members must be in sync. A
/// file needs room for its second copy on every member.
///
/// A file with several names stays, and is told of; so is one whose owner or attributes this user may
/// not give to another file. If the command is cut short, by whatever, each file is the old one or
/// the new one, whole; the same command, given again, goes on.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status:
  0  every file has that level now
  1  a file was refused, or something failed
  2  the command line was wrong; files of the array may not have that level

Examples:
  cxlraid migrate db /data/films --to 6 --chunk 1M
  cxlraid migrate db /data/rows.db --to 1 --wait 60
  cxlraid policy db apply --dry-run")]
pub(crate) struct Migrate {
    /// Name of the array
    pub(crate) array: ArrayName,
    /// The files, as programs see them; of a directory all files below it
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// RAID level: 0, 1, 4, 5, 6, 01 or 10
    #[arg(long, value_name = "LEVEL", value_parser = super::parse_level)]
    pub(crate) to: Level,
    /// Chunk [default: that of the array]
    #[arg(short, long, value_parser = super::parse_chunk)]
    pub(crate) chunk: Option<ChunkBytes>,
    #[command(flatten)]
    pub(crate) moving: Moving,
}

/// What to do with the rules that say which level new files get.
#[derive(Subcommand, Debug)]
pub(crate) enum RulesCommand {
    /// Print the rules as they were set
    Show,
    /// Say whether a file of rules can be set; change nothing
    Check {
        /// The file, TOML
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Replace all rules by those of a file
    Set {
        /// The file, TOML
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Take all rules away: new files get the array's own level
    Unset,
    /// Say which rule decides for a path, what a new file gets there, and what the file there has
    Explain {
        /// The paths, as programs see them
        #[arg(required = true, value_hint = ValueHint::AnyPath)]
        paths: Vec<PathBuf>,
    },
    /// List the files that have another level or chunk than the rules give now
    Drift,
    /// Say what members would hold if all files had what a file of rules gives; change nothing
    Plan {
        /// The file, TOML
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// List the files that cannot be read whole while the members are out that are out now
    Lost {
        /// And this member as well
        #[arg(long, value_name = "MEMBER", value_hint = ValueHint::DirPath)]
        without: Option<PathBuf>,
    },
}

/// A read policy by its name.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadPolicyName {
    /// Copies take turns
    RoundRobin,
    /// Copies nearest to the reader's processor
    Local,
    /// Copies in inverse proportion to how long their reads take
    Latency,
}

impl ReadPolicyName {
    pub(crate) const fn policy(self) -> format::ReadPolicy {
        match self {
            Self::RoundRobin => format::ReadPolicy::RoundRobin,
            Self::Local => format::ReadPolicy::Local,
            Self::Latency => format::ReadPolicy::Latency,
        }
    }
}

/// On or off.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Empty the place of a member that is out, or take a spare away
///
/// As mdadm's --remove: only a member that is out is removed, be it missing, failed, failed by hand
/// or stale. Nothing in its directory is changed; from now on no directory is believed to be that
/// member, and 'cxlraid replace' (or 'cxlraid rebuild', which makes it anew) fills its place.
/// Processes that were running when the member was in use may have its directory open until they
/// end. A spare is taken out of the array's list, and its directory stays as it is.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid remove db /mnt/b")]
pub(crate) struct Remove {
    /// Name of the array
    pub(crate) array: ArrayName,
    /// The member or the spare
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) member: PathBuf,
}
