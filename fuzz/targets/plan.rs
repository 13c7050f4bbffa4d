#![no_main]
flexvol_fuzz::target!("plan");
