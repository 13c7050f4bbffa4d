#![no_main]
flexvol_fuzz::target!("side_file");
