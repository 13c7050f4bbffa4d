//! Manifests for nodes that are set up without a cluster: a systemd unit, and user data with it.

use super::{Deployment, Fetch, emit};
use flexvol_protocol::failure::{Failure, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Path of the policy on a node.
const POLICY: &str = "/etc/flexvol/policy.json";

/// Returns the unit. It starts before kubelet, so that kubelet finds the drivers when it starts.
/// kubelet does not require it: a node without drivers still works. No option of the unit makes a
/// private mount table: that would keep a plugin directory that has been replaced since.
pub(super) fn unit(deployment: &Deployment<'_>) -> String {
    let request = deployment.request;
    let command = [request.program.clone(), "deploy".to_owned()];
    let words: Vec<_> = command.into_iter().chain(deployment.arguments(POLICY)).map(|it| word(&it)).collect();
    let mut unit = deployment.first().map_or_else(String::new, |first| format!("# {first}\n"));
    if request.policy.is_some() {
        let _ = writeln!(unit, "# needs the policy as {POLICY}");
    }
    let _ = write!(
        unit,
        "\
[Unit]
Description=FlexVolume drivers for kubelet
Before=kubelet.service
After=local-fs.target
RequiresMountsFor={directory}

[Service]
ExecStart={command}
Restart=always
RestartSec=5
TimeoutStopSec=10
MemoryMax=32M
UMask=0077
CapabilityBoundingSet=
NoNewPrivileges=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=none
RestrictRealtime=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
",
        directory = word(deployment.directory),
        command = words.join(" "),
    );
    unit
}

/// Returns a word of a unit file: quoted, with systemd's specifiers and variables escaped.
fn word(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '%' | '$' => out.extend([c, c]),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns user data: files, and commands that end by starting the unit.
pub(super) fn cloud_init(deployment: &Deployment<'_>) -> Result<String> {
    let request = deployment.request;
    let file = |path: &str, content: &str| json!({"path": path, "permissions": "0644", "content": content});
    let mut files = vec![file("/etc/systemd/system/flexvol.service", &unit(deployment))];
    files.extend(request.policy.as_deref().map(|policy| file(POLICY, policy)));
    let mut commands = Vec::new();
    if let Some(fetch) = &request.fetch {
        commands.push(download(fetch, &request.program)?);
    }
    commands.push(json!(["systemctl", "daemon-reload"]));
    commands.push(json!(["systemctl", "enable", "--now", "flexvol.service"]));
    let data = json!({"write_files": files, "runcmd": commands});
    let first = deployment.first().map_or_else(String::new, |first| format!("# {first}\n"));
    Ok(format!("#cloud-config\n{first}{}", emit::document(&data)))
}

/// Returns a command that downloads the program. It verifies the checksum before the file gets its
/// name and becomes executable.
fn download(fetch: &Fetch, program: &str) -> Result<Value> {
    const SCRIPT: &str = "new=$3.new; curl -fsSL --retry 5 -o \"$new\" \"$1\"; \
                          echo \"$2  $new\" | sha256sum -c -; chmod 755 \"$new\"; mv -f \"$new\" \"$3\"";
    let Fetch { url, sha256 } = fetch;
    super::check_word("URL", url)?;
    if !url.starts_with("https://") && !url.starts_with("http://") {
        return Err(Failure::options(format!(
            "URL {url:?} begins with neither https:// nor http://: write it whole"
        )));
    }
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Failure::options(format!("{sha256:?} is no SHA-256: write its 64 hexadecimal digits")));
    }
    Ok(json!(["sh", "-ec", SCRIPT, "sh", url, sha256.to_lowercase(), program]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one() {
        assert_eq!(word(r#"--set=a=b c"d\e%n$HOME;"#), r#""--set=a=b c\"d\\e%%n$$HOME;""#);
    }

    #[test]
    fn what_is_fetched_must_be_known() {
        let fetch = |url: &str, sha256: &str| Fetch { url: url.into(), sha256: sha256.into() };
        assert!(download(&fetch("https://x/y", &"a".repeat(64)), "/p").is_ok());
        for bad in [
            fetch("ftp://x", &"a".repeat(64)),
            fetch("https://x y", &"a".repeat(64)),
            fetch("https://x", "ab"),
        ] {
            assert!(download(&bad, "/p").is_err(), "{bad:?}");
        }
    }
}
