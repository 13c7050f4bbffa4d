//! The prober on real directories, with the kernel's own news of their changes: the library's
//! `Watcher`, and the commands `probe` and `watch`.

mod command_line;
mod design;
mod plugin_dir;
mod storm;
mod two;
