#![no_main]
flexvol_fuzz::target!("mount_table");
