//! The command under the name `mount.cxlraid`: mount(8) starts it for file systems of the type
//! `cxlraid`, of its own accord or for a line of /etc/fstab.
//!
//! Options of mount(8) that say how to mount become those of `cxlraid mount`; those that are for
//! mount(8) and systemd (`nofail`, `_netdev`, `x-systemd...`) say nothing here.

use crate::{
    args,
    failure::{Exit, Failure},
};
use std::{
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
};

/// The name under which mount(8) starts the command.
const NAME: &str = "mount.cxlraid";
/// How mount(8) calls its helper (mount(8), "External helpers").
const USAGE: &str = "say 'mount.cxlraid ARRAY DIR [-o OPTIONS]', or mount -t cxlraid";
/// What is for mount(8) and those who read /etc/fstab. Names that begin with `x-` are, too.
const FOR_OTHERS: [&str; 25] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "group",
    "silent",
    "loud",
    "async",
    "sync",
    "dirsync",
    // The members' file systems decide on times.
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "nolazytime",
];

/// What mount(8) is told when the mount fails, and when the command line is wrong.
const FAILED: u8 = 32;
const WRONG: u8 = 1;

/// How an array's mount is to be.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Flags {
    pub(crate) allow_other: bool,
    pub(crate) read_only: bool,
    pub(crate) no_set_id: bool,
    pub(crate) no_devices: bool,
    pub(crate) no_programs: bool,
}

impl Flags {
    /// Reads a list with commas. `is_lenient`: an unknown option says nothing.
    pub(crate) fn parse(list: &str, is_lenient: bool) -> Result<Self, String> {
        let mut flags = Self::default();
        for option in list.split(',').filter(|option| !option.is_empty()) {
            match option {
                "allow_other" => flags.allow_other = true,
                // Of two that say the opposite the last counts.
                "ro" | "rw" => flags.read_only = option == "ro",
                "nosuid" | "suid" => flags.no_set_id = option == "nosuid",
                "nodev" | "dev" => flags.no_devices = option == "nodev",
                "noexec" | "exec" => flags.no_programs = option == "noexec",
                "remount" => return Err("an array's mount cannot be mounted anew in another way (remount)".to_owned()),
                _ if is_lenient || FOR_OTHERS.contains(&option) || option.starts_with("x-") || option.starts_with("comment=") => {
                }
                _ => return Err(format!("option {option} is unknown")),
            }
        }
        Ok(flags)
    }
}

impl fmt::Display for Flags {
    /// The list, for [`Self::parse`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.allow_other, "allow_other"),
            (self.read_only, "ro"),
            (self.no_set_id, "nosuid"),
            (self.no_devices, "nodev"),
            (self.no_programs, "noexec"),
        ];
        let names: Vec<&str> = all.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
        f.write_str(&names.join(","))
    }
}

/// Whether this process is started under that name.
pub(crate) fn is_meant(program: Option<&OsStr>) -> bool {
    program.map(Path::new).and_then(Path::file_name) == Some(OsStr::new(NAME))
}

/// Reads the words that mount(8) gives its helper. The answer is None if mount(8) asks the helper
/// only to pretend (-f).
pub(crate) fn arguments(words: impl Iterator<Item = OsString>) -> Result<Option<args::Mount>, Failure> {
    let wrong = |what: &str| Failure::new(NAME, what, USAGE).with_exit(Exit::Usage);
    let (mut named, mut list, mut pretends, mut is_lenient) = (Vec::new(), String::new(), false, false);
    let mut words = words;
    while let Some(word) = words.next() {
        let Some(letters) = word.to_str().and_then(|text| text.strip_prefix('-')) else {
            named.push(word);
            continue;
        };
        for letter in letters.chars() {
            match letter {
                'f' => pretends = true,
                's' => is_lenient = true,
                'n' | 'v' => {}
                'o' | 't' | 'N' => {
                    let value = words.next().and_then(|value| value.into_string().ok());
                    let value = value.ok_or_else(|| wrong("a value is missing"))?;
                    if letter == 'o' {
                        list = [list, value].join(",");
                    }
                }
                _ => return Err(wrong(&format!("-{letter} is unknown"))),
            }
        }
    }
    let [array, directory] = &named[..] else { return Err(wrong("an array and a directory are needed")) };
    let name = array
        .to_str()
        .unwrap_or_default()
        .parse()
        .map_err(|why: String| Failure::new(NAME, why, USAGE).with_exit(Exit::Usage))?;
    let options = Flags::parse(&list, is_lenient).map_err(|why| wrong(&why))?;
    let mount = args::Mount {
        name,
        directory: Some(PathBuf::from(directory)),
        foreground: false,
        allow_other: false,
        options,
        begun: false,
        quiet: true,
        private: false,
    };
    Ok(Some(mount).filter(|_| !pretends))
}

/// The exit status for mount(8).
pub(crate) const fn status(exit: Exit) -> u8 {
    match exit {
        Exit::Fine => 0,
        Exit::Usage => WRONG,
        _ => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Option<args::Mount>, Failure> {
        arguments(words.split(' ').map(OsString::from))
    }

    #[test]
    fn a_line_of_fstab_becomes_a_mount() {
        let mount = read("db /mnt/db -o rw,allow_other,nofail,_netdev,noexec,x-systemd.automount").unwrap().unwrap();
        assert_eq!((mount.name.as_str(), mount.directory.as_deref()), ("db", Some(Path::new("/mnt/db"))));
        assert!(!mount.foreground && mount.quiet);
        let expected = Flags { allow_other: true, no_programs: true, ..Flags::default() };
        assert_eq!(mount.options, expected);
        assert_eq!(Flags::parse(&expected.to_string(), false), Ok(expected));
        let mount = read("db /mnt/db -n -o ro -t cxlraid -o nosuid,nodev").unwrap().unwrap();
        assert_eq!(mount.options, Flags { read_only: true, no_set_id: true, no_devices: true, ..Flags::default() });
        let mount = read("db /mnt/db -o ro,rw,user,exec,noatime").unwrap().unwrap();
        assert_eq!(mount.options, Flags::default());
        assert!(read("-s db /mnt/db -o remount,ro").is_err());
        assert!(read("-fv db /mnt/db").unwrap().is_none());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (words, why) in [
            ("db", "an array and a directory"),
            ("db /a /b", "an array and a directory"),
            ("db /a -o", "a value is missing"),
            ("db /a -o acl", "option acl is unknown"),
            ("db /a -z", "-z is unknown"),
            ("/dev/sda /a", "letters, digits"),
        ] {
            let failure = read(words).unwrap_err();
            assert!(failure.to_string().contains(why), "{words}: {failure}");
            assert_eq!(status(failure.exit), WRONG);
        }
        assert!(read("db /a -s -o acl").unwrap().is_some());
    }

    #[test]
    fn the_name_tells() {
        assert!(is_meant(Some(OsStr::new("/sbin/mount.cxlraid"))));
        assert!(!is_meant(Some(OsStr::new("/usr/bin/cxlraid"))) && !is_meant(None));
    }
}
