use super::*;
use std::collections::BTreeSet;

const JQ_IS_MISSING: &str = r#"Failed to unmarshal output for command: mount, output: "bash: jq: command not found\n", error: invalid character 'b' looking for beginning of value"#;

/// Texts of a kubelet 1.37 in the chapter `events` of tests/cluster, word for word.
const OF_A_CLUSTER: &[(&str, &str)] = &[
    (
        r#"MountVolume.SetUp failed for volume "v" : mount command failed, status: Failure, reason: unknown option "sise": did you mean "size"?"#,
        "unknown-option",
    ),
    (
        r#"MountVolume.SetUp failed for volume "v" : couldn't get secret events/absent err: secrets "absent" not found"#,
        "secret-missing",
    ),
    (
        r#"MountVolume.SetUp failed for volume "v" : couldn't get secret events/opaque err: cannot get secret of type events/secretfiles"#,
        "secret-type",
    ),
    (
        r#"Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: failed to get Plugin from volumeSpec for volume "v" err=no volume plugin matched"#,
        "no-plugin",
    ),
    (r#"MountVolume.SetUp failed for volume "v" : unexpected end of JSON input"#, "no-output"),
    (
        r#"MountVolume.SetUp failed for volume "v" : mount command failed, status: Failure, reason: server "127.0.0.1" is the node itself, its link or its cloud's metadata service: use another, or let the admin name it in policy.servers"#,
        "policy",
    ),
    (
        r#"MountVolume.SetUp failed for volume "v" : mount command failed, status: Failure, reason: /var/x.img is not below a directory this node allows (/var/lib/flexvol/images): use one of those, or let the admin add it to policy.imageRoots"#,
        "policy",
    ),
    (
        r#"MountVolume.SetUp failed for volume "v" : mount command failed, status: Failure, reason: mfsmount is not on this node: install lizardfs-client (up to Debian 11 and Ubuntu 22.04)"#,
        "tool-missing",
    ),
    (
        r#"MountVolume.SetUp failed for volume "v" : mount command failed, status: Failure, reason: clone http://10.77.0.1:4711/x.git: deadline of 4 s passed while running git"#,
        "deadline",
    ),
    (
        r#"UnmountVolume.TearDown failed for volume "events/tmpfs/04d4fdb1-v" (UniqueName: "events/tmpfs/04d4fdb1-v") pod "04d4fdb1" (UID: "04d4fdb1") : unmount command failed, status: Failure, reason: /var/lib/kubelet/pods/04d4fdb1/volumes/events~tmpfs/v is in use by bash (pid 14257), sleep (pid 14259): end it, kubelet tries again"#,
        "busy",
    ),
    (
        r#"MountVolume.SetUp failed for volume "new" : mount command failed, status: Failure, reason: server 10.77.0.1 (10.77.0.1): refuses connections to port 445: check that it runs, and the network and firewalls between it and this node"#,
        "refused",
    ),
    (
        r#"MountVolume.SetUp failed for volume "hang" : mount command failed, status: Failure, reason: clone http://10.99.0.7/x.git: git failed (exit 128): fatal: unable to access 'http://10.99.0.7/x.git/': Failed to connect to 10.99.0.7 port 80 after 0 ms: Couldn't connect to server"#,
        "no-route",
    ),
    (
        r#"Waiting for detach for volume "events-attached" Volume is already used by pod(s) first"#,
        "attached-elsewhere",
    ),
];

/// Texts that people search for, each with the known error that it must be: texts of kubelet, of
/// drivers, of mount(8) and its helpers.
const TEXTS: &[(&str, &str)] = &[
    (
        "resize2fs 1.47.0 (5-Feb-2023)\nFilesystem at /dev/loop0 is mounted on /mnt; on-line resizing required\nresize2fs: Permission denied to resize filesystem",
        "grow-denied",
    ),
    (r#"MountVolume.SetUp failed for volume "data" : no volume plugin matched"#, "no-plugin"),
    (
        r#"MountVolume.NewMounter initialization failed for volume "v" : failed to get Plugin from volumeSpec for volume "v" err=no volume plugin matched"#,
        "no-plugin",
    ),
    (
        r#"MountVolume.SetUp failed for volume "data" : Couldn't get secret default/smb err: Cannot get secret of type fstab/cifs"#,
        "secret-type",
    ),
    (
        r#"MountVolume.SetUp failed for volume "v" : invalid character 'W' looking for beginning of value"#,
        "noise",
    ),
    ("MountVolume.SetUp failed for volume \"v\" : unexpected end of JSON input", "no-output"),
    (
        r#"E1122 03:11:27.004417    1207 nestedpendingoperations.go:348] Operation for "{volumeName:flexvolume-example/qcow2/data podName: nodeName:}" failed. No retries permitted until 2026-11-22 03:11:27.504379 +0000 UTC m=+91.7 (durationBeforeRetry 500ms). Error: recovered from panic "runtime error: invalid memory address or nil pointer dereference". (err=<nil>) Call stack:"#,
        "inline-attached",
    ),
    (
        r#"driver call failed: executable: /p/fstab~cifs/cifs, args: [mount /t {"kubernetes.io/secret/password":"aHVudGVyMg=="}], error: executable file not found in $PATH, output: """#,
        "no-executable",
    ),
    (
        r#"driver call failed: executable: /p/v~d/d, args: [init], error: exit status 1, output: "x""#,
        "exit-status",
    ),
    (
        r#"MountVolume.SetUp failed for volume "v" : mount command failed, status: Failure, reason: the moon is full"#,
        "driver-said",
    ),
    (
        r#"MountVolume.SetUp failed for volume "v" : mount command failed, status: Failure, reason: "#,
        "driver-wordless",
    ),
    (
        r#"MountVolume.SetUp failed for volume "v" : mount command failed, status: Failure, reason: mount error(13): Permission denied Refer to the mount.cifs(8) manual page"#,
        "smb-denied",
    ),
    (
        "rclone failed (exit 1): ERROR : : error listing: couldn't list files: Unauthorized: 401 Unauthorized",
        "user-refused",
    ),
    ("client.0 authentication failed: (13) Permission denied", "user-refused"),
    (
        "auth: error parsing file /x/keyring: error setting modifier for [client.user] type=key val=***: Malformed input; (5) Input/output error",
        "ceph-key",
    ),
    ("mount error(22): Invalid argument", "share-option"),
    ("mount error(112): Host is down", "smb-closed"),
    ("mount error(2): No such file or directory", "smb-no-share"),
    ("mount error(115): Operation now in progress", "smb-in-progress"),
    ("mount error(95): Operation not supported", "smb-version"),
    ("mount error(126): Required key not available", "share-key"),
    (
        "mount: wrong fs type, bad option, bad superblock on //nas/share, missing codepage or helper program, or other error (for several filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program)",
        "no-helper",
    ),
    (
        "stat /var/lib/kubelet/pods/7/volumes/azure~blobfuse/v: transport endpoint is not connected",
        "dead-daemon",
    ),
    ("lstat /x: Stale file handle", "stale-handle"),
    (
        r#"UnmountVolume.TearDown failed for volume "v" (UniqueName: "flexvolume-x") pod "7" (UID: "7") : unmount command failed, status: Failure, reason: umount: /t: device is busy"#,
        "busy",
    ),
    ("remove /var/lib/kubelet/pods/7/volumes/fstab~cifs/v: directory not empty", "not-empty"),
    (
        r#"Orphaned pod "7" found, but volume paths are still present on disk : There were a total of 1 errors similar to this."#,
        "orphaned-pod",
    ),
    (
        r#"Unable to mount volumes for pod "web_default(7)": timeout expired waiting for volumes to attach or mount for pod "default"/"web". list of unmounted volumes=[data]"#,
        "waited-too-long",
    ),
    (
        "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[data kube-api-access]: timed out waiting for the condition",
        "waited-too-long",
    ),
    // Complete text of kubelet 1.37 if the controllers lack the driver: in its log, without an
    // Event.
    (
        r#"E1124 09:12:14.916759     184 pod_workers.go:1338] "Error syncing pod, skipping" err="unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]: context deadline exceeded" pod="shop/web" podUID="34d22353-16ba-4ab8-9de0-da075aacc3d6""#,
        "waited-too-long",
    ),
    (
        r#"MountVolume.SetUp failed for volume "key" : failed to sync secret cache: timed out waiting for the condition"#,
        "object-not-read",
    ),
    (
        r#"MountVolume.SetUp failed for volume "conf" : failed to sync configmap cache: timed out waiting for the condition"#,
        "object-not-read",
    ),
    (
        "Error: fork/exec /usr/libexec/kubernetes/kubelet-plugins/volume/exec/v~d/d: permission denied",
        "exec-denied",
    ),
    ("fork/exec /p/v~d/d: exec format error", "wrong-format"),
    ("fork/exec /p/v~d/d: text file busy", "busy-text"),
    (
        "Error dynamically probing plugins: error creating Flexvolume plugin from directory nodeagent~uds, skipping. Error: unexpected end of JSON input",
        "no-output",
    ),
    (
        r#"Failed to unmarshal output for command: init, output: "I0101 x\n{}", error: invalid character 'I' looking for beginning of value"#,
        "noise",
    ),
    (JQ_IS_MISSING, "script-lacks"),
    (
        r#"Failed to unmarshal output for command: mount, output: "mkdir: cannot create directory /x: Read-only file system\n{\"status\":\"Failure\",\"message\":\"refused\"}", error: invalid character 'm' looking for beginning of value"#,
        "read-only",
    ),
    (
        r#"Failed to unmarshal output for command: mount, output: "{\"status\":\"Success\"} permission denied", error: invalid character 'p' after top-level value"#,
        "noise",
    ),
    (
        r#"Failed to unmarshal output for command: mount, output: "", error: unexpected end of JSON input"#,
        "no-output",
    ),
    (
        r#"MountVolume.MountOptionSupport check failed for volume "web" : Mount options are not supported for this volume type"#,
        "mount-options",
    ),
    ("Volume not attached according to node status for volume \"pv\"", "not-attached"),
    (
        r#"Multi-Attach error for volume "pv" Volume is already exclusively attached to one node and can't be attached to another"#,
        "attached-elsewhere",
    ),
    (r#"Multi-Attach error for volume "pv" Volume is already used by pod(s) web-0"#, "attached-elsewhere"),
    (r#"Waiting for detach for volume "pv" Volume is already used by pod(s) web-0"#, "attached-elsewhere"),
    ("Volume is already used by 2 pod(s) in different namespaces", "attached-elsewhere"),
    (
        "FlexVolume: driver bug: /p/v~d/d: exec error (exit status 1) but no error in response.",
        "exit-after-success",
    ),
    ("panic: runtime error: invalid memory address or nil pointer dereference", "panic"),
    ("wait: no child processes", "no-children"),
    ("no child processes", "no-children"),
    (
        r#"driver call failed: executable: /p/v~d/d, args: [init], error: exit status 127, output: "/bin/sh: 1: jq: not found""#,
        "script-lacks",
    ),
    ("/p/v~d/d: /bin/bash: bad interpreter: No such file or directory", "script-lacks"),
    ("blobfuse: fuse: failed to exec fusermount: No such file or directory", "script-lacks"),
    ("inotify_add_watch: no space left on device", "watches"),
    ("error creating watcher: too many open files", "watches"),
    ("umount: /var/lib/kubelet/pods/7/volumes/v~d/v: not mounted.", "not-mounted"),
    ("mount: special device //nas/share does not exist", "no-device"),
    ("mount.nfs: Protocol not supported", "nfs-version"),
    ("mount.nfs: mounting nas:/x failed, reason given by server: No such file or directory", "nfs-missing"),
    ("mount error(113): could not connect to 10.0.0.1Unable to find suitable address", "share-no-way"),
    ("mount error: cifs filesystem not supported by the system", "module-missing"),
    ("s3fs: MOUNTPOINT directory /x is not empty. if you are sure this is safe", "not-empty"),
    ("volume plugin has invalid name: \"x\"", "plugin-name"),
    ("mount.nfs: access denied by server while mounting nas:/export", "nfs-refused"),
    ("mount.nfs: Failed to resolve server nas: Name or service not known", "no-name"),
    ("mount.nfs: Connection timed out", "silent"),
    ("fork/exec /p/v~d/d: argument list too long", "too-long"),
    ("s3fs: unable to access MOUNTPOINT: Transport endpoint is not connected", "dead-daemon"),
    (
        "nas:/b: mount nfs4 on /a: Operation not permitted (os error 1): the driver runs without CAP_SYS_ADMIN, so the kernel mounts nothing for it",
        "no-admin",
    ),
    ("write /run/flexvol/volumes/x: No space left on device (os error 28)", "no-space"),
];

#[test]
fn every_known_text_has_its_cause_and_fix() {
    for (text, id) in TEXTS.iter().chain(OF_A_CLUSTER) {
        let explained = explain(text).unwrap_or_else(|| panic!("not understood: {text}"));
        assert_eq!(explained.known_error.id, *id, "{text}");
        assert!(!explained.known_error.cause.is_empty() && !explained.known_error.fix.is_empty());
    }
    assert!(TEXTS.len() >= 25);
}

#[test]
fn what_is_not_known_is_not_guessed() {
    for text in ["", " ", "all is well", "ready", "7", "mount"] {
        assert_eq!(explain(text), None, "{text}");
    }
}

/// Words that any program may use are a cause only if the text names their subject.
#[test]
fn words_of_many_are_a_hint() {
    for (text, id, confidence) in [
        ("mount.nfs: Connection refused", "refused", Confidence::Cause),
        ("dial tcp 10.96.0.1:443: connect: connection refused", "refused", Confidence::Hint),
        ("failed calling webhook for volumes: connection refused", "refused", Confidence::Hint),
        ("umount: /mnt: target is busy", "busy", Confidence::Cause),
        ("Logical volume vg/v contains a filesystem in use.", "busy", Confidence::Cause),
        ("mount: /mnt: already mounted or mount point busy.", "device-held", Confidence::Cause),
        ("cifs: Unknown parameter 'x'", "option-refused", Confidence::Cause),
        ("mount: mounting a on b failed\nfuse: Unknown parameter 'x'", "option-refused", Confidence::Hint),
        ("mount error(126): Required key not available", "share-key", Confidence::Hint),
        ("mount error(126): see cifs.upcall", "share-key", Confidence::Cause),
        ("tun: TUNSETIFF: Device or resource busy", "busy", Confidence::Hint),
        // Words inside longer words: lv, rm:, oss, and runc.
        ("insufficient free space on the machine: resolve that", "group-full", Confidence::Hint),
        ("term: Device or resource busy", "busy", Confidence::Hint),
        ("proxy answers 403 Forbidden: not possible from here", "store-denied", Confidence::Hint),
        (
            "exec: \"mkfs.xfs\": executable file not found in $PATH (truncated)",
            "program-missing",
            Confidence::Cause,
        ),
        ("rbd: sysfs write failed", "rbd-map", Confidence::Hint),
        (
            "umount: /mnt: not mounted\ndocker: VolumeDriver.Mount: exit status 32",
            "not-mounted",
            Confidence::Hint,
        ),
        ("modprobe: FATAL: Module ip_tables not found in directory /lib", "module-missing", Confidence::Hint),
        ("modprobe: FATAL: Module nbd not found in directory /lib", "module-missing", Confidence::Cause),
        ("mount: wrong fs type, bad option, bad superblock on /dev/sdb", "no-helper", Confidence::Hint),
        ("mount error 5 = Input/output error", "ceph-silent", Confidence::Hint),
        ("fuse: failed to open /dev/fuse: Permission denied", "fuse-missing", Confidence::Hint),
        (
            "OCI runtime create failed: exec: \"bash\": executable file not found in $PATH",
            "program-missing",
            Confidence::Hint,
        ),
        ("panic: invalid memory address or nil pointer dereference", "panic", Confidence::Hint),
    ] {
        let explained = explain(text).unwrap();
        assert_eq!((explained.known_error.id, explained.confidence), (id, confidence), "{text}");
    }
}

#[test]
fn aligned_columns_are_read_like_others() {
    let text = "The filesystem is already 5696 (4k) blocks long.  Nothing to do!";
    assert_eq!(explain(text).map(|it| it.known_error.id), Some("not-grown"));
}

/// Words in another line are about another subject.
#[test]
fn a_sign_stands_in_one_line() {
    assert_eq!(explain("umount: /mnt\nit is not mounted").map(|it| it.known_error.id), None);
    assert_eq!(explain("nfs\nerrno 2 of something").map(|it| it.known_error.id), None);
}

#[test]
fn what_kubelet_did_is_said_and_no_argument_is_repeated() {
    let (text, _) = TEXTS.iter().find(|(text, _)| text.contains("aHVudGVyMg==")).unwrap();
    let explained = explain(text).unwrap();
    assert!(!format!("{explained:?}").contains("aHVu"), "{explained:?}");
    let text =
        r#"MountVolume.SetUp failed for volume "data" : mount command failed, status: Failure, reason: x"#;
    let did = explain(text).unwrap().did;
    assert_eq!(
        did,
        [
            "wanted to mount it into the pod for volume \"data\"",
            "called the driver with \"mount\", which answered \"Failure\""
        ]
    );
    let hostile = "MountVolume.SetUp failed for volume \"a\u{1b}[2Jb\" : unexpected end of JSON input";
    assert!(explain(hostile).unwrap().did.iter().all(|line| !line.contains('\u{1b}')));
}

#[test]
fn the_verb_that_failed_is_the_one_to_call_by_hand() {
    let called = [
        (
            r#"MountVolume.SetUp failed for volume "v" : unexpected end of JSON input"#,
            "mount /mnt -o KEY=VALUE",
        ),
        (
            r#"UnmountVolume.TearDown failed for volume "v" : unmount command failed, status: Failure, reason: "#,
            "unmount /mnt",
        ),
        (
            r#"Failed to unmarshal output for command: waitforattach, output: "x", error: invalid character 'x' looking for beginning of value"#,
            "waitforattach DEVICE -o KEY=VALUE",
        ),
        (
            r#"driver call failed: executable: /p/v~d/d, args: [unmount /t], error: exit status 1, output: "x""#,
            "unmount /mnt",
        ),
        (
            r"error creating Flexvolume plugin from directory v~d, skipping. Error: unexpected end of JSON input",
            "init",
        ),
        ("unexpected end of JSON input", "init"),
    ];
    for (text, words) in called {
        assert_eq!(
            explain(text).unwrap().next(),
            format!("sudo flexvol call VENDOR/DRIVER {words}"),
            "{text}"
        );
    }
    assert_eq!(explain(JQ_IS_MISSING).unwrap().next(), "sudo flexvol doctor");
}

/// A hint in a message of our drivers is recognised there.
#[test]
fn a_message_with_a_hint_is_explained_by_the_same_lesson() {
    for (file_system, number) in [("cifs", 13), ("nfs4", 13), ("nfs", 2), ("ceph", 113), ("cifs", 112)] {
        let known_error = of_share(file_system, number).unwrap();
        let text = format!("nas:/b: mount it on /a: (os error {number}): {}", known_error.hint());
        assert_eq!(explain(&text).unwrap().known_error.hint(), known_error.hint(), "{text}");
        assert_eq!(of_helper(&text), None, "it says so already");
    }
}

#[test]
fn the_table_is_sound() {
    let mut ids = BTreeSet::new();
    for known_error in known_errors::all().chain([&known_errors::SAID, &known_errors::WORDLESS]) {
        assert!(ids.insert(known_error.id), "{} twice", known_error.id);
        for text in [known_error.cause, known_error.fix] {
            assert!(!text.ends_with('.') && !text.contains('\n') && text.len() < 300, "{text}");
        }
        assert!(known_error.hint().len() <= 512, "{} leaves a message no room", known_error.id);
        match known_error.sign {
            Sign::Kubelet(patterns) | Sign::Words(patterns) => {
                assert!(patterns.iter().all(|it| *it == it.to_lowercase()), "{}", known_error.id);
            }
            Sign::Number(shares, numbers) => assert!(!shares.is_empty() && !numbers.is_empty()),
        }
    }
}

#[test]
fn the_same_number_means_something_else_to_another_share() {
    let cause = |kind: &str| of_share(kind, 13).map(|known_error| known_error.cause);
    assert_eq!(cause("cifs"), Some("the server refuses user and password"));
    assert_eq!(cause("nfs"), Some("the server does not export it to this node"));
    assert_eq!(cause("tmpfs"), None);
    assert_eq!(of_share("cifs", 1), None);
}

#[test]
fn a_pattern_s_pieces_stand_in_order() {
    assert!(holds("fork/exec /x: permission denied", "fork/exec…permission denied"));
    assert!(!holds("permission denied by fork/exec", "fork/exec…permission denied"));
    assert_eq!(number_in("mount error(13): x"), Some(13));
    assert_eq!(number_in("x (os error 28)"), Some(28));
    assert_eq!(number_in("mount error 5 = input"), Some(5));
    assert_eq!(number_in("error"), None);
}
