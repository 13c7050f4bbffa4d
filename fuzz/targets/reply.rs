#![no_main]
flexvol_fuzz::target!("reply");
