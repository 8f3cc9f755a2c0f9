//! Directories that one thread exchanges while another one uses paths relative to them.

use super::Array;
use std::path::Path;
use std::process::Command;
use std::{format, fs};

/// A thread gives the current directory, or a number, a directory of the array and one of the host by
/// turns. A name that both have is always found.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
static volatile int has_ended, by_number;
static const char *ours = "/cxlraid-preload-test", *host;
static void *exchange(void *unused) {
    int first = open(ours, O_RDONLY), second = open(host, O_RDONLY);
    while (!has_ended) {
        if (by_number) dup2(first, 50), dup2(second, 50);
        else chdir(ours), chdir(host);
    }
    return 0;
}
int main(int count, char **arguments) {
    struct stat found;
    pthread_t thread;
    host = arguments[1];
    by_number = count > 2;
    if (chdir(host) || close(creat("name", 0600)) || chdir(ours) || close(creat("name", 0600))) return 2;
    if (dup2(open(ours, O_RDONLY), 50) != 50) return 3;
    pthread_create(&thread, 0, exchange, 0);
    for (time_t begun = time(0); time(0) - begun < 2;)
        if (by_number ? fstatat(50, "name", &found, 0) : stat("name", &found)) return perror("name"), 4;
    has_ended = 1;
    return pthread_join(thread, 0);
}
"#;

#[test]
fn a_name_that_both_directories_have_is_found() {
    let array = Array::new("exchanged");
    let (program, source, host) = (array.folder.join("program"), array.folder.join("program.c"), array.folder.join("host"));
    fs::write(&source, SOURCE).unwrap();
    fs::create_dir(&host).unwrap();
    assert!(Command::new("cc").args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(&source).status().unwrap().success());
    let make = ["-c", "mkdir -p /cxlraid-preload-test"];
    assert!(array.command(Path::new("/bin/sh")).args(make).status().unwrap().success());
    for by_number in [&[][..], &["number"]] {
        let output = array.command(&program).arg(&host).args(by_number).output().unwrap();
        let said = format!("{by_number:?}: {}: {}", output.status, std::string::String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said}");
    }
}
