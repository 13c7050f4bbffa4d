//! Which plugin directory does kubelet read, and how do we know?
