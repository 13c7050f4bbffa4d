#![no_main]
flexvol_fuzz::target!("process_title");
