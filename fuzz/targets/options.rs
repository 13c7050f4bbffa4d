#![no_main]
flexvol_fuzz::target!("options");
