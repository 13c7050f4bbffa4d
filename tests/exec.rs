//! What the commands of the `exec` driver answer and leave behind.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "kubelet's side: programs are started plainly")]

mod support;

use flexvol::protocol::Outcome;
use support::Plugin;

#[test]
fn the_answers_of_the_rarer_verbs() {
    let commands = r#"{"driver":"exec","exec":{"commands":{
        "attach":["/bin/sh","-c","echo warning >&2; echo; echo /dev/sdb; echo second >&2","sh","{node}"],
        "waitforattach":["/bin/echo","{device}"],
        "isattached":["/bin/echo","true"],
        "getvolumename":["/bin/echo"," name "],
        "detach":["/bin/sh","-c","echo maybe; exit 1"]}}}"#;
    let plugin = Plugin::new("example~share", "share", Some(commands));
    let reply = plugin.call(["attach", "{}", "n"]).run().reply();
    assert_eq!((reply.outcome(), reply.device.as_str()), (Outcome::Success, "/dev/sdb"));
    assert_eq!(plugin.call(["waitforattach", "/dev/x", "{}"]).run().reply().device, "/dev/x");
    assert!(plugin.call(["isattached", "{}", "n"]).run().reply().attached);
    let named = plugin.call(["getvolumename", "{}"]).run();
    named.success();
    assert!(String::from_utf8_lossy(&named.output).contains(r#""volumeName":"name""#), "{named:?}");
    assert!(plugin.call(["detach", "v", "n"]).run().failure().contains("saying: maybe"));
    assert_eq!(plugin.call(["expandfs", "x"]).run().outcome(), Outcome::NotSupported);
}

#[test]
fn what_is_no_answer_is_a_failure() {
    for (script, printed) in [
        ("echo /dev/sdb; echo second", r#""/dev/sdb; second", which is no answer"#),
        ("echo /dev/sdb >&2", "nothing"),
        ("echo", "nothing"),
        ("head -c 5000 /dev/zero | tr '\\0' x", r#""xxx"#),
    ] {
        for verb in ["attach", "getvolumename", "isattached"] {
            let side = format!(
                r#"{{"driver":"exec","exec":{{"commands":{{"{verb}":["/bin/sh","-c",{script:?}]}}}}}}"#
            );
            let plugin = Plugin::new("example~share", "share", Some(&side));
            let arguments = if verb == "getvolumename" { &[verb, "{}"][..] } else { &[verb, "{}", "n"] };
            let failure = plugin.call(arguments).run().failure();
            assert!(failure.starts_with(&format!("the command printed {printed}")), "{failure}");
        }
    }
}

#[test]
fn a_command_that_is_not_there() {
    for program in ["/nonexistent/x", "relative", "/etc/passwd", "/bin", ""] {
        let side = format!(r#"{{"driver":"exec","exec":{{"commands":{{"getvolumename":["{program}"]}}}}}}"#);
        let plugin = Plugin::new("example~share", "share", Some(&side));
        let failure = plugin.call(["getvolumename", "{}"]).run().failure();
        assert!(failure.contains("is no executable file"), "{failure}");
    }
}
