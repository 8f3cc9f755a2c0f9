//! Objects that linkers and assemblers make seldom: with many segments, with data right behind the
//! instructions, with constants among them.

use super::{Array, FOLDER};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::string::String;

/// More segments than a usual object has.
const DATA_SEGMENTS: usize = 20;

fn compile(arguments: &[&str]) {
    assert!(Command::new("cc").args(arguments).status().unwrap().success(), "cc {arguments:?}");
}

/// An object whose only site ends with its page, behind which its data
/// begins.
#[test]
fn calls_of_an_object_of_many_segments_are_served_and_its_data_stays_writable() {
    let array = Array::new("segments");
    let at = |name: &str| array.folder.join(name).to_str().unwrap().to_string();
    // mov $1, %eax; syscall; ret: eight bytes.
    let mut code = String::from(
        ".text\n.globl store\n.type store,@function\n.space 4096 - 8, 0x90\nstore:\n.cfi_startproc\nmov $1,%eax\nsyscall\nret\n\
         .cfi_endproc\n.size store,.-store\n.section .note.GNU-stack,\"\",@progbits\n",
    );
    let mut headers = String::from("PHDRS { first PT_LOAD FILEHDR PHDRS FLAGS(4); text PT_LOAD FLAGS(5);");
    let mut sections = String::from(
        "SECTIONS { . = SIZEOF_HEADERS; .hash : { *(.hash) } :first .gnu.hash : { *(.gnu.hash) } .dynsym : { *(.dynsym) }\n\
         .dynstr : { *(.dynstr) } .rela.dyn : { *(.rela*) } .eh_frame_hdr : { *(.eh_frame_hdr) } :first :unwind\n\
         .eh_frame : { *(.eh_frame) } :first . = ALIGN(4096); .text : { *(.text) } :text\n",
    );
    for index in 0..DATA_SEGMENTS {
        code += &std::format!(".section .d{index},\"aw\",@progbits\n.globl d{index}\nd{index}: .quad {index}\n");
        headers += &std::format!(" d{index} PT_LOAD FLAGS(6);");
        sections += &std::format!(". = ALIGN(4096); .d{index} : {{ *(.d{index}) }} :d{index}\n");
    }
    headers +=
        " last PT_LOAD FLAGS(6); dynamic PT_DYNAMIC FLAGS(6); unwind PT_GNU_EH_FRAME FLAGS(4); stack PT_GNU_STACK FLAGS(6); }\n";
    sections +=
        ". = ALIGN(4096); .dynamic : { *(.dynamic) } :last :dynamic .data : { *(.data) } :last .bss : { *(.bss) } :last }\n";
    fs::write(at("object.s"), code).unwrap();
    fs::write(at("script"), headers + &sections).unwrap();
    let script = std::format!("-Wl,-T,{}", at("script"));
    compile(&[
        "-shared",
        "-nostdlib",
        "-Wl,--build-id=none,-z,max-page-size=4096",
        &script,
        "-o",
        &at("object.so"),
        &at("object.s"),
    ]);
    let program = "#include <dlfcn.h>\n#include <fcntl.h>\n#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n\
        int main(int count, char **arguments) {\n\
            char back[9] = \"\";\n\
            void *object = dlopen(arguments[2], RTLD_NOW);\n\
            if (!object) return puts(dlerror()), 1;\n\
            long (*store)(int, const void *, long) = dlsym(object, \"store\"), *data = dlsym(object, \"d0\");\n\
            int fd = open(arguments[1], O_CREAT | O_RDWR | O_TRUNC, 0644);\n\
            if (store(fd, \"stored\", 6) != 6 || pread(fd, back, 8, 0) != 6 || strcmp(back, \"stored\")) return 2;\n\
            return ++*data == 1 ? 0 : 3;\n\
        }\n";
    fs::write(at("program.c"), program).unwrap();
    compile(&["-O1", "-w", "-o", &at("program"), &at("program.c"), "-ldl"]);
    let make = ["-c", "mkdir -p /cxlraid-preload-test"];
    assert!(array.command(Path::new("/bin/sh")).args(make).status().unwrap().success());
    let mut command = array.command(Path::new(&at("program")));
    let output = command.args(["/cxlraid-preload-test/file", &at("object.so")]).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}: {}", output.status, String::from_utf8_lossy(&said));
}

/// Two bytes that mean a system call, in constants behind a function and in an object without
/// unwind entries.
#[test]
fn constants_that_no_unwind_entry_covers_stay_what_they_are() {
    let array = Array::new("unsure");
    let at = |name: &str| array.folder.join(name).to_str().unwrap().to_string();
    let source = Path::new(FOLDER).join("tests/unsure.c");
    let usual: &[&str] = &[];
    for (name, flags) in [("usual", usual), ("bare", &["-fno-asynchronous-unwind-tables", "-Wl,--no-eh-frame-hdr"])] {
        compile(&[&["-O1", "-w", "-o", &at(name), source.to_str().unwrap()], flags].concat());
        let output = array.command(Path::new(&at(name))).output().unwrap();
        assert!(output.status.success(), "{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
}

/// Two objects of one build-id, of which the first has no system call. What is remembered of the
/// first says nothing of the second.
#[test]
fn two_objects_of_one_build_id_are_told_apart() {
    let array = Array::new("one-id");
    let at = |name: &str| array.folder.join(name).to_str().unwrap().to_string();
    let id = std::format!("{:040x}", std::process::id());
    let build_id = std::format!("-Wl,--build-id=0x{id}");
    let [none, some] = ["nop", "mov $1,%eax\nsyscall"].map(|body| {
        std::format!(
            ".text\n.globl store\n.type store,@function\nstore:\n.cfi_startproc\n{body}\nret\n.cfi_endproc\n\
             .size store,.-store\n.section .note.GNU-stack,\"\",@progbits\n"
        )
    });
    for (name, code) in [("none", none), ("some", some)] {
        fs::write(at(&std::format!("{name}.s")), code).unwrap();
        let (object, source) = (at(&std::format!("{name}.so")), at(&std::format!("{name}.s")));
        compile(&["-shared", "-nostdlib", &build_id, "-o", &object, &source]);
    }
    let program = "#include <dlfcn.h>\n#include <fcntl.h>\n#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n\
        int main(int count, char **arguments) {\n\
            char back[9] = \"\";\n\
            void *object = dlopen(arguments[2], RTLD_NOW);\n\
            if (!object) return puts(dlerror()), 1;\n\
            long (*store)(int, const void *, long) = dlsym(object, \"store\");\n\
            if (count == 3) return 0;\n\
            int fd = open(arguments[1], O_CREAT | O_RDWR | O_TRUNC, 0644);\n\
            return store(fd, \"stored\", 6) != 6 || pread(fd, back, 8, 0) != 6 || strcmp(back, \"stored\") ? 2 : 0;\n\
        }\n";
    fs::write(at("program.c"), program).unwrap();
    compile(&["-O1", "-w", "-o", &at("program"), &at("program.c"), "-ldl"]);
    let make = ["-c", "mkdir -p /cxlraid-preload-test"];
    assert!(array.command(Path::new("/bin/sh")).args(make).status().unwrap().success());
    for (object, more) in [("none.so", None), ("some.so", Some("store"))] {
        let mut command = array.command(Path::new(&at("program")));
        command.env("XDG_CACHE_HOME", &array.folder).args(["/cxlraid-preload-test/file", &at(object)]).args(more);
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success() && said.is_empty(), "{object}: {}: {}", output.status, String::from_utf8_lossy(&said));
    }
    // What root's programs remember is not in a directory of this test's own.
    if let Ok(remembered) = fs::read_dir("/var/cache/cxlraid/sites") {
        let own = remembered.flatten().filter(|file| file.file_name().to_string_lossy().starts_with(&id));
        own.for_each(|file| fs::remove_file(file.path()).unwrap());
    }
}
