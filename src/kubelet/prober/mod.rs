//! Which drivers kubelet knows: one scan of the plugin directory, and the watch that follows every change.
