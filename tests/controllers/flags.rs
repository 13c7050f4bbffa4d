//! Each flag of Kubernetes' own sidecars is taken, or told what to do instead.

use super::{programs, subject};
use std::collections::BTreeSet;
use std::process::{Command, Output};

/// The flags in a program's help, of either of Go's libraries.
fn flags(help: &Output) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(&[&help.stdout[..], &help.stderr].concat()).into_owned();
    let first = |line: &str| line.strip_prefix(' ')?.split_whitespace().next().map(str::to_owned);
    let flags: Vec<_> = text.lines().filter_map(first).filter(|word| word.starts_with('-')).collect();
    let names = flags.iter().map(|word| word.trim_matches([',', '-']));
    // pflag shows what is taken for a flag without a value.
    names.map(|name| name.split('[').next().unwrap().to_owned()).collect()
}

#[test]
fn of_sidecars_are_taken_or_explained() {
    let Some(programs) = programs("flags::of_sidecars_are_taken_or_explained") else { return };
    let mut explained = 0;
    for program in ["csi-attacher", "csi-provisioner", "csi-resizer"] {
        let flags = flags(&Command::new(programs.join(program)).arg("--help").output().unwrap());
        assert!(flags.len() > 20, "{program}: {flags:?}");
        for flag in flags.iter().filter(|flag| !["version", "help"].contains(&flag.as_str())) {
            let mut command = Command::new(subject::flexvold());
            let ours = command.args(["csi-controller", "--endpoint=relative"]).arg(format!("--{flag}=1"));
            let said = String::from_utf8(ours.output().unwrap().stderr).unwrap();
            assert!(!said.contains("unexpected argument"), "{program} --{flag}: {said}");
            explained += usize::from(said.contains("Kubernetes' own sidecars"));
        }
    }
    assert!(explained > 40, "{explained}");
}
