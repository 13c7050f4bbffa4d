//! Deployments as Kubernetes reads them: every platform, every kind.

use flexvol::kubelet::platform::{self, Need, Platform};
use flexvol::manifest::{Fetch, Manifest, ManifestKind, ManifestRequest, make};
use flexvol::yaml;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PodSpec, ResourceQuota, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{BINARY, write_executable};

fn request(platform: &'static Platform) -> ManifestRequest {
    ManifestRequest {
        drivers: vec!["example/tmpfs".into(), "example/scratch=tmpfs".into()],
        platform,
        plugin_dir: None,
        image: "registry.example:5000/flexvol:1".into(),
        namespace: "storage".into(),
        name: "drivers".into(),
        policy: Some("{\"maxSize\":\"1Gi\"}\n".into()),
        arguments: vec!["--set=size=64Mi".into(), "--take-over".into()],
        uninstall_on_exit: false,
        program: "/usr/local/bin/flexvol".into(),
        fetch: None,
    }
}

/// Every platform that has FlexVolume.
fn platforms() -> impl Iterator<Item = &'static Platform> {
    platform::all().iter().filter(|platform| platform.directory().is_some())
}

/// Both ways to leave, on every platform.
fn requests() -> impl Iterator<Item = ManifestRequest> {
    platforms().flat_map(|platform| {
        [false, true].map(|uninstall_on_exit| ManifestRequest { uninstall_on_exit, ..request(platform) })
    })
}

/// What was printed, as Kubernetes reads it.
fn objects(kind: ManifestKind, request: &ManifestRequest) -> Vec<Value> {
    yaml::parse(&make(kind, request).unwrap().to_text().unwrap()).unwrap()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Option<&'a Value> {
    objects.iter().find(|object| object["kind"] == kind)
}

/// Reads an object as the API's type and writes it again: a field the API does not know, or of
/// another type, would be lost.
fn is_known<T: DeserializeOwned + Serialize>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    assert_eq!(serde_json::to_value(typed).unwrap(), *object);
}

fn check(object: &Value) {
    match object["kind"].as_str().unwrap() {
        "Namespace" => is_known::<Namespace>(object),
        "ServiceAccount" => is_known::<ServiceAccount>(object),
        "ConfigMap" => is_known::<ConfigMap>(object),
        "DaemonSet" => is_known::<DaemonSet>(object),
        "ResourceQuota" => is_known::<ResourceQuota>(object),
        "Role" => is_known::<Role>(object),
        "RoleBinding" => is_known::<RoleBinding>(object),
        // OpenShift's own; no types of it here.
        "SecurityContextConstraints" => assert_eq!(object["apiVersion"], "security.openshift.io/v1"),
        other => panic!("{other}"),
    }
}

#[test]
fn the_api_knows_every_field_of_every_object_on_every_platform() {
    for request in requests() {
        let objects = objects(ManifestKind::DaemonSet, &request);
        objects.iter().for_each(check);
        assert_eq!(objects.last().unwrap()["kind"], "DaemonSet");
    }
}

#[test]
fn a_pod_mounts_what_its_driver_needs_and_may_do_nothing_else() {
    for request in requests() {
        let objects = objects(ManifestKind::DaemonSet, &request);
        let pod = &of_kind(&objects, "DaemonSet").unwrap()["spec"]["template"]["spec"];
        let directory = request.platform.directory().unwrap();
        let host = json!({"path": directory, "type": "DirectoryOrCreate"});
        assert_eq!(pod["volumes"][0], json!({"name": "plugins", "hostPath": host}));
        let container = &pod["containers"][0];
        assert_eq!(container["volumeMounts"][0], json!({"name": "plugins", "mountPath": directory}));
        let names = |list: &Value| -> Vec<Value> {
            list.as_array().unwrap().iter().map(|each| each["name"].clone()).collect()
        };
        assert_eq!(names(&pod["volumes"]), names(&container["volumeMounts"]));
        let security = &container["securityContext"];
        assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(
            (&security["privileged"], &security["allowPrivilegeEscalation"]),
            (&false.into(), &false.into())
        );
        assert_eq!(pod.get("hostPID").is_some(), request.uninstall_on_exit);
        assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
        assert_eq!(pod["priorityClassName"], "system-node-critical");
        let selinux = request.platform.needs.contains(&Need::SELinuxType);
        assert_eq!(security.get("seLinuxOptions").is_some(), selinux);
    }
}

/// A selector that does not select its own pods, or a reference to what is not there, is refused or
/// waits for ever.
#[test]
fn objects_name_each_other() {
    for request in requests() {
        let objects = objects(ManifestKind::DaemonSet, &request);
        let set = of_kind(&objects, "DaemonSet").unwrap();
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        for (key, value) in set["spec"]["selector"]["matchLabels"].as_object().unwrap() {
            assert_eq!(&labels[key], value);
        }
        let pod = &set["spec"]["template"]["spec"];
        let account = of_kind(&objects, "ServiceAccount").unwrap();
        assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
        let map = &of_kind(&objects, "ConfigMap").unwrap()["metadata"]["name"];
        assert_eq!(&pod["volumes"][3]["configMap"]["name"], map);
        for object in &objects {
            let namespace = object["metadata"].get("namespace");
            let everywhere =
                ["Namespace", "SecurityContextConstraints"].contains(&object["kind"].as_str().unwrap());
            assert_eq!(namespace.is_none(), everywhere, "{object}");
            assert!(namespace.is_none_or(|namespace| namespace == "storage"));
        }
        let constraints = of_kind(&objects, "SecurityContextConstraints");
        assert_eq!(constraints.is_some(), request.platform.needs.contains(&Need::SecurityContextConstraints));
        if let Some(constraints) = constraints {
            let role = of_kind(&objects, "Role").unwrap();
            assert_eq!(role["rules"][0]["resourceNames"][0], constraints["metadata"]["name"]);
            assert_eq!(constraints["allowHostPID"], request.uninstall_on_exit);
            let binding = of_kind(&objects, "RoleBinding").unwrap();
            assert_eq!(binding["subjects"][0]["name"], account["metadata"]["name"]);
        }
    }
}

#[test]
fn another_policy_is_another_object() {
    let name = |policy: &str| {
        let request =
            ManifestRequest { policy: Some(policy.into()), ..request(platform::find("default").unwrap()) };
        let objects = objects(ManifestKind::DaemonSet, &request);
        let map = of_kind(&objects, "ConfigMap").unwrap();
        assert_eq!(map["data"]["policy.json"], policy);
        map["metadata"]["name"].clone()
    };
    assert_ne!(name("{}"), name("{ }"));
    assert_eq!(name("{}"), name("{}"));
}

#[test]
fn the_system_s_namespace_is_not_made() {
    for platform in platforms() {
        let request = ManifestRequest { namespace: "kube-system".into(), ..request(platform) };
        let objects = objects(ManifestKind::DaemonSet, &request);
        assert!(of_kind(&objects, "Namespace").is_none() && of_kind(&objects, "ResourceQuota").is_none());
    }
}

#[test]
fn an_init_container_fits_into_a_pod() {
    for request in requests() {
        let patch = objects(ManifestKind::InitContainer, &request);
        let mut pod = patch[0]["spec"]["template"]["spec"].clone();
        pod["containers"] = json!([]);
        is_known::<PodSpec>(&pod);
        let command = &pod["initContainers"][0]["command"];
        assert_eq!(*command, json!(["/flexvol", "deploy", "--once"]));
    }
}

#[test]
fn kustomize_finds_every_file_it_is_told_of() {
    for request in requests() {
        let Manifest::Files(files) = make(ManifestKind::Kustomize, &request).unwrap() else { panic!() };
        let text = |name: &str| &files.iter().find(|(file, _)| file == name).unwrap().1;
        let kustomization = &yaml::parse(text("kustomization.yaml")).unwrap()[0];
        let resources = kustomization["resources"].as_array().unwrap();
        let objects: Vec<_> =
            resources.iter().flat_map(|name| yaml::parse(text(name.as_str().unwrap())).unwrap()).collect();
        objects.iter().for_each(check);
        let generator = &kustomization["configMapGenerator"][0];
        let pod = &of_kind(&objects, "DaemonSet").unwrap()["spec"]["template"]["spec"];
        assert_eq!(pod["volumes"][3]["configMap"]["name"], generator["name"]);
        assert_eq!(text(generator["files"][0].as_str().unwrap()), request.policy.as_ref().unwrap());
        assert_eq!(kustomization["images"][0]["name"], "registry.example:5000/flexvol");
        assert_eq!(files.len(), 3);
    }
}

#[test]
fn nothing_from_the_command_line_becomes_a_line_of_its_own() {
    let hostile = "--set=a=\"}]\\n: # %n $HOME ' \u{2028}é";
    for request in requests() {
        let request = ManifestRequest { arguments: vec![hostile.into()], ..request };
        let objects = objects(ManifestKind::DaemonSet, &request);
        let pod = &of_kind(&objects, "DaemonSet").unwrap()["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["args"][3], hostile);
        let unit = make(ManifestKind::Systemd, &request).unwrap().to_text().unwrap();
        let line = unit.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
        assert!(line.contains("%%n $$HOME") && line.contains(r#"=\"}]\\n"#), "{line}");
    }
}

#[test]
fn cloud_init_brings_the_unit_the_policy_and_the_program() {
    let fetch = Fetch { url: "https://files.example/flexvol".into(), sha256: "0A".repeat(32) };
    let request = ManifestRequest { fetch: Some(fetch), ..request(platform::find("flatcar").unwrap()) };
    let text = make(ManifestKind::CloudInit, &request).unwrap().to_text().unwrap();
    assert!(text.starts_with("#cloud-config\n"));
    let data = &yaml::parse(&text).unwrap()[0];
    let unit = make(ManifestKind::Systemd, &request).unwrap().to_text().unwrap();
    assert_eq!(data["write_files"][0]["content"], unit);
    assert_eq!(data["write_files"][1]["content"], *request.policy.as_ref().unwrap());
    assert_eq!(data["write_files"][0]["permissions"], "0644");
    assert_eq!(data["runcmd"][2], json!(["systemctl", "enable", "--now", "flexvol.service"]));
}

/// A node that is not fit for it before something was done, whoever brings the drivers.
#[test]
fn what_comes_first_is_said_in_every_kind() {
    let request = request(platform::find("cos").unwrap());
    for kind in
        [ManifestKind::DaemonSet, ManifestKind::InitContainer, ManifestKind::Systemd, ManifestKind::CloudInit]
    {
        let text = make(kind, &request).unwrap().to_text().unwrap();
        let first =
            text.lines().take_while(|line| line.starts_with('#')).find(|line| line.contains("# before: "));
        assert!(first.is_some_and(|line| line.contains("remount,exec")), "{kind:?}: {text}");
    }
}

/// The script that fetches the program, with a file in place of the network.
#[test]
fn a_program_that_is_not_the_one_expected_gets_no_name() {
    let directory = tempfile::tempdir().unwrap();
    let bin = directory.path().join("bin");
    let text = "#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done\nprintf hello > \"$2\"\n";
    write_executable(&bin.join("curl"), text);
    let program = directory.path().join("flexvol");
    let run = |sha256: &str| {
        let fetch = Fetch { url: "https://files.example/flexvol".into(), sha256: sha256.into() };
        let program = program.to_str().unwrap().to_owned();
        let request =
            ManifestRequest { fetch: Some(fetch), program, ..request(platform::find("default").unwrap()) };
        let data = yaml::parse(&make(ManifestKind::CloudInit, &request).unwrap().to_text().unwrap()).unwrap();
        let words: Vec<String> = serde_json::from_value(data[0]["runcmd"][0].clone()).unwrap();
        let path = format!("{}:/usr/bin:/bin", bin.display());
        Command::new(&words[0]).args(&words[1..]).env("PATH", path).output().unwrap()
    };
    assert!(!run(&"0".repeat(64)).status.success());
    assert!(!program.exists());
    let hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    assert!(run(hello).status.success());
    assert_eq!(fs::read_to_string(&program).unwrap(), "hello");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&program).unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o755);
}

fn flexvol(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(BINARY).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_prints_or_writes_it() {
    let directory = tempfile::tempdir().unwrap();
    let (status, out, _) = flexvol(&["manifest", "daemonset", "example/tmpfs", "--platform", "rke2"]);
    assert_eq!(status, 0);
    assert!(
        out.starts_with("# FlexVolume drivers for RKE2\n") && out.contains("/var/lib/kubelet/volumeplugins")
    );
    let (_, out, _) = flexvol(&["manifest", "daemonset", "example/tmpfs", "--json"]);
    let list: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&list["kind"], &list["items"][2]["kind"]), (&"List".into(), &"DaemonSet".into()));
    let (status, _, error) = flexvol(&["manifest", "daemonset", "example/tmpfs", "--platform", "talos"]);
    assert!(status == 1 && error.contains("CSI driver"), "{error}");
    let (status, _, error) = flexvol(&["manifest", "kustomize", "example/tmpfs"]);
    assert!(status == 1 && error.contains("--output"), "{error}");
    let base = directory.path().join("base");
    let line = ["manifest", "kustomize", "example/tmpfs", "--output", base.to_str().unwrap()];
    assert_eq!(flexvol(&line).0, 0);
    assert!(base.join("kustomization.yaml").exists() && base.join("flexvol.yaml").exists());
    let (status, _, error) = flexvol(&line);
    assert!(status == 1 && error.contains("kustomization.yaml"), "{error}");
}

/// What a pod is told to run, run here as far as it can be: a misspelt flag would be a pod that
/// never starts.
#[test]
fn the_program_understands_what_a_pod_tells_it() {
    let node = tempfile::tempdir().unwrap();
    let place = |name: &str| node.path().join(name).to_str().unwrap().to_owned();
    fs::write(place("policy.json"), "{}").unwrap();
    let request = request(platform::find("default").unwrap());
    let patch = objects(ManifestKind::InitContainer, &request);
    let container = &patch[0]["spec"]["template"]["spec"]["initContainers"][0];
    let words = |key: &str| -> Vec<String> { serde_json::from_value(container[key].clone()).unwrap() };
    let here = |word: String| match word.split_once('=') {
        Some(("--plugin-dir", _)) => format!("--plugin-dir={}", place("plugins")),
        Some(("--policy", _)) => format!("--policy={}", place("policy.json")),
        _ => word,
    };
    let arguments = words("command").into_iter().skip(1).chain(["--dry-run".to_owned()]);
    let arguments: Vec<_> = arguments.chain(words("args").into_iter().map(here)).collect();
    let (status, out, error) = flexvol(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(status == 0 && out.matches("would be installed").count() == 2, "{arguments:?}: {out}{error}");

    let objects = objects(ManifestKind::DaemonSet, &ManifestRequest { uninstall_on_exit: true, ..request });
    let container = &of_kind(&objects, "DaemonSet").unwrap()["spec"]["template"]["spec"]["containers"][0];
    let probe: Vec<String> =
        serde_json::from_value(container["readinessProbe"]["exec"]["command"].clone()).unwrap();
    let (status, _, error) = flexvol(&probe[1..].iter().map(String::as_str).collect::<Vec<_>>());
    assert!(status == 1 && error.contains("/run/flexvol/deploy/drivers: not there"), "{error}");
    let known = flexvol(&["deploy", "--help"]).1;
    let arguments: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap();
    for flag in arguments.iter().take_while(|word| *word != "--") {
        let flag = flag.split('=').next().unwrap();
        assert!(known.split_whitespace().any(|word| word == flag), "{flag}");
    }
}

#[test]
fn a_policy_is_checked_before_it_is_deployed() {
    let directory = tempfile::tempdir().unwrap();
    let policy = |text: &str| {
        let path = directory.path().join("policy.json");
        fs::write(&path, text).unwrap();
        let path = Path::new(&path).to_str().unwrap().to_owned();
        flexvol(&["manifest", "daemonset", "example/tmpfs", "--policy", &path])
    };
    assert_eq!(policy(r#"{"bindRoots":["/srv"]}"#).0, 0);
    let (status, _, error) = policy(r#"{"bindroots":["/srv"]}"#);
    assert!(status == 1 && error.contains("is no policy"), "{error}");
}

/// `deploy` would end at once on every node.
#[test]
fn settings_that_install_refuses_are_refused() {
    let made = |kind: &str, driver: &str, set: &str| flexvol(&["manifest", kind, driver, "--set", set]);
    for kind in ["daemonset", "init-container", "systemd", "cloud-init"] {
        let (status, out, error) = made(kind, "example/bind", "policy.bindRots=/srv");
        assert!(status == 2 && out.is_empty() && error.contains("fix --set policy.bindRots"), "{error}");
    }
    let (status, _, error) = made("daemonset", "example/scratch=tmpfs", "sise=3");
    assert!(status == 2 && error.contains("did you mean \"size\"?"), "{error}");
    let (status, _, error) = made("daemonset", "acme/loop=kvaps/loop", "shaer=/srv");
    assert!(status == 2 && error.contains("did you mean \"share\"?"), "{error}");
    assert_eq!(made("daemonset", "bind", "policy.bindRoots=/srv").0, 0);
    assert_eq!(made("daemonset", "example/scratch=tmpfs", "size=64Mi").0, 0);
}

/// What people call a platform is understood, and an image that every node would look for
/// elsewhere is warned of, beside the manifest.
#[test]
fn names_of_people_and_images_without_registry() {
    let run = |words: &[&str]| {
        let output =
            Command::new(BINARY).args(["manifest", "daemonset", "example/tmpfs"]).args(words).output();
        let output = output.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let image = ["--image", "registry.example/flexvol:1"];
    for (called, name) in [("gke", "cos"), ("okd", "openshift"), ("eks", "default"), ("kind", "default")] {
        let by_name = run(&[&image[..], &["--platform", name]].concat());
        assert_eq!(run(&[&image[..], &["--platform", called]].concat()), by_name, "{called}");
        assert!(by_name.0 && by_name.2.is_empty(), "{by_name:?}");
    }
    let (made, out, warned) = run(&[]);
    assert!(made && out.contains("\"DaemonSet\"") && warned.contains("--image REGISTRY/"), "{warned}");
}
