//! Changes of directories, as the kernel tells them (inotify(7)).
