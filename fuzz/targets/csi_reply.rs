#![no_main]
flexvol_fuzz::target!("csi_reply");
