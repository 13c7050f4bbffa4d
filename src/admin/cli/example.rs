//! Kubernetes manifests to copy, made from the option table of a driver.

use flexvol_model::driver::Driver;
use flexvol_model::profiles::Profile;
use flexvol_model::settings::Settings;
use flexvol_protocol::Verb;
use std::fmt::Write as _;

/// Returns a PV with its claim, and a pod with the volume inline. If the driver may attach, the pod
/// uses the claim: kubelet identifies an attached inline volume only by its name in the pod.
pub(super) fn example(driver: &dyn Driver) -> String {
    let examples = driver.options().iter().filter(|option| !option.example.is_empty());
    let mut options: Vec<_> = examples.map(|option| (option.name, option.example)).collect();
    options.extend(driver.example().option);
    let (name, keys) = (format!("example.com/{}", driver.name()), secret_keys(driver));
    let shown = Shown { name: driver.name(), driver: &name, options: &options, secret: !keys.is_empty() };
    let may_attach = driver.verbs(&Settings::default()).contains(Verb::Attach);
    shown.manifest(may_attach) + &secret(driver.name(), &name, &keys)
}

/// Returns the keys of the Secret without which a driver does nothing.
fn secret_keys(driver: &dyn Driver) -> Vec<&'static str> {
    let known = driver.secrets().iter().filter(|spec| spec.example).map(|spec| spec.keys[0]);
    known.chain(driver.example().secrets.iter().copied()).collect()
}

/// Returns the same in the dialect of another driver, with its Secret if it has one.
pub(super) fn of_profile(profile: &Profile) -> String {
    let name = profile.name.replace(['/', '.'], "-");
    let secret = secret(&name, profile.name, profile.example_secret);
    let has_secret = !profile.example_secret.is_empty();
    let shown = Shown { name: &name, driver: profile.name, options: profile.example, secret: has_secret };
    shown.manifest(profile.verbs(&Settings::default()).contains(Verb::Attach)) + &secret
}

/// The volume of an example.
struct Shown<'a> {
    /// Name of its objects, before `-example`.
    name: &'a str,
    driver: &'a str,
    options: &'a [(&'a str, &'a str)],
    secret: bool,
}

fn secret(name: &str, driver: &str, keys: &[&str]) -> String {
    if keys.is_empty() {
        return String::new();
    }
    let keys: Vec<_> = keys.iter().map(|key| format!("  {key}: \"…\"\n")).collect();
    let keys = keys.concat();
    format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}-example\n  namespace: default\ntype: {driver}\nstringData:\n{keys}"
    )
}

impl Shown<'_> {
    fn manifest(&self, by_claim: bool) -> String {
        let Self { name, driver, options, secret } = self;
        let reference =
            |namespace| if *secret { format!("name: {name}-example{namespace}") } else { String::new() };
        let source = if by_claim {
            format!("      persistentVolumeClaim:\n        claimName: {name}-example\n")
        } else {
            format!("      flexVolume:\n{}", volume(driver, options, &reference(""), 8))
        };
        format!(
            "\
# On each node: {installation}
apiVersion: v1
kind: PersistentVolume
metadata:
  name: {name}-example
spec:
  capacity:
    storage: 1Gi
  accessModes:
    - ReadWriteOnce
  persistentVolumeReclaimPolicy: Retain
  storageClassName: \"\"
  flexVolume:
{volume}---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {name}-example
spec:
  accessModes:
    - ReadWriteOnce
  storageClassName: \"\"
  volumeName: {name}-example
  resources:
    requests:
      storage: 1Gi
---
apiVersion: v1
kind: Pod
metadata:
  name: {name}-example
spec:
  containers:
    - name: shell
      image: busybox
      command: [\"sleep\", \"infinity\"]
      volumeMounts:
        - name: data
          mountPath: /data
  volumes:
    - name: data
{source}",
            installation = installation(driver),
            volume = volume(driver, options, &reference("\n      namespace: default"), 4),
        )
    }
}

/// Returns the command that installs the driver of the example on a node, with the settings that
/// only the node's admin may choose.
fn installation(driver: &str) -> String {
    let settings = match driver {
        "example.com/bind" => " --set policy.bindRoots=/srv/volumes",
        "example.com/overlay" => " --set policy.bindRoots=/srv/data",
        "example.com/exec" => {
            " --set exec.commands='{\"mount\": [\"/usr/local/bin/mount-share\", \"{option.share}\", \"{target}\"]}' \
            --set exec.options='[\"share\"]'"
        }
        "example.com/csi" => " --set policy.csiDrivers=smb.csi.example.com",
        "example.com/lvm" => " --set policy.volumeGroups=data",
        "kubernetes.io/lvm" => " --set policy.volumeGroups=kube_vg",
        "angeloxx/lvm" => " --set policy.volumeGroups=sharevg",
        "sysoperator.pl/lvm" => " --set policy.volumeGroups=storage",
        "kvaps/loop" | "kvaps/qemu-nbd" | "kvaps/nbd" => " --set policy.imageRoots=/srv/kube-volumes",
        "ramax.com/local-storage" => " --set policy.bindRoots=/srv/local",
        _ => "",
    };
    format!("flexvol install {driver}{settings}")
}

/// Returns the body of a flexVolume. Every value is quoted: kubelet accepts only strings, and YAML
/// would interpret `0755` and `yes`.
fn volume(driver: &str, options: &[(&str, &str)], secret: &str, indent: usize) -> String {
    let mut text = format!("{:indent$}driver: {driver}\n", "");
    if !secret.is_empty() {
        let _ = writeln!(text, "{0:indent$}secretRef:\n{0:indent$}  {secret}", "");
    }
    if !options.is_empty() {
        text.extend([" ".repeat(indent).as_str(), "options:\n"]);
    }
    for (name, value) in options {
        // A JSON string is a YAML string. Writing to a String cannot fail.
        let value = serde_json::Value::from(*value);
        let _ = writeln!(text, "{:indent$}  {name}: {value}", "");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_model::driver::Request;
    use flexvol_model::drivers::{ALL, find};
    use flexvol_model::settings::Settings;
    use flexvol_protocol::secret::Secret;
    use flexvol_protocol::{Options, TargetPath};

    #[test]
    fn the_example_of_every_driver_is_a_plan() {
        for driver in ALL.iter().filter(|driver| driver.is_configured(&Settings::default())) {
            let examples = driver.options().iter().filter(|option| !option.example.is_empty());
            let own = examples.map(|option| (option.name.to_owned(), option.example.to_owned())).collect();
            let keys = secret_keys(*driver).into_iter();
            let secrets = keys.map(|key| (key.to_owned(), Secret::new(b"x".to_vec()))).collect();
            let options = Options { secrets, own, ..Options::default() };
            let target = TargetPath::parse("/pods/1/volumes/example.com~x/data".as_ref()).unwrap();
            let request = Request { options: &options, settings: &Settings::default() };
            driver.mount(&target, &request).unwrap_or_else(|failure| panic!("{}: {failure}", driver.name()));
        }
    }

    #[test]
    fn values_are_quoted_and_indented() {
        let text = example(find("tmpfs").unwrap());
        assert!(
            text.contains("    driver: example.com/tmpfs\n    options:\n      size: \"64Mi\"\n"),
            "{text}"
        );
        assert!(
            text.contains("        driver: example.com/tmpfs\n        options:\n          size: \"64Mi\"\n")
        );
    }
}
