//! The agent of a node with drivers that hold storage: none, one that fails, one that is well.

use super::{GOOD, Sick};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::time::{Duration, SystemTime};

const HOLDS: &str = "/run/flexvol/holds";

/// Answers every connection the same.
fn serve(socket: &std::path::Path, answer: &Value) {
    let _ = fs::remove_file(socket);
    let (listener, text) = (UnixListener::bind(socket).unwrap(), answer.to_string());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4];
            stream.read_exact(&mut request).unwrap();
            let mut request = vec![0; u32::from_be_bytes(request) as usize];
            stream.read_exact(&mut request).unwrap();
            assert!(String::from_utf8(request).unwrap().contains("\"status\""));
            stream.write_all(&u32::try_from(text.len()).unwrap().to_be_bytes()).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
        }
    });
}

fn ids(node: &Sick) -> Vec<String> {
    let findings = node.findings(&["--check", "agent"]);
    findings.iter().map(|finding| finding["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_agent_that_drivers_need() {
    let Some(node) = Sick::new("doctor::agent::an_agent_that_drivers_need") else { return };
    node.site.driver("example~good", GOOD);
    assert_eq!(ids(&node), [""; 0]);
    fs::create_dir_all(HOLDS).unwrap();
    let socket = std::path::Path::new("/run/flexvol/agent-of-a-test.sock");
    let settings = json!({"agent": {"fence": "pod", "socket": socket}});
    node.site.file("plugins/example~good/.flexvol.json", &settings.to_string());
    assert_eq!(ids(&node), ["agent-missing"]);
    let target = node.target("example~good", "v");
    let hold = |phase: &str, target: &str| json!({"handle": "file:/i", "pod": "default/p", "target": target, "phase": phase, "epoch": 0});
    let well = hold("held", target.to_str().unwrap());
    serve(socket, &json!({"v": 1, "ok": {"ready": true, "store": "/locks", "holds": [well]}}));
    assert_eq!(ids(&node), [""; 0]);
    let holds =
        [hold("lost", "/t"), hold("releasing", "/t"), hold("held", "/nowhere/t"), hold("asking", "/t")];
    serve(socket, &json!({"v": 1, "ok": {"ready": false, "store": "/locks", "holds": holds}}));
    assert_eq!(ids(&node), ["agent-lost", "agent-unready", "agent-releasing", "agent-stale"]);
    serve(socket, &json!({"v": 1, "err": {"code": "UNSUPPORTED_VERSION", "msg": "no"}}));
    assert_eq!(ids(&node), ["agent-missing"]);
    // Nobody can tell what such a driver wants: another check says so.
    node.site.file("plugins/example~good/.flexvol.json", "{");
    let released = std::path::Path::new(HOLDS).join("x.released");
    fs::write(&released, "{}").unwrap();
    assert_eq!(ids(&node), [""; 0]);
    let old = SystemTime::now() - Duration::from_mins(5);
    fs::File::options().write(true).open(&released).unwrap().set_modified(old).unwrap();
    let found = ids(&node);
    fs::remove_file(&released).unwrap();
    let _ = fs::remove_file(socket);
    assert_eq!(found, ["agent-unheard"]);
}
