//! Where each distribution of Kubernetes keeps the plugin directory, and how it is changed there.
