//! Processes: this one and those it starts, their limits, deadlines and end.

pub mod bare_root;
pub mod child;
pub mod clock;
pub mod daemon;
pub mod deadline;
pub mod exec_watch;
pub mod helper;
pub mod host;
mod invocation;
pub mod kernel_module;
pub mod limits;
pub mod memory;
pub mod namespace;
pub mod orphans;
pub mod piped;
pub(crate) mod proc_mem;
pub mod process;
pub mod process_table;
pub mod progress;
pub mod reach;
pub mod reaper;
pub mod reply_pipe;
pub mod scope;
pub mod signal;
pub mod stuck;
pub(crate) mod supervise;
pub mod terminal;
