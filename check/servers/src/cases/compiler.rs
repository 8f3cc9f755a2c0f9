//! gcc, ar, ld and make build a C project of a hundred files inside the array: objects, a static
//! and a shared library, a program. What comes out must be the same byte for byte as outside, and
//! the program runs from where it was built.

use super::{Numbers, Scene};
use crate::{Outcome, audit::same};
use std::{fmt::Write as _, fs, path::Path};

const MAKEFILE: &str = "\
CFLAGS = -O1 -fPIC -Iinclude -MMD -MP -Wall -Werror
MODULES := $(sort $(wildcard src/*.c))
OBJECTS := $(MODULES:src/%.c=build/%.o)
all: build/libparts.a build/libparts.so build/static build/shared build/searched
build/%.o: src/%.c
\t@mkdir -p build
\t$(CC) $(CFLAGS) -c $< -o $@
build/libparts.a: $(OBJECTS)
\t$(AR) rcsD $@ $^
build/libparts.so: $(OBJECTS)
\t$(CC) -shared -Wl,-soname,libparts.so $^ -o $@
build/static: main.c build/libparts.a
\t$(CC) $(CFLAGS) main.c build/libparts.a -o $@
build/searched: main.c build/libparts.so
\t$(CC) $(CFLAGS) main.c -Lbuild -lparts -o $@
build/shared: main.c build/libparts.so
\t$(CC) $(CFLAGS) main.c -Lbuild -lparts -Wl,-rpath,'$$ORIGIN' -o $@
clean:
\trm -r build
-include $(wildcard build/*.d)
";

/// Builds, and says what it made; then one source changes, and what make does again; then
/// everything anew.
const BUILD: &str = r#"
set -e
cd "$1"
make -j2 >build.log
sha256sum build/*.o build/*.a build/*.so build/static build/shared
./build/static; ./build/shared
# By where the linker is told to look: absolute, relative, for a program of the host, and for children of a child.
LD_LIBRARY_PATH=$PWD/build ./build/searched; LD_LIBRARY_PATH=/nowhere:build ./build/searched
cp build/searched "$W/elsewhere"; LD_LIBRARY_PATH=$PWD/build "$W/elsewhere"
LD_LIBRARY_PATH=$PWD/build sh -c 'build/searched; env build/searched; env | grep -c proc/self || true'
(build/searched 2>&1 || echo "status $?") | sed 's/.*shared libraries/shared libraries/'
make -q && echo "nothing to do"
sleep 0.02
echo 'int changed(void) { return 4711; }' >>src/part7.c
make -j2 | sort
ar t build/libparts.a | wc -l
nm build/libparts.so | grep -c ' T part'
cp build/shared build/copied && ./build/copied && ! make -q build/copied -W src/part1.c 2>/dev/null && strip build/copied && ./build/copied
ls -l build | awk '{ print $1, $5, $9 }'
make clean
make -j2 >again.log && sha256sum build/static build/libparts.so
"#;

/// Sources of `count` modules that include each other's headers.
fn generate(directory: &Path, count: u64) -> std::io::Result<()> {
    let mut numbers = Numbers(17);
    for part in ["src", "include"] {
        fs::create_dir_all(directory.join(part))?;
    }
    fs::write(directory.join("Makefile"), MAKEFILE)?;
    let mut calls = String::new();
    for module in 0..count {
        let header = format!(
            "#pragma once\nlong part{module}(long n);\nstruct state{module} {{ long a, b; char text[{}]; }};\n",
            module + 8
        );
        fs::write(directory.join(format!("include/part{module}.h")), header)?;
        let (left, right) = (numbers.below(module + 1), numbers.below(module + 1));
        let mut source = format!("#include <stdio.h>\n#include <string.h>\n#include \"part{module}.h\"\n");
        for other in [left, right] {
            let _ = writeln!(source, "#include \"part{other}.h\"");
        }
        let table: Vec<String> = (0..200).map(|_| format!("{}L", numbers.below(1 << 40))).collect();
        let _ = writeln!(source, "static const long table[] = {{ {} }};", table.join(", "));
        let further = if module > left { format!("n > 0 ? part{left}(n - 1) : 1") } else { "1".to_owned() };
        let _ = write!(
            source,
            "long part{module}(long n) {{\n    struct state{module} state = {{ n, {right}, \"\" }};\n    \
             snprintf(state.text, sizeof state.text, \"%ld\", n);\n    \
             for (unsigned i = 0; i < sizeof table / sizeof *table; i++) state.a ^= table[i] >> (n & 7);\n    \
             return state.a + state.b + (long)strlen(state.text) + ({further});\n}}\n"
        );
        fs::write(directory.join(format!("src/part{module}.c")), source)?;
        let _ = writeln!(calls, "    sum = sum * 31 + part{module}({});", module % 9);
    }
    let includes: String = (0..count).map(|module| format!("#include \"part{module}.h\"\n")).collect();
    let main = format!(
        "#include <stdio.h>\n{includes}int main(void) {{\n    long sum = 0;\n{calls}    printf(\"%ld\\n\", sum);\n    return 0;\n}}\n"
    );
    fs::write(directory.join("main.c"), main)
}

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let count = scene.sized(12, 100);
    let sources = array.host_directory("sources")?;
    generate(&sources, count).map_err(|error| error.to_string())?;
    let outside = array.work.join("plain");
    array.outside("cp").arg("-r").args([&sources, &outside]).done()?;
    let expected = array.outside("bash").args(["-c", BUILD, "build"]).arg(&outside).text()?;
    let inside = array.data.join("project");
    array.inside("cp").arg("-r").args([&sources, &inside]).done()?;
    let built = array.inside("bash").args(["-c", BUILD, "build"]).arg(&inside).text()?;
    same("what the build says and makes", &expected, &built)?;
    let objects = expected.lines().filter(|line| line.ends_with(".o")).count();
    super::postgresql::lose_one(scene)?;
    let run = |program: &str| array.inside("bash").args(["-c", "\"$0\""]).arg(inside.join("build").join(program)).text();
    let (left, right) = (run("static")?, run("shared")?);
    same("output of the two programs", &left, &right)?;
    Ok(format!("{count} sources, {objects} objects the same as outside"))
}
