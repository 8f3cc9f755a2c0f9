//! The two users that cases switch to: any that the system has, with the groups they belong to.

use std::fs;

/// A user and its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) group_name: String,
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// Two users without privileges, `nobody` first if there is one.
pub(crate) fn two() -> Result<[User; 2], String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    choose(&read("/etc/passwd")?, &read("/etc/group")?)
}

fn choose(passwd: &str, group: &str) -> Result<[User; 2], String> {
    let group_name = |id: u32| {
        let mut entries = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
        entries.find(|entry| entry.get(2).and_then(|text| text.parse().ok()) == Some(id)).map(|entry| entry[0].to_owned())
    };
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let (user, group) = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
        Some(User { name: fields[0].to_owned(), group_name: group_name(group)?, user, group })
    };
    let mut users: Vec<User> = passwd.lines().filter_map(parse).filter(|user| user.user != 0 && user.group != 0).collect();
    users.sort_by_key(|user| user.name != "nobody");
    let first = users.first().cloned().ok_or("there is no user but root")?;
    let other = |user: &&User| user.user != first.user && user.group != first.group;
    let second = users.iter().find(other).cloned().ok_or("there are no two users with groups of their own")?;
    Ok([first, second])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_users_of_different_groups_are_chosen() {
        let passwd = "root:x:0:0::/:/bin/sh\nsync:x:4:65534::/:\ndaemon:x:1:1::/:\nnobody:x:65534:65534::/:\nodd:x:9:77::/:\n";
        let [first, second] = choose(passwd, "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n").unwrap();
        assert_eq!((first.name.as_str(), first.group_name.as_str(), first.user), ("nobody", "nogroup", 65534));
        assert_eq!((second.name.as_str(), second.group), ("daemon", 1));
        assert!(choose("root:x:0:0::/:/bin/sh\n", "root:x:0:\n").is_err());
    }
}
