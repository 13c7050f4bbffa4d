//! Kubernetes manifests to copy, made from the option table of a driver.

use crate::driver::Driver;
use std::fmt::Write as _;

/// A PV with its claim, and a pod with the volume inline.
pub(super) fn example(driver: &dyn Driver) -> String {
    let name = driver.name();
    format!(
        "\
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
      flexVolume:
{inline}",
        volume = volume(driver, 4),
        inline = volume(driver, 8),
    )
}

/// The body of a flexVolume. Every value is quoted: kubelet takes nothing but strings, and YAML reads `0755`
/// and `yes` its way.
fn volume(driver: &dyn Driver, indent: usize) -> String {
    let examples: Vec<_> = driver.options().iter().filter(|option| !option.example.is_empty()).collect();
    let mut text = format!("{:indent$}driver: example.com/{}\n", "", driver.name());
    if !examples.is_empty() {
        text.extend([" ".repeat(indent).as_str(), "options:\n"]);
    }
    for option in examples {
        // A JSON string is a YAML string. Writing to a String cannot fail.
        let value = serde_json::Value::from(option.example);
        let _ = writeln!(text, "{:indent$}  {}: {value}", "", option.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Request;
    use crate::drivers::{ALL, find};
    use crate::protocol::{Options, TargetPath};
    use crate::settings::Settings;

    #[test]
    fn the_example_of_every_driver_is_a_plan() {
        for driver in ALL.iter().filter(|driver| driver.name() != "exec") {
            let examples = driver.options().iter().filter(|option| !option.example.is_empty());
            let own = examples.map(|option| (option.name.to_owned(), option.example.to_owned())).collect();
            let options = Options { own, ..Options::default() };
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
        assert!(!example(find("exec").unwrap()).contains("options:"));
    }
}
