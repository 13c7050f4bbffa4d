#![no_main]
flexvol_fuzz::target!("image_header");
