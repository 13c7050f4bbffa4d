//! `cephfs`: a directory of a Ceph cluster's file system, by ceph-fuse.

use super::fuse::{self, Plain, RemotePath};
use super::share::Servers;
use crate::driver::{Driver, Request};
use crate::failure::{Failure, Result};
use crate::mount_options::{Atime, Rule};
use crate::plan::{Content, Daemon, Piece, Plan, Source, Word};
use crate::protocol::{Capabilities, TargetPath};
use crate::schema::{OptionSpec, OptionValue, SecretSpec};
use crate::settings::Settings;

/// The driver.
pub struct Cephfs;

crate::options! {
    /// What a PV may say.
    pub struct CephfsOptions {
        /// The monitors, separated by commas, each with its port if that is another than usual.
        monitors: Monitors = "monitors" { aliases: ["servers", "server"], example: "10.0.0.1:6789,10.0.0.2:6789" },
        /// The directory.
        path: RemotePath = "path" {},
        /// The file system, of a cluster that has several.
        fs_name: Option<Plain> = "fsName" {},
        /// Who logs in.
        user: Plain = "user" { aliases: ["mountUser"], default: "admin" },
        /// Comma list of further flags.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

/// Monitors of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitors(Vec<(String, Option<u16>)>);

impl OptionValue for Monitors {
    const KIND: &'static str = "comma list of monitors";

    /// A JSON array of strings is a list as well: options of volumes of other kinds are.
    fn parse(text: &str) -> Result<Self, String> {
        let bare: String = text.chars().filter(|c| *c != '"').collect();
        let bare =
            bare.strip_prefix('[').and_then(|text| text.strip_suffix(']')).filter(|_| text.contains('"'));
        let monitors = bare.unwrap_or(text).split(',').map(str::trim).filter(|text| !text.is_empty());
        let monitors: Vec<_> = monitors.map(monitor).collect::<Result<_, _>>()?;
        if monitors.is_empty() { Err("names no monitor".to_owned()) } else { Ok(Self(monitors)) }
    }
}

fn monitor(text: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, Some(super::share::Port::parse(port)?.0))
        }
        _ => (text, None),
    };
    let Servers(mut names) = Servers::parse(host)?;
    Ok((names.remove(0), port))
}

const KEY: SecretSpec = SecretSpec {
    keys: &["key", "userKey", "adminKey", "mountSecret"],
    doc: "the user's key, as ceph auth get-key prints it",
    example: true,
};

const NO_RULES: &[Rule] = &[];

impl Driver for Cephfs {
    fn name(&self) -> &'static str {
        "cephfs"
    }

    fn summary(&self) -> &'static str {
        "a directory of a Ceph cluster"
    }

    fn options(&self) -> &'static [OptionSpec] {
        CephfsOptions::SPECS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        &[KEY]
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities::NONE
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        vec!["ceph-fuse"]
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = CephfsOptions::parse(&request.options.own)?;
        let (flags, _) = fuse::further(options.mount_options.as_deref(), request.options, NO_RULES)?;
        if flags.atime == Atime::Never {
            return Err(Failure::options("mountOptions: \"noatime\" has no meaning here: leave it out"));
        }
        let key = fuse::secret_line(request.options, &KEY)?
            .ok_or_else(|| Failure::options("secret lacks \"key\": add what ceph auth get-key prints"))?;
        let user = format!("client.{}", options.user.0);
        let addresses = options.monitors.0.iter().map(|(host, port)| match port {
            Some(port) => format!("{host}:{port}"),
            None => host.clone(),
        });
        let addresses = addresses.collect::<Vec<_>>().join(",");
        let file = |name| Word::File { before: String::new(), name };
        let config = fuse::content(format!(
            "[global]\nmon_host = {addresses}\nlog_file = /dev/null\nlog_to_stderr = true\nerr_to_stderr = true\nadmin_socket =\nclient_mount_timeout = 30\nkeyring = "
        ));
        let path = match options.path.0.trim_matches('/') {
            "" => "/".to_owned(),
            path => format!("/{path}"),
        };
        let daemon = Daemon {
            words: [
                fuse::texts(["-f", "--no-mon-config", "-n", &user, "-c"]),
                vec![file("ceph.conf"), Word::Text("-k".into()), file("keyring")],
                fuse::texts(["-r", &path]),
                fuse::texts(options.fs_name.iter().map(|name| format!("--client_fs={}", name.0))),
                fuse::options(fuse::flag_words(flags)),
                fuse::texts([target.to_string()]),
            ]
            .concat(),
            files: [
                ("ceph.conf", config.piece(Piece::File("keyring")).text("\n")),
                ("keyring", Content::default().text(format!("[{user}]\n\tkey = ")).secret(&key).text("\n")),
            ]
            .into(),
            servers: options.monitors.0.iter().map(|(host, _)| host.clone()).collect(),
            ..fuse::daemon("ceph-fuse", &format!("{addresses}:{path}"), target, flags)
        };
        Ok(fuse::mount("fuse.ceph-fuse", Source::Any, daemon))
    }

    fn unmount(&self, target: &TargetPath, _: &Settings) -> Result<Plan> {
        Ok(Plan::end_daemon(target, fuse::WRITING_BACK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitors_are_a_list_of_either_kind() {
        let hosts = |text| Monitors::parse(text).map(|monitors| monitors.0);
        let one = ("10.0.0.1".to_owned(), Some(6789));
        assert_eq!(hosts("10.0.0.1:6789, b").unwrap(), [one.clone(), ("b".into(), None)]);
        assert_eq!(hosts(r#"["10.0.0.1:6789","b"]"#).unwrap(), [one, ("b".into(), None)]);
        assert_eq!(
            hosts("[::1]:3300,fe80::1").unwrap(),
            [("[::1]".into(), Some(3300)), ("[fe80::1]".into(), None)]
        );
        for text in ["", ",", "a b", "-a", "a:0", "a\nb", "a;b", "[\"a"] {
            assert!(hosts(text).is_err(), "{text}");
        }
    }
}
