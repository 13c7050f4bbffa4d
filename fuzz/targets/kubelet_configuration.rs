#![no_main]
flexvol_fuzz::target!("kubelet_configuration");
