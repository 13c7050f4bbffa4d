//! A node for one test: a mount namespace, a plugin directory, `flexvold` at work on it.

use super::pace::deadline;
use super::{namespace, skip};
use flexvol_cluster::csi::sockets::connect;
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::controller_client::ControllerClient;
use flexvol_cluster::wire::csi::identity_client::IdentityClient;
use flexvol_cluster::wire::csi::node_client::NodeClient;
use flexvol_cluster::wire::csi::volume_capability::access_mode::Mode;
use flexvol_cluster::wire::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// No test waits longer for anything.
pub(crate) fn patience() -> Duration {
    deadline(60)
}

/// What every script begins with.
const PRELUDE: &str = r#"#!/bin/sh
here=${0%/*}
echo "$*" >> "$here/log"
ok() { printf '{"status":"Success"%s}' "$1"; exit 0; }
no() { printf '{"status":"Not supported"}'; exit 1; }
fail() { printf '{"status":"Failure","message":"%s"}' "$1"; exit 1; }
is_mounted() { grep -q " $1 " /proc/self/mountinfo; }
"#;

/// A driver in shell that mounts a tmpfs, as strict as the careful ones are.
pub(crate) const STRICT: &str = r#"case $1 in
init) ok ',"capabilities":{"attach":false}';;
mount) is_mounted "$2" && fail "already mounted"; mount -t tmpfs strict "$2" || fail "mount"; ok;;
unmount) is_mounted "$2" || fail "not mounted"; umount "$2" || fail "umount"; ok;;
*) no;;
esac"#;

/// Stands for a directory of the test's in scripts, side files and parameters.
pub(crate) const IMAGES: &str = "/images-of-the-test";

/// A driver of the test's.
pub(crate) enum Driver<'a> {
    /// What follows the prelude.
    Script(&'a str),
    /// A script as it is.
    Whole(&'a str),
    /// One of ours, with its side file.
    Ours(&'a str),
}

/// Everything of one test; what is mounted goes with the thread.
pub(crate) struct Node {
    pub(crate) home: TempDir,
    pub(crate) name: &'static str,
    runtime: Runtime,
    server: Option<Child>,
    extra: Vec<String>,
}

impl Node {
    /// `None`, and SKIP is said, where a test cannot mount.
    pub(crate) fn new(test: &str, name: &'static str, driver: &Driver<'_>) -> Option<Self> {
        if !namespace::enter(test) {
            return None;
        }
        let mut home = tempfile::tempdir().unwrap();
        home.disable_cleanup(std::env::var_os("KEEP").is_some());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let node = Self { home, name, runtime, server: None, extra: Vec::new() };
        fs::create_dir_all(node.driver().parent().unwrap()).unwrap();
        match driver {
            Driver::Script(body) => node.write_driver(body),
            Driver::Whole(script) => write_executable(&node.driver(), &node.at_home(script)),
            Driver::Ours(side_file) => {
                let Some(program) = flexvol() else {
                    skip(test, "flexvol is not built");
                    return None;
                };
                let side_file = node.at_home(side_file);
                fs::write(node.driver().with_file_name(".flexvol.json"), side_file).unwrap();
                std::os::unix::fs::symlink(program, node.driver()).unwrap();
            }
        }
        fs::create_dir_all(node.kubelet().join("plugins_registry")).unwrap();
        Some(node)
    }

    /// A node whose driver is served.
    pub(crate) fn serving(test: &str, name: &'static str, driver: &Driver<'_>) -> Option<Self> {
        let mut node = Self::new(test, name, driver)?;
        node.start(&[]);
        Some(node)
    }

    /// A text with [`IMAGES`] in it as it is on this node.
    pub(crate) fn at_home(&self, text: &str) -> String {
        text.replace(IMAGES, self.home.path().join("images").to_str().unwrap())
    }

    pub(crate) fn driver(&self) -> PathBuf {
        let (_, file) = self.name.split_once('/').unwrap();
        self.home.path().join("plugins").join(self.name.replace('/', "~")).join(file)
    }

    /// Replaces the driver. Another process writes it: a child that another test forks just then
    /// would hold it open, and it could not be executed.
    pub(crate) fn write_driver(&self, body: &str) {
        write_executable(&self.driver(), &format!("{PRELUDE}{body}\n"));
    }

    /// The calls of a script so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.driver().with_file_name("log")).unwrap_or_default()
    }

    /// How often a verb was called.
    pub(crate) fn called(&self, verb: &str) -> usize {
        self.log().lines().filter(|line| line.split(' ').next() == Some(verb)).count()
    }

    pub(crate) fn kubelet(&self) -> PathBuf {
        self.home.path().join("kubelet")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.home.path().join("csi.sock")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    /// What the server has said, a line of JSON each.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.home.path().join("said")).unwrap_or_default()
    }

    /// The words that begin to serve.
    pub(crate) fn command(&self, extra: &[&str]) -> Command {
        let mut command = Command::new(flexvold());
        command.args(["csi", "--driver", self.name, "--node-id", "node-1", "--plugin-dir"]);
        command.arg(self.home.path().join("plugins")).arg("--state").arg(self.state());
        command.arg("--kubelet-root").arg(self.kubelet());
        command.arg("--endpoint").arg(format!("unix://{}", self.socket().display()));
        command.args(extra).stdin(Stdio::null());
        command
    }

    /// Starts the server, which stays as it is started until [`restart`](Self::restart).
    pub(crate) fn start(&mut self, extra: &[&str]) {
        self.extra = extra.iter().map(|&word| word.to_owned()).collect();
        let said = fs::File::options().create(true).append(true).open(self.home.path().join("said")).unwrap();
        let server = self.command(extra).stderr(said).spawn().unwrap();
        self.server = Some(server);
        let start = Instant::now();
        // The socket of one that was killed may be open a moment longer, in a child of it.
        while !self.is_served() {
            assert!(start.elapsed() < patience(), "not served: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_served(&self) -> bool {
        self.runtime.block_on(async {
            let Ok(channel) = connect(&self.socket()).await else { return false };
            IdentityClient::new(channel).get_plugin_info(csi::GetPluginInfoRequest {}).await.is_ok()
        })
    }

    /// Ends the server as a power cut would.
    pub(crate) fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        let _ = server.kill();
        server.wait().unwrap();
    }

    /// Kills it and starts it again.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.restart_killed();
    }

    /// Starts it again as it was started.
    pub(crate) fn restart_killed(&mut self) {
        let extra = self.extra.clone();
        self.start(&extra.iter().map(String::as_str).collect::<Vec<_>>());
    }

    pub(crate) fn server(&self) -> &Child {
        self.server.as_ref().unwrap()
    }

    /// Waits for the end of a server that was told to end.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.server.take().unwrap().wait().unwrap()
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(patience() * 4, work).await.expect("no answer") })
    }

    pub(crate) async fn channel(&self) -> Channel {
        connect(&self.socket()).await.unwrap()
    }

    /// Calls the Node service.
    pub(crate) fn node<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(
        &self,
        call: impl FnOnce(NodeClient<Channel>) -> F,
    ) -> Result<T, Status> {
        self.block_on(async {
            call(NodeClient::new(self.channel().await)).await.map(tonic::Response::into_inner)
        })
    }

    /// Calls the Controller service.
    pub(crate) fn controller<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(
        &self,
        call: impl FnOnce(ControllerClient<Channel>) -> F,
    ) -> Result<T, Status> {
        self.block_on(async {
            call(ControllerClient::new(self.channel().await)).await.map(tonic::Response::into_inner)
        })
    }

    /// Calls the Identity service.
    pub(crate) fn identity<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(
        &self,
        call: impl FnOnce(IdentityClient<Channel>) -> F,
    ) -> Result<T, Status> {
        self.block_on(async {
            call(IdentityClient::new(self.channel().await)).await.map(tonic::Response::into_inner)
        })
    }

    /// Where a pod has a volume, as kubelet calls it; what is above it is made.
    pub(crate) fn target(&self, pod: &str) -> PathBuf {
        let volume = self.kubelet().join("pods").join(pod).join("volumes/kubernetes.io~csi/data");
        fs::create_dir_all(&volume).unwrap();
        volume.join("mount")
    }

    pub(crate) fn publish_request(&self, pod: &str) -> csi::NodePublishVolumeRequest {
        publish_at(&self.target(pod))
    }
}

/// A request for any pod.
pub(crate) fn publish_at(target: &Path) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: "fx1#pv-1".into(),
        target_path: target.to_string_lossy().into_owned(),
        volume_capability: Some(capability(Mode::MultiNodeMultiWriter, &[])),
        ..csi::NodePublishVolumeRequest::default()
    }
}

impl Node {
    /// Publishes for a pod, the request changed first.
    pub(crate) fn publish(
        &self,
        pod: &str,
        change: impl FnOnce(&mut csi::NodePublishVolumeRequest),
    ) -> Result<(), Status> {
        let mut request = self.publish_request(pod);
        change(&mut request);
        self.node(async move |mut node| node.node_publish_volume(request).await).map(drop)
    }

    /// Publishes, whatever becomes of the server meanwhile.
    pub(crate) fn try_publish(&self, pod: &str, allowed: Duration) -> Result<(), Status> {
        let request = within(self.publish_request(pod), allowed);
        self.block_on(async {
            let channel =
                connect(&self.socket()).await.map_err(|error| Status::unavailable(error.to_string()))?;
            NodeClient::new(channel).node_publish_volume(request).await.map(drop)
        })
    }

    pub(crate) fn unpublish(&self, pod: &str) -> Result<(), Status> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: "fx1#pv-1".into(),
            target_path: self.target(pod).to_string_lossy().into_owned(),
        };
        self.node(async move |mut node| node.node_unpublish_volume(request).await).map(drop)
    }

    pub(crate) fn stats(&self, pod: &str) -> Result<csi::NodeGetVolumeStatsResponse, Status> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: "fx1#pv-1".into(),
            volume_path: self.target(pod).to_string_lossy().into_owned(),
            ..csi::NodeGetVolumeStatsRequest::default()
        };
        self.node(async move |mut node| node.node_get_volume_stats(request).await)
    }

    /// Whether anything is mounted where the pod has its volume.
    pub(crate) fn is_mounted(&self, pod: &str) -> bool {
        !namespace::mounts_at(&self.target(pod)).is_empty()
    }

    /// Nothing is left of any volume: no mount, no directory, no line in the journal, no note.
    pub(crate) fn is_clean(&self) {
        for pod in ["1", "2"] {
            assert!(!self.is_mounted(pod) && !self.target(pod).exists(), "{}", self.said());
        }
        let state = fs::read_dir(self.state()).unwrap().next().unwrap().unwrap().path();
        let left: Vec<_> =
            fs::read_dir(state.join("volumes")).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(left.is_empty() && self.notes().is_empty(), "{left:?} {:?}", self.notes());
    }

    /// What the notes of running processes say; a file of them that begins with an empty line is
    /// kept for a later one.
    pub(crate) fn notes(&self) -> Vec<String> {
        let state = fs::read_dir(self.state()).unwrap().next().unwrap().unwrap().path();
        let files = fs::read_dir(state.join("running")).unwrap();
        let texts = files.filter_map(|file| fs::read_to_string(file.unwrap().path()).ok());
        let said = texts.filter(|text| !text.starts_with('\n') && !text.is_empty());
        // What follows the second line is of an earlier call.
        said.map(|text| text.lines().take(2).collect::<Vec<_>>().join("\n")).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

pub(crate) fn capability(mode: Mode, flags: &[&str]) -> csi::VolumeCapability {
    let mount_flags = flags.iter().map(|&flag| flag.to_owned()).collect();
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume { mount_flags, ..MountVolume::default() })),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

/// A request with a deadline of its own.
pub(crate) fn within<T>(request: T, allowed: Duration) -> Request<T> {
    let mut request = Request::new(request);
    request.set_timeout(allowed);
    request
}

pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Status>) -> Code {
    result.unwrap_err().code()
}

/// The program under test: a release where there is one.
pub(crate) fn flexvold() -> PathBuf {
    let release =
        std::env::var_os("FLEXVOL_RELEASE").map(|flexvol| Path::new(&flexvol).with_file_name("flexvold"));
    release.filter(|path| path.exists()).unwrap_or_else(|| env!("CARGO_BIN_EXE_flexvold").into())
}

/// The program that has our drivers: a release where there is one, else what is built beside
/// `flexvold`.
pub(crate) fn flexvol() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_flexvold")).with_file_name("flexvol");
    let release = std::env::var_os("FLEXVOL_RELEASE").map(PathBuf::from);
    [release, Some(beside)].into_iter().flatten().find(|path| path.exists())
}

pub(crate) fn write_executable(path: &Path, text: &str) {
    let mut shell = Command::new("sh")
        .args(["-ec", "cat > \"$1.new\"; chmod 755 \"$1.new\"; mv \"$1.new\" \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

/// What a driver's reply says, empty for a success.
pub(crate) fn message(stdout: &[u8]) -> String {
    let reply: Value = serde_json::from_slice(stdout).unwrap();
    match reply["status"].as_str() {
        Some("Success") => String::new(),
        _ => reply["message"].as_str().unwrap().to_owned(),
    }
}

/// Makes a script of the test's that is no driver.
pub(crate) fn write_file(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Waits until it holds.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < patience(), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
