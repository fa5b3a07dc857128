//! Printing that survives a reader who has seen enough (`kvforge status T | head`).

use std::fmt::Arguments;
use std::io::{ErrorKind, Write as _};
use std::process;

/// Prints a line on standard output. When nobody reads any more, what was left to
/// say is dropped; when it cannot be written for another reason, that is an error.
pub fn line(text: Arguments<'_>) {
    let out = writeln!(std::io::stdout().lock(), "{text}");
    match out {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "error: cannot print: {e}");
            process::exit(2);
        }
        _ => {}
    }
}

/// `println!` that does not panic.
macro_rules! say {
    ($($text:tt)*) => { $crate::say::line(format_args!($($text)*)) };
}
pub(crate) use say;
