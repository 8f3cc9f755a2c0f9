//! Loads and stores of single bytes in mapped memory, which may meet a signal: then the signal is
//! the answer.

use std::{
    arch::global_asm,
    fs, io,
    ops::Range,
    ptr,
    sync::atomic::{AtomicI32, AtomicI64, Ordering},
};

global_asm!(
    ".global cxlraid_differ_load",
    ".global cxlraid_differ_store",
    "cxlraid_differ_load:",
    "mov al, [rdi]", // two bytes
    "movzx eax, al",
    "ret",
    "cxlraid_differ_store:",
    "mov [rdi], sil", // three bytes
    "ret",
);

unsafe extern "C" {
    fn cxlraid_differ_load(address: *const u8) -> u32;
    fn cxlraid_differ_store(address: *mut u8, value: u8);
}

const LOAD_BYTES: i64 = 2;
const STORE_BYTES: i64 = 3;

/// The signal that the last access met, and its code; 0 for none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static ADDRESS: AtomicI64 = AtomicI64::new(0);

/// Makes this process note the signals of bad accesses. Signals of any other instruction end it as
/// they would without this.
pub(crate) fn begin() -> io::Result<()> {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the handler touches nothing but atomics and the context that it is given.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = met as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(signal, &raw const action, ptr::null_mut())
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn met(signal: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives both; the context is that of the interrupted instruction.
    unsafe {
        let at = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize];
        let bytes = if *at == cxlraid_differ_load as *const () as i64 {
            LOAD_BYTES
        } else if *at == cxlraid_differ_store as *const () as i64 {
            STORE_BYTES
        } else {
            libc::signal(signal, libc::SIG_DFL);
            return;
        };
        *at += bytes;
        CODE.store((*information).si_code, Ordering::Relaxed);
        ADDRESS.store((*information).si_addr() as i64, Ordering::Relaxed);
        SIGNAL.store(signal, Ordering::Relaxed);
    }
}

/// What an access met, as text; None if nothing.
fn trouble(address: i64) -> Option<String> {
    let name = match SIGNAL.swap(0, Ordering::Relaxed) {
        0 => return None,
        libc::SIGBUS if is_private(address) => "SIGBUS-private",
        libc::SIGBUS => "SIGBUS",
        _ => "SIGSEGV",
    };
    let at = ADDRESS.load(Ordering::Relaxed) - address;
    Some(format!("{name} {} {at}", CODE.load(Ordering::Relaxed)))
}

/// Whether what is mapped at an address is the program's own copy.
pub(crate) fn is_private(address: i64) -> bool {
    privates().iter().any(|range| range.contains(&address))
}

/// The addresses of what is mapped privately.
pub(crate) fn privates() -> Vec<Range<i64>> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let private = |line: &str| {
        let mut fields = line.split(' ');
        let (range, rights) = (fields.next()?, fields.next()?);
        let mut ends = range.split('-').map(|end| i64::from_str_radix(end, 16));
        let range = ends.next()?.ok()?..ends.next()?.ok()?;
        rights.ends_with('p').then_some(range)
    };
    maps.lines().filter_map(private).collect()
}

/// The byte at an address, or the signal.
pub(crate) fn load(address: i64) -> Result<u8, String> {
    // SAFETY: whatever the address is: a bad one is met by the handler, which goes on behind the
    // instruction.
    let byte = unsafe { cxlraid_differ_load(address as *const u8) };
    trouble(address).map_or(Ok(byte as u8), Err)
}

/// Stores a byte, unless a signal says that this cannot be.
pub(crate) fn store(address: i64, value: u8) -> Result<(), String> {
    // SAFETY: the address lies in the program's own part of the address space, or is bad, which the
    // handler meets.
    unsafe { cxlraid_differ_store(address as *mut u8, value) };
    trouble(address).map_or(Ok(()), Err)
}
