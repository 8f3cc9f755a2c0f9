//! Copies within the kernel, and the times of files.

use crate::{
    Options,
    ground::Ground,
    peer::Programs,
    scenes::{Doors, L, M, on_both},
};

/// A copy within the kernel (copy_file_range(2)) copies what the source holds now, whoever has written
/// that, up to the end that the kernel knows.
pub(crate) fn copies(options: &Options, programs: &Programs) -> Result<(), String> {
    on_both(
        options,
        programs,
        &[
            (L, "o 0 @/source wc", "0"),
            (L, "w 0 0 AAAAAAAA", "8"),
            (M, "o 0 @/source r", "0"),
            (M, "o 1 @/target wc", "0"),
            (M, "J 0 0 1 0 100", "8"),
            (L, "w 0 0 BBBBBBBB", "8"),
            (M, "J 0 0 1 0 100", "8"),
            (M, "r 1 0 99", "BBBBBBBB"),
            (L, "o 1 @/target r", "0"),
            (L, "r 1 0 99", "BBBBBBBB"),
            (L, "w 0 8 CC", "2"),
            (M, "z 0", "10"),
            (M, "J 0 0 1 4 100", "10"),
            (L, "r 1 0 99", "BBBBBBBBBBBBCC"),
            // Nothing lies behind the end, and nothing behind what the other door has cut.
            (M, "J 0 10 1 0 5", "0"),
            (L, "t 0 3", "0"),
            (M, "J 0 0 1 2000000 8", "3"),
            (L, "z 1", "2000003"),
            (L, "r 1 2000000 9", "BBB"),
            // Within one file.
            (L, "w 0 0 abcdefgh", "8"),
            (M, "o 2 @/source w", "0"),
            (M, "z 2", "8"),
            (M, "J 2 0 2 4 8", "E22"),
            (M, "J 2 0 2 8 4", "4"),
            (L, "r 0 0 99", "abcdefghabcd"),
            // To what is open to append or to read, nothing is copied.
            (M, "o 3 @/target Wa", "0"),
            (M, "J 0 0 3 0 5", "E9"),
            (M, "J 2 0 0 0 5", "E9"),
            // Of what was stored through a mapping, and to what one shows.
            (M, "o 4 @/mapped wc", "0"),
            (M, "t 4 8192", "0"),
            (M, "M 4 8192", "0"),
            (M, "8 4 0 stored", "0"),
            (M, "J 4 0 1 0 6", "6"),
            (L, "r 1 0 6", "stored"),
            (M, "8 4 4096 before", "0"),
            (M, "J 2 0 4 4098 3", "3"),
            (M, "V 4 4096 6", "beabce"),
            // More than one piece.
            (L, "t 0 70000000", "0"),
            (L, "w 0 69999990 end", "3"),
            (M, "z 2", "70000000"),
            (M, "J 2 0 1 0 70000000", "67108864"),
            (M, "J 2 67108864 1 67108864 9000000", "2891136"),
            (L, "r 1 69999990 3", "end"),
            (L, "r 1 0 8", "abcdefgh"),
        ],
    )
}

/// A file that was written and closed has one time, none is older than what was looked at before it
/// was written, and both doors tell when a file was made.
pub(crate) fn times(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    let mut doors = Doors::open(&ground)?;
    doors.play(&[
        (M, "d @/by-mount", "0"),
        (M, "0 @/by-mount 300", "apart 0 moved 0 older 0"),
        (L, "d @/by-library", "0"),
        (L, "0 @/by-library 300", "apart 0 moved 0 older 0"),
    ])?;
    for name in ["@/by-mount", "@/by-mount/large", "@/by-library/small0"] {
        let told = doors.library.ask(&format!("5 {name}"))?;
        if told == "not told" {
            return Err(format!("the library does not tell when {name} was made"));
        }
        doors.play(&[(M, &format!("5 {name}"), &told)])?;
    }
    drop(doors);
    ground.unmount()?;
    ground.conclude()
}
