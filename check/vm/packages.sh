#!/usr/bin/env bash
# packages.sh DIRECTORY: what the virtual machine consists of and the host need not have installed: kernel, QEMU, tools for NVDIMMs,
# CXL and XFS. Downloads Debian packages with apt and unpacks them below DIRECTORY; installs nothing.
#
# Debian 12's own kernel (6.1) and QEMU (7.2) are too old: no user extended attributes on tmpfs (6.6), no PAGEMAP_SCAN (6.7), no CXL
# in software emulation. So on Debian 12 both come from backports, through the mirror that is already configured.
#
# Leaves: DIRECTORY/unpacked (kernel, tools), DIRECTORY/qemu (empty if the host's QEMU serves), DIRECTORY/complete.
set -euo pipefail
trap 'echo "cxlraid vm: packages.sh: line $LINENO failed" >&2' ERR

readonly TOOLS="ndctl daxctl libcxl1 libdaxctl1 libndctl6 libiniparser1 libtraceevent1 libtracefs1 libkmod2 xfsprogs libinih1 liburcu8"
# libraries of the tools that other releases call otherwise
readonly TOOLS_SINCE_13="ndctl daxctl libcxl1 libdaxctl1 libndctl6 libiniparser4 libtraceevent1 libtracefs1 libkmod2 xfsprogs libinih1 liburcu8t64"
readonly QEMU="qemu-system-x86 qemu-system-common qemu-system-data seabios"

die() {
    echo "cxlraid vm: $*" >&2
    exit 1
}

directory=$(mkdir -p "$1" && cd "$1" && pwd)
log=$directory/packages.log
command -v apt-get >/dev/null || die "apt-get is missing; the virtual machine is made of Debian packages"

# A fresh machine's apt knows no packages yet.
know_packages() {
    if apt-cache show ndctl >/dev/null 2>&1; then return; fi
    [[ $(id -u) -eq 0 ]] && apt-get -q update >>"$log" 2>&1 && apt-cache show ndctl >/dev/null 2>&1 ||
        die "apt does not know ndctl; run 'apt-get update' as root, then again"
}

# download INTO PACKAGE...
download() {
    local into=$1
    shift
    mkdir -p "$into"
    (cd "$into" && apt-get -q download "$@") >>"$log" 2>&1 ||
        die "apt-get download $* failed; run 'apt-get update' as root, then again ($log has what apt said)"
}

# unpack FROM INTO
unpack() {
    local package
    for package in "$1"/*.deb; do dpkg -x "$package" "$2"; done
}

# From here on apt sees backports only, with lists of its own.
use_backports() {
    local apt=$directory/apt mirror
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
    [[ -n $mirror ]] || die "no mirror of bookworm is known to apt; run 'apt-get update' as root, then again; kernel and QEMU come from its bookworm-backports"
    mkdir -p "$apt"/{lists/partial,cache/archives/partial,sources}
    printf 'Types: deb\nURIs: %s\nSuites: bookworm-backports\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
        "$mirror" >"$apt/sources/backports.sources"
    printf 'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "%s";\nDir::State::lists "%s";\nDir::Cache "%s";\n' \
        "$apt/sources" "$apt/lists" "$apt/cache" >"$apt/apt.conf"
    export APT_CONFIG=$apt/apt.conf
    apt-get -q -o APT::Update::Error-Mode=any update >>"$log" 2>&1 || die "bookworm-backports cannot be read from $mirror ($log has what apt said)"
}

kernel_package() {
    apt-cache depends linux-image-cloud-amd64 2>>"$log" | sed -nE 's/^ *Depends: (linux-image-[0-9].*)$/\1/p' | head -n 1 || true
}

main() {
    rm -rf "${directory:?}"/{debs,unpacked,qemu,apt,complete} && mkdir -p "$directory"/{debs,unpacked,qemu}
    : >"$log"
    know_packages
    local release tools=$TOOLS
    release=$(. /etc/os-release && echo "${VERSION_ID:-0}")
    if [[ ${release%%.*} -ge 13 ]]; then tools=$TOOLS_SINCE_13; fi
    # shellcheck disable=SC2086
    download "$directory/debs/tools" $tools
    if [[ $release == 12 ]]; then
        use_backports
        # shellcheck disable=SC2086
        download "$directory/debs/qemu" $QEMU
        unpack "$directory/debs/qemu" "$directory/qemu"
    fi
    local kernel
    kernel=$(kernel_package)
    [[ -n $kernel ]] || die "apt knows no linux-image-cloud-amd64; run 'apt-get update' as root, then again"
    download "$directory/debs/kernel" "$kernel"
    unpack "$directory/debs/tools" "$directory/unpacked"
    unpack "$directory/debs/kernel" "$directory/unpacked"
    rm -rf "$directory/debs"
    echo "${kernel#linux-image-}" >"$directory/complete"
}

main
