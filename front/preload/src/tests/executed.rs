//! Programs that are executed with another list of libraries to be preloaded than this one has.

use super::{Array, library};
use std::path::Path;
use std::process::Command;
use std::string::{String, ToString};
use std::{format, fs};

/// What two tests execute: it makes a file of the array, which a program without the library cannot.
const MAKES: &str = "echo made > /cxlraid-preload-test/made";

/// Runs a program of the array, and asserts that it has made the file and said nothing.
fn assert_makes(array: &Array, command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
    let made = array.command(Path::new("/bin/cat")).arg("/cxlraid-preload-test/made").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&made.stdout), "made\n");
}

fn with_directory(name: &str) -> Array {
    let array = Array::new(name);
    let make = ["-c", "mkdir -p /cxlraid-preload-test"];
    assert!(array.command(Path::new("/bin/sh")).args(make).status().unwrap().success());
    array
}

/// A library whose path has the project's name in it comes before this one in LD_PRELOAD, and the
/// next program is given neither.
#[test]
fn another_library_below_a_directory_of_this_name_is_not_taken_for_it() {
    let array = with_directory("executed-other");
    let other = array.folder.join("other.so");
    fs::write(array.folder.join("other.c"), "int other_library;\n").unwrap();
    let flags = ["-shared", "-fPIC", "-o"];
    assert!(Command::new("cc").args(flags).arg(&other).arg(array.folder.join("other.c")).status().unwrap().success());
    let mut shell = array.command(Path::new("/bin/sh"));
    shell.env("LD_PRELOAD", format!("{}:{}", other.display(), library().display()));
    assert_makes(&array, shell.args(["-c", &format!("exec env -u LD_PRELOAD sh -c '{MAKES}'")]));
}

/// LD_PRELOAD stands twice in the next program's environment. ld.so takes the last.
#[test]
fn of_two_lists_of_libraries_the_last_counts() {
    let array = with_directory("executed-twice");
    let source = format!(
        "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
         int main(void) {{\n\
             static char first[4096] = \"LD_PRELOAD=\";\n\
             strcat(first, getenv(\"LD_PRELOAD\"));\n\
             char *list[] = {{\"sh\", \"-c\", \"{MAKES}\", 0}}, *environment[] = {{first, \"LD_PRELOAD=\", 0}};\n\
             return execve(\"/bin/sh\", list, environment), 1;\n\
         }}\n"
    );
    let program = array.folder.join("program");
    fs::write(array.folder.join("program.c"), source).unwrap();
    let flags = ["-O1", "-w", "-o"];
    assert!(Command::new("cc").args(flags).arg(&program).arg(array.folder.join("program.c")).status().unwrap().success());
    assert_makes(&array, &mut array.command(&program));
}

/// Every number is taken as a program is executed: one without the library is given nothing of the
/// array, and one with it has the file.
#[test]
fn without_a_free_number_a_static_program_is_given_no_file() {
    let array = with_directory("executed-full");
    let compile = |name: &str, flags: &[&str], source: &str| {
        let program = array.folder.join(name);
        fs::write(program.with_extension("c"), source).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-w"]).args(flags).arg("-o").arg(&program).arg(program.with_extension("c"));
        assert!(compiler.status().unwrap().success());
        program
    };
    let writer = "#include <unistd.h>\nint main(void) { return write(5, \"more\", 4) == 4 ? 3 : 4; }\n";
    let (alone, served) = (compile("alone", &["-static"], writer), compile("served", &[], writer));
    let full = "#include <fcntl.h>\n#include <spawn.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
        extern char **environ;\n\
        int main(int count, char **arguments) {\n\
            int status, child, file = open(\"/cxlraid-preload-test/file\", O_CREAT | O_RDWR | O_APPEND, 0644);\n\
            if (dup2(file, 5) != 5 || write(5, \"kept\", 4) != 4) return 2;\n\
            while (open(\"/dev/null\", O_RDONLY | O_CLOEXEC) >= 0) {}\n\
            if (posix_spawn(&child, arguments[1], 0, 0, arguments, environ)) return 5;\n\
            waitpid(child, &status, 0);\n\
            if (!WIFEXITED(status) || WEXITSTATUS(status) != atoi(arguments[2])) return 6;\n\
            execv(arguments[1], arguments);\n\
            return 7;\n\
        }\n";
    let full = compile("full", &["-include", "stdlib.h"], full);
    for (writer, code) in [(&alone, 4), (&served, 3)] {
        let mut shell = array.command(Path::new("/bin/sh"));
        let output = shell.args(["-c", "ulimit -n 100; exec \"$@\"", "sh"]).arg(&full).arg(writer).arg(code.to_string());
        let output = output.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{writer:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = array.command(Path::new("/bin/cat")).arg("/cxlraid-preload-test/file").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&text.stdout), "keptkeptmoremore");
}
