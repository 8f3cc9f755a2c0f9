//! A program of one user dies in the middle of a change, and the next program is another user's,
//! who may not finish it.

mod common;

use common::*;
use layout::Level;
use sys::OsError;

const USER: u32 = 1001;
#[test]
fn who_may_not_finish_anothers_change_works_on_what_is_there() {
    if sys::rustix::process::geteuid().as_raw() != 0 {
        eprintln!("NOT RUN: foreign_death needs two users");
        return;
    }
    let home = tempfile::Builder::new().prefix("cxlraid-names-").tempdir_in("/dev/shm").unwrap();
    std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let members: Vec<_> = (0..3).map(|slot| home.path().join(format!("m{slot}"))).collect();
    for member in &members {
        std::fs::create_dir(member).unwrap();
        std::os::unix::fs::chown(member, Some(USER), Some(USER)).unwrap();
    }
    act_as(USER);
    let array = TestArray::on(Level::Raid5, home, members);
    let names = array.namespace;
    write(&create(names, "/data/own"), 0, b"before");
    act_as(0);
    inside(names.mkdir(b"/data/roots", 0o755));
    // Root's program dies when the first member alone has the new name.
    drop(create(names, "/data/roots/new"));
    for member in &array.members[1..] {
        std::fs::remove_file(member.join("data/roots/new")).unwrap();
    }
    names.files().array().runtime().note_deaths();
    act_as(USER);
    let names = attach_again(&array.members.iter().map(|member| member.to_str().unwrap()).collect::<Vec<_>>().join(":"));
    assert!(names.is_change_unfinished() && names.may_not_finish_change());
    let own = inside(names.open(b"/data/own", cxlraid_namespace::OFlags::RDWR, 0));
    assert_eq!(read(&own), b"before");
    write(&own, 0, b"after!");
    // One more change in the log, and nobody would know that root's is half made.
    assert_eq!(refused(names.mkdir(b"/data/directory", 0o755)), OsError::ACCESS);
    act_as(0);
    inside(array.namespace.mkdir(b"/data/roots/directory", 0o755));
    assert!(!names.is_change_unfinished());
    act_as(USER);
    inside(names.mkdir(b"/data/directory", 0o755));
    act_as(0);
    assert_eq!(read(&inside(names.open(b"/data/own", cxlraid_namespace::OFlags::RDONLY, 0))), b"after!");
    assert!(array.members[2].join("data/roots/new").exists());
    assert_eq!(names.files().array().in_use().len(), 3);
    array.assert_same_trees();
}
