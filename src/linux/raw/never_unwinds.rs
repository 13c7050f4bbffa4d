//! Replacement for the C library's unwinder, which a program that aborts on panic never needs.
//!
//! Rust's standard library links it nevertheless, and for backtraces all code that reads debug
//! information: 260 KiB, a twelfth of a program that has neither symbols nor unwind tables. Here
//! [`_Unwind_Backtrace`] finds no frame, so the linker sees that none of that code is reached. A
//! panic still reports what happened and where.
//!
//! The names are those of the Itanium C++ ABI, level 1. All except the first are called only while
//! a stack is unwound, which never happens, so their arguments are left out.

use nix::libc::{c_int, c_void};
use std::process::abort;

/// `_URC_END_OF_STACK`.
const END_OF_STACK: c_int = 5;

/// Callback of a backtrace for each frame.
type Trace = extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// Reports that there is no frame.
// SAFETY: the signature is the ABI's, and no other symbol in the program has the name: the
// archive's member of that name is linked only where a name is missing.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_: Trace, _: *mut c_void) -> c_int {
    END_OF_STACK
}

/// Defines functions that are never called.
macro_rules! never {
    ($($name:ident),*) => {
        $(
            // SAFETY: as above; it never returns, with any arguments.
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> ! {
                abort()
            }
        )*
    };
}

never!(
    _Unwind_FindEnclosingFunction,
    _Unwind_GetCFA,
    _Unwind_GetDataRelBase,
    _Unwind_GetIP,
    _Unwind_GetIPInfo,
    _Unwind_GetLanguageSpecificData,
    _Unwind_GetRegionStart,
    _Unwind_GetTextRelBase,
    _Unwind_Resume,
    _Unwind_SetGR,
    _Unwind_SetIP
);
