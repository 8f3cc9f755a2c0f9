//! The command line, defined once: parsing, `--help`, man pages and shell completions all come from
//! here.

mod repair;

pub(crate) use repair::*;

use crate::{helper::Flags, name::ArrayName};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint, builder::ArgPredicate};
use clap_complete::Shell;
use layout::Level;
use std::{ffi::OsString, path::PathBuf, str::FromStr as _};
use units::{ChunkBytes, parse_bytes};

const AFTER_HELP: &str = "\
Exit status:
  0  fine
  1  an error; one line on standard error says what happened and what to do
  2  the command line was wrong
  3  status: an array works, but is degraded; journal show: writes wait to be replayed; scrub: something does not fit, or could not be compared

Examples:
  cxlraid create db --level 5 --chunk 64K --at /data /mnt/a /mnt/b /mnt/c
  cxlraid run db -- sqlite3 /data/rows.db
  cxlraid status db

Without a name, commands use the environment, as the library does: CXLRAID_LEVEL, CXLRAID_MOUNTS,
CXLRAID_PATHS, CXLRAID_STRIPE_SIZE, CXLRAID_JOURNAL.";

/// RAID for byte-addressable memory, under unmodified programs.
#[derive(Parser, Debug)]
#[command(name = "cxlraid", version, after_help = AFTER_HELP, propagate_version = false)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Create(Create),
    Run(Run),
    Info(Info),
    Status(Status),
    Examine(Examine),
    Add(Add),
    Retrieve(Retrieve),
    Journal(Journal),
    #[command(visible_alias = "repair")]
    Rebuild(Rebuild),
    ReAdd(ReAdd),
    Replace(Replace),
    Scrub(Scrub),
    Pause(Pause),
    Resume(Resume),
    Cancel(Cancel),
    Fail(Fail),
    Remove(Remove),
    Member(Member),
    Policy(Policy),
    Migrate(Migrate),
    Events(Events),
    Monitor(Monitor),
    Top(Top),
    Mount(Mount),
    Unmount(Unmount),
    Stop(Stop),
    Access(Access),
    Gc(Gc),
    Assemble(Assemble),
    Forget(Forget),
    Completions(Completions),
    #[command(hide = true)]
    Man(Man),
}

/// Make an array of member directories and give it a name
///
/// Each member is a directory on a device of its own. The array's files appear to programs below
/// the paths given with --at; on the members they lie at the same paths. The name is kept in a
/// small TOML file.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid create db --level 5 --chunk 64K --at /data /mnt/a /mnt/b /mnt/c
  cxlraid create bank --level 5 --journal /mnt/j --at /srv/bank /mnt/a /mnt/b /mnt/c
  cxlraid create home --level 1 --at /home --at /root /mnt/a /mnt/b
  cxlraid create fast --fast /dev/shm/fast --backing /var/lib/fast --at /srv/fast
  cxlraid create near --level 1 --read-policy local --at /srv/near /mnt/node0 /mnt/node1
  cxlraid create team --system --group db --mode 0660 --level 1 --at /srv/team /mnt/a /mnt/b
  cxlraid create shared --system --level 6 --at /srv/db /mnt/a /mnt/b /mnt/c /mnt/d")]
pub(crate) struct Create {
    /// Name of the array: letters, digits, '.', '_' and '-'
    pub(crate) name: ArrayName,
    /// RAID level: 0, 1, 4, 5, 6, 01 or 10 [default with --backing: 1]
    #[arg(short, long, value_parser = parse_level, required = false, required_unless_present = "backing")]
    #[arg(default_value_if("backing", ArgPredicate::IsPresent, "1"))]
    pub(crate) level: Level,
    /// Chunk (stripe unit): a power of two from 64 to 64M
    #[arg(short, long, default_value = "64K", value_parser = parse_chunk)]
    pub(crate) chunk: ChunkBytes,
    /// Path below which programs see the array's files; may be given several times
    #[arg(long = "at", value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Make each write atomic, also when a member is lost in the same crash: a file (or the
    /// directory for it) on a device of its own, or 'internal' for a journal on the members
    #[arg(long, value_name = "PATH|internal", value_hint = ValueHint::AnyPath)]
    pub(crate) journal: Option<OsString>,
    /// Read from this member only where no other one has a copy of the bytes, as mdadm's
    /// --write-mostly; may be given several times (levels 1, 01 and 10)
    #[arg(long, value_name = "MEMBER", value_hint = ValueHint::DirPath)]
    pub(crate) write_mostly: Vec<PathBuf>,
    /// Which copy of the bytes is read (levels 1, 01 and 10): 'cxlraid policy' explains and changes
    /// it [default: round-robin]
    #[arg(long, value_name = "POLICY")]
    pub(crate) read_policy: Option<ReadPolicyName>,
    /// A fast member of a backed array, such as a directory below /dev/shm: it is read, and a restart
    /// of the machine may empty it; may be given several times
    #[arg(long, value_name = "MEMBER", requires = "backing", value_hint = ValueHint::DirPath)]
    pub(crate) fast: Vec<PathBuf>,
    /// A member of a backed array that keeps what it holds, such as a directory on an SSD: it gets
    /// every write, makes it durable at fsync, and gives it back to fast members that were emptied;
    /// may be given several times
    #[arg(long, value_name = "MEMBER", requires = "fast", value_hint = ValueHint::DirPath)]
    pub(crate) backing: Vec<PathBuf>,
    /// Take a backing that is volatile or shares its device with another member
    #[arg(long, requires = "backing")]
    pub(crate) force: bool,
    /// Keep checksums of all data and redundancy, beside them: 'cxlraid scrub' then knows which copy
    /// is wrong [default: none]
    #[arg(long, value_name = "crc32c|none")]
    pub(crate) checksum: Option<ChecksumName>,
    /// Whether reads compare what they return with its checksums, and take what does not fit from the
    /// other members: 'cxlraid policy' changes it [default: none]
    #[arg(long, value_name = "read|none")]
    pub(crate) verify: Option<VerifyName>,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
    /// Keep the name for every user of this machine instead of for you
    #[arg(long)]
    pub(crate) system: bool,
    /// Member directories; their order is part of the array
    #[arg(value_name = "MEMBER", value_hint = ValueHint::DirPath)]
    #[arg(required_unless_present = "backing", conflicts_with_all = ["fast", "backing"])]
    pub(crate) members: Vec<PathBuf>,
}

/// A checksum of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChecksumName {
    /// CRC-32C of each 4096 bytes of each member
    Crc32c,
    /// No checksums
    None,
}

/// What is compared with checksums besides what scrubs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerifyName {
    /// All blocks that a read returns bytes of
    Read,
    /// What is computed for members that are out
    None,
}

/// Whom an array is open to.
#[derive(Args, Debug, Default)]
pub(crate) struct AccessOptions {
    /// The user whom the array belongs to, by name or number [default: you; only root may name
    /// another]
    #[arg(long, value_name = "USER")]
    pub(crate) owner: Option<String>,
    /// The group whose members may use the array, by name or number
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Who may use it: 0600 its owner, 0660 its group as well, 0666 everybody [default: 0660 with
    /// --group, else 0600]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) mode: Option<u32>,
}

impl AccessOptions {
    /// Whether anything is asked for.
    pub(crate) const fn is_given(&self) -> bool {
        self.owner.is_some() || self.group.is_some() || self.mode.is_some()
    }
}

/// Show or change whom an array is open to
///
/// Whoever may use an array is trusted with all of it: its tables are one file for all. Files and
/// directories in it keep owners and modes of their own, which the kernel checks; 'cxlraid run NAME --
/// chgrp' and the like change them. Root may use every array. To change it no program may be using
/// the array.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid access db
  cxlraid access db --group db --mode 0660
  cxlraid access db --owner alice --mode 0600")]
pub(crate) struct Access {
    /// Name of the array; without it the environment says which
    pub(crate) name: Option<ArrayName>,
    #[command(flatten)]
    pub(crate) options: AccessOptions,
}

/// Run a program that sees the array
///
/// The program and what it starts are ordinary, dynamically linked programs. The program lies on the
/// host, since this command does not see the array itself: 'cxlraid run db -- env /data/program'
/// starts one that is stored on the array. With --mount any other programs among them see the array
/// too: static ones, Go programs, those with a cleaned environment. The exit status is the program's
/// own; 126 or 127 when it could not be started, as in a shell, and 126 when --mount is refused.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid run db -- sqlite3 /data/rows.db
  cxlraid run db -- bash
  cxlraid run --mount db -- make
  CXLRAID_LEVEL=1 CXLRAID_MOUNTS=/mnt/a:/mnt/b CXLRAID_PATHS=/data cxlraid run -- cp -a src /data")]
pub(crate) struct Run {
    /// Mount the array at its paths, which must be directories, for the program and what it starts
    /// alone; without root in a user namespace, where no other user is known and su and sudo gain
    /// nothing. The mount ends with the last of these programs. Where the array is mounted already
    /// that mount is used. Needs /dev/fuse
    #[arg(short, long, requires = "name")]
    pub(crate) mount: bool,
    /// Name of the array; without it the environment says which
    pub(crate) name: Option<ArrayName>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) program: Vec<OsString>,
}

/// Show status, configuration, runtime, build, members and paths
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid info db
  CXLRAID_LEVEL=1 CXLRAID_MOUNTS=/mnt/a:/mnt/b cxlraid info")]
pub(crate) struct Info {
    /// Name of the array; without it the environment says which
    pub(crate) name: Option<ArrayName>,
}

/// Say whether arrays are healthy; exit status 3 when one is degraded
///
/// Without a name: the array of the environment if there is one, else every named array. While
/// programs have files of the array in memory mappings, how many, in which units what is stored
/// through these is followed, and how much shared memory the copies take that some of them show.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status:
  0  every member is in sync
  1  an array cannot be used, or an error
  3  an array works without some of its members

Examples:
  cxlraid status
  cxlraid status db --json")]
pub(crate) struct Status {
    /// Name of the array
    pub(crate) name: Option<ArrayName>,
    /// Print one JSON document (its keys only ever grow within a "version")
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what a member's superblock says, without changing anything
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid examine /mnt/a")]
pub(crate) struct Examine {
    /// The member directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) member: PathBuf,
}

/// Copy a file or directory from the host into the array; with --spare give the array a spare
///
/// Programs under `cxlraid run` cannot see host files below the array's paths; this command can.
///
/// With -r the command names each file that it cannot copy, leaves that out, copies the rest, and
/// exits with 1. Names that are there are replaced by what is of their kind (a file after its
/// original was read to the end), and left as they are otherwise. Kept are modes, times, symbolic
/// links, pipes, sockets, devices, several names of one file and holes; owners and devices as far
/// as the user may; of files and directories the extended attributes user.*, access control lists,
/// and for root trusted.*, which no other user can see. Capabilities are not copied, which is told.
///
/// With --spare no file is copied: an empty directory on a device of its own becomes a spare of the
/// array that is named. The spare takes the place of a member that is out, by itself while 'cxlraid
/// monitor' runs, else at the next 'cxlraid rebuild'; 'cxlraid status' lists spares, and 'cxlraid
/// remove ARRAY DIR' takes one away. Nothing is written into a spare before it takes a place.
/// Refused are a directory that is a member or a spare, that is not empty, or in which no member
/// could be made (read-only, no user extended attributes, less free than a member holds).
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid add --array db valkey.conf /data/valkey.conf
  cxlraid add --array db -r corpus /data/corpus
  cxlraid add --array db -rT corpus /data/corpus   (again: /data/corpus is there by now)
  cxlraid add /home/me/notes        (same path on both sides, array from the environment)
  cxlraid add db --spare /mnt/s")]
pub(crate) struct Add {
    /// Name of the array; without it the environment says which
    #[arg(short, long)]
    pub(crate) array: Option<ArrayName>,
    /// Copy directories with all they contain
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// The copy gets the given path itself, also where a directory is: to go on with a copy that
    /// was interrupted
    #[arg(short = 'T', long)]
    pub(crate) no_target_directory: bool,
    /// Give the array, whose name then stands in the place of HOST, this directory as a spare
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with_all = ["array", "recursive", "no_target_directory", "path"])]
    pub(crate) spare: Option<PathBuf>,
    /// The file on the host; with --spare the array's name
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) host: PathBuf,
    /// Its path on the array; missing directories are made [default: the same path, or the name
    /// below the array's path if it has one]
    pub(crate) path: Option<PathBuf>,
}

/// Copy a file or directory from the array to the host
///
/// With -r the command names each file that it cannot copy, leaves that out, copies the rest, and
/// exits with 1. Names that are there are replaced by what is of their kind (a file after its
/// original was read to the end), and left as they are otherwise. Kept are modes, times, symbolic
/// links, pipes, sockets, devices, several names of one file and holes; owners and devices as far
/// as the user may; of files and directories the extended attributes user.*, access control lists,
/// and for root trusted.*, which no other user can see. Capabilities are not copied, which is told.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid retrieve --array db /data/results.json results.json
  cxlraid retrieve --array db -r /data/corpus corpus
  cxlraid retrieve --array db -rT /data/corpus corpus   (again: corpus is there by now)
  cxlraid retrieve /home/me/notes   (same path on both sides, array from the environment)")]
pub(crate) struct Retrieve {
    /// Name of the array; without it the environment says which
    #[arg(short, long)]
    pub(crate) array: Option<ArrayName>,
    /// Copy directories with all they contain
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// The copy gets the given path itself, also where a directory is: to go on with a copy that
    /// was interrupted
    #[arg(short = 'T', long)]
    pub(crate) no_target_directory: bool,
    /// The path on the array
    pub(crate) path: PathBuf,
    /// The file on the host; missing directories are made [default: the same path]
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) host: Option<PathBuf>,
}

/// Show, replay or give up an array's journal
///
/// With a journal each write up to 1 MiB is old or new as a whole after a crash, and a member that
/// is lost in the same crash is computed rightly. What a crash cut short is replayed when its file
/// is next opened for writing.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status:
  0  done; show: nothing waits
  1  an error; show: the journal is lost
  3  show: writes wait to be replayed

Examples:
  cxlraid journal show db --json
  cxlraid journal replay db
  cxlraid journal clear db --force
  cxlraid journal add db /mnt/j
  cxlraid journal remove db")]
pub(crate) struct Journal {
    #[command(subcommand)]
    pub(crate) action: JournalAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum JournalAction {
    /// Say where the journal is and what waits in it, without changing anything
    Show {
        /// Name of the array; without it the environment says which
        name: Option<ArrayName>,
        /// Print one JSON document (its keys only ever grow within a "version")
        #[arg(long)]
        json: bool,
    },
    /// Replay every write that waits, instead of when its file is next opened
    Replay {
        /// Name of the array; without it the environment says which
        name: Option<ArrayName>,
    },
    /// Empty the journal: writes that wait in it are given up and stay as the crash left them. Also
    /// replaces one that is lost
    Clear {
        /// Name of the array; without it the environment says which
        name: Option<ArrayName>,
        /// Do it: what is given up cannot be had back
        #[arg(long)]
        force: bool,
        /// Make the new one here: a file, its directory, or 'internal' [default: where it is, if it
        /// is there]
        #[arg(long, value_name = "PATH|internal", value_hint = ValueHint::AnyPath)]
        to: Option<OsString>,
    },
    /// Give an array that has none a journal; no program may be using the array
    Add {
        /// Name of the array
        name: ArrayName,
        /// A file on a device of its own, the directory for it, or 'internal'
        #[arg(value_name = "PATH|internal", value_hint = ValueHint::AnyPath)]
        place: OsString,
    },
    /// Take an array's journal away; no program may be using the array
    Remove {
        /// Name of the array; without it the environment says which
        name: Option<ArrayName>,
    },
}

/// Show what happened to arrays
///
/// Members that failed or were taken out, starts without a member, rebuilds, scrubs and what they
/// found, tables that were healed: programs under 'cxlraid run' and these commands append each to
/// the log of the array, one JSON object a line, in $XDG_STATE_HOME/cxlraid, else in
/// /var/lib/cxlraid (root) or ~/.local/state/cxlraid. An array without a name has a log where
/// CXLRAID_EVENTS says. A log may be renamed at any time (logrotate).
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid events
  cxlraid events db --follow
  cxlraid events db --json | jq 'select(.event == \"Fail\")'")]
pub(crate) struct Events {
    /// Name of the array [default: every named array]
    pub(crate) array: Option<ArrayName>,
    /// Go on showing what happens, until SIGINT or SIGTERM
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print the lines of the log as they are
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tell a program, or Prometheus, what happens to arrays, as it happens
///
/// For each event the program is run with the event, the array's name and, if the event is about
/// one, the member as its arguments, as by mdadm --monitor: Fail, DegradedArray, RebuildStarted,
/// RebuildFinished, ScrubStarted, ScrubFinished, Mismatch, Rotten (a read has met a block that does not
/// fit its checksum), Unreadable (and got EIO), Healed, Removed, SpareUsed, ReAdd.
/// Events come from the arrays' logs ('cxlraid events'); besides, the members are looked at every
/// --delay seconds, since a member that nobody uses fails without anybody who could log it. The
/// command stays in the foreground until SIGINT or SIGTERM, and says READY=1 to the socket that
/// NOTIFY_SOCKET names; control/systemd has a unit for it.
///
/// With --prometheus a file is kept that says how the arrays are, for the textfile collector of
/// Prometheus' node_exporter: states of arrays and members, files that are degraded or lost, the
/// job that runs, the last scrub, calls and bytes of programs ('cxlraid top'), and how many events
/// of each kind the log has. It is written anew at each look and after each event, never seen half
/// written, and removed when the command ends in order, since nobody watches then.
///
/// While a member is out and the array has a spare that is ready ('cxlraid add ARRAY --spare DIR'),
/// the command has 'cxlraid rebuild ARRAY --spares' run, which waits for the programs to end or to
/// be started again that run since before. That goes on, too, with a rebuild that was cut short. A
/// scrub that runs then is ended for it.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid monitor --program /etc/cxlraid/event
  cxlraid monitor db bank --program ./mail-me --delay 60
  cxlraid monitor --prometheus /var/lib/prometheus/node-exporter/cxlraid.prom")]
pub(crate) struct Monitor {
    /// Names of arrays [default: every named array, as of now]
    pub(crate) arrays: Vec<ArrayName>,
    /// The program
    #[arg(short, long, value_name = "PROGRAM", value_hint = ValueHint::ExecutablePath, required_unless_present = "prometheus")]
    pub(crate) program: Option<PathBuf>,
    /// Keep this file for Prometheus
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) prometheus: Option<PathBuf>,
    /// Seconds between looks at the members
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) delay: u64,
}

/// Show what programs do on an array, as it happens: calls, bytes, latency
///
/// For the array, each member and each process the command shows how many calls a second read,
/// write, make durable (sync) or do something else, how many MB (10^6 bytes) they move, and how long
/// calls of the program take: the mean, and what all but one in a hundred stay below. Calls that
/// fail are not counted, nor is what programs load and store through memory mappings, nor what other
/// commands do. Calls through a mount are those of the mount's process. Times are those of about
/// one call in 256. What a call moves on members, parity and copies included, is looked at for the
/// same calls: so members' figures are estimates.
///
/// On a terminal the screen is drawn anew until q or Ctrl-C, else a table is printed after each
/// interval. Totals, which --json prints too, count since the array came into use after a start of
/// the machine or 'cxlraid stop'; they outlive the processes that counted, however these ended.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid top db
  cxlraid top db --once --interval 10
  cxlraid top db --json | while read -r line; do printf '%s' \"$line\" | python3 -m json.tool; done")]
pub(crate) struct Top {
    /// Name of the array; without it the environment says which
    pub(crate) name: Option<ArrayName>,
    /// Print the figures of one interval, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one JSON document (its keys only ever grow within a "version"); without --once one
    /// on each line
    #[arg(long)]
    pub(crate) json: bool,
    /// The length of an interval: from 0.1 to 86400 seconds
    #[arg(short, long, default_value_t = 1.0, value_name = "SECONDS", value_parser = parse_interval)]
    pub(crate) interval: f64,
}

/// Mount an array, for programs that 'cxlraid run' cannot reach
///
/// Static and setuid programs, Go programs and those with a cleaned environment see the array's
/// files below the directory, while programs under 'cxlraid run' use the array as before: what one
/// has written when its call returns, the other reads. Without --allow-other only root sees the
/// mount. The command returns when the directory is mounted; the process that serves it stays.
/// Refused are a directory that is not empty, that has a member below it or lies in one, and one on
/// which an array is mounted; a mount whose process has ended is taken away. Needs root and
/// /dev/fuse.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid mount db
  cxlraid mount db /mnt/db --allow-other
  cxlraid mount db /mnt/db -o ro,noexec
  mount -t cxlraid db /mnt/db         # where mount.cxlraid is installed; so /etc/fstab can name it
  cxlraid unmount db")]
pub(crate) struct Mount {
    /// Name of the array
    pub(crate) name: ArrayName,
    /// Where to mount it [default: at the array's own paths, each of which is mounted]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
    /// Serve the mount in this process, until it is unmounted or a signal ends it; say READY=1 to
    /// the socket that NOTIFY_SOCKET names
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Let other users see the mount too, with their own rights
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Options as in /etc/fstab: allow_other, ro, nosuid, nodev, noexec; what only mount(8) and
    /// systemd read is passed over
    #[arg(short, long, value_name = "LIST", default_value = "", hide_default_value = true, value_parser = parse_mount_options)]
    pub(crate) options: Flags,
    /// The process was started to stay when the command ends
    #[arg(long, hide = true, requires = "foreground")]
    pub(crate) begun: bool,
    /// Do not say where it is mounted
    #[arg(long, hide = true)]
    pub(crate) quiet: bool,
    /// In the namespace of one program, for `cxlraid run --mount`
    #[arg(long, hide = true)]
    pub(crate) private: bool,
}

/// Take an array's mounts away
///
/// The process that serves the mount ends. Programs under 'cxlraid run' go on.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid unmount db
  cxlraid unmount /mnt/db --lazy")]
pub(crate) struct Unmount {
    /// Name of the array, all of whose mounts are taken away, or the directory of one
    #[arg(value_name = "ARRAY|DIR", value_hint = ValueHint::DirPath)]
    pub(crate) what: PathBuf,
    /// Also if programs use it: they go on until they have ended, and no others find it
    #[arg(short, long)]
    pub(crate) lazy: bool,
}

/// End an array's runtime state once no program uses it
///
/// Members and files stay as they are; the next program that uses the array starts it again.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid stop db")]
pub(crate) struct Stop {
    /// Name of the array; without it the environment says which
    pub(crate) name: Option<ArrayName>,
}

/// Remove what lies in shared memory and belongs to nobody
///
/// Runtime segments under /dev/shm stay when the last process of an array has ended, so that the
/// next one starts faster, and also when its members are gone; shared copies of mapped files stay
/// when their processes are killed. This removes what nobody uses and no recovery needs, of every
/// array, with or without a name; each file is shown with what became of it. The first program that
/// starts on an array removes what its user has left there for an hour.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid gc --dry-run
  cxlraid gc")]
pub(crate) struct Gc {
    /// Only show what would be removed
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Only what belongs to the array with this UUID
    #[arg(value_parser = parse_uuid)]
    pub(crate) uuid: Option<format::Uuid>,
}

/// Decide which members are right when they were used apart
///
/// When members of an array were each used without the others, nothing says whose changes are to be
/// kept, and programs are refused. This keeps what one member and those that were used with it
/// have; the others count as stale. Nothing is changed if the members agree.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid assemble db --prefer /mnt/a")]
pub(crate) struct Assemble {
    /// Name of the array; without it the environment says which
    pub(crate) name: Option<ArrayName>,
    /// The member whose changes are kept
    #[arg(long, value_name = "MEMBER")]
    pub(crate) prefer: PathBuf,
}

/// Remove the name of an array; members and files stay as they are
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid forget db")]
pub(crate) struct Forget {
    /// Name of the array
    pub(crate) name: ArrayName,
}

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cxlraid completions bash > /usr/share/bash-completion/completions/cxlraid
  cxlraid completions fish > ~/.config/fish/completions/cxlraid.fish")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

/// Write the man pages, cxlraid.1 and one per command
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The directory they go to
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

fn parse_mount_options(text: &str) -> Result<Flags, String> {
    Flags::parse(text, false)
}

pub(crate) fn parse_level(text: &str) -> Result<Level, String> {
    Level::from_str(text).map_err(|error| error.to_string())
}

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "not a number of seconds from 0.1 to 86400".to_owned())
}

/// "0660" to permission bits: whoever may use an array reads and writes.
fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| array::access::MODES.contains(mode));
    mode.ok_or_else(|| "a mode is 0600 (the owner), 0660 (the group as well) or 0666 (everybody)".to_owned())
}

fn parse_uuid(text: &str) -> Result<format::Uuid, String> {
    format::Uuid::parse(text.as_bytes())
        .ok_or_else(|| "a UUID is 32 hexadecimal digits in groups, as 'cxlraid info' shows it".to_owned())
}

/// "64K" to a chunk; also what the TOML file uses.
pub(crate) fn parse_chunk(text: &str) -> Result<ChunkBytes, String> {
    parse_bytes(text)
        .and_then(ChunkBytes::new)
        .ok_or_else(|| "a chunk is a power of two from 64 to 64M; say for example 64K".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_visible_command_shows_examples() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().unwrap_or_default().to_string();
            assert!(help.contains("Examples:\n  "), "{} has no examples", command.get_name());
            assert!(command.get_about().is_some(), "{} has no description", command.get_name());
        }
    }

    #[test]
    fn run_takes_everything_after_the_dashes() {
        let cli = Cli::try_parse_from(["cxlraid", "run", "db", "--", "ls", "-l", "--", "x"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.name.unwrap().as_str(), "db");
        assert_eq!(run.program, ["ls", "-l", "--", "x"]);
        let cli = Cli::try_parse_from(["cxlraid", "run", "--", "ls"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert!(run.name.is_none());
    }

    #[test]
    fn chunks_are_powers_of_two_within_limits() {
        assert_eq!(parse_chunk("64K"), Ok(ChunkBytes::DEFAULT));
        assert!(parse_chunk("3K").is_err());
        assert!(parse_chunk("128M").is_err());
        assert!(parse_chunk("").is_err());
    }
}
