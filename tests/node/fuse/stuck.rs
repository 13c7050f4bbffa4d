//! A process of somebody's that unmaps a file of a mount whose server is silent: the kernel lets
//! nobody read its words and its environment, and whoever tries waits with it. Here, where
//! nobody else sees it: it holds up every look at all processes.

use crate::support::pace::slow_seconds;
use crate::support::{BINARY, Plugin, skip};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Makes a page of a file dirty and, once told to, unmaps it, while a second thread wants to map
/// another: no reader overtakes that one.
const STUCK: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
static void *later(void *nothing) {
    usleep(300000);
    mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return nothing;
}
int main(int argc, char **argv) {
    pthread_t thread;
    int file = open(argv[1], O_RDWR);
    char c, *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (argc != 2 || page == MAP_FAILED) return 1;
    page[0] = 1;
    write(1, "ready\n", 6);
    read(0, &c, 1);
    pthread_create(&thread, 0, later, 0);
    munmap(page, 4096);
    return 0;
}
"#;

/// In a directory, with the flexvol command, a driver, the longest that a look at a process takes
/// where it is not stuck, and the longest of a command. All of it ends with the first process of
/// its namespace.
const SCENE: &str = r#"
cd "$1" && exec 2>>noise
moment=$4 limit=$5
bounded() { local start=$EPOCHREALTIME; timeout -s KILL "$limit" "$@"; local status=$?
    echo "status $status after $(( (${EPOCHREALTIME/./} - ${start/./}) / 1000 )) ms"; }
target=$1/pods/1/volumes/example~share/v
mount -t tmpfs none /run && mkdir -p "$target" real mnt state
head -c 4096 /dev/zero >real/file
bindfs -f real mnt & daemon=$!
until mountpoint -q mnt; do sleep 0.05; done

setsid "$3" mount "$target" '{}' & call=$!
until [ -s begun ]; do sleep 0.05; done
mkfifo told
./stuck mnt/file <told >ready & stuck=$!
exec 9>told
until [ -s ready ]; do sleep 0.05; done
# What the call leaves, and a kubelet, come behind it.
touch go
until [ -s strayed ]; do sleep 0.05; done
bash -c 'exec -a kubelet bash -c "sleep 600; :" --volume-plugin-dir=/found-behind-it' &
until grep -q ^kubelet /proc/$!/cmdline; do sleep 0.05; done
kill -STOP $daemon
echo >&9
until ! timeout -s KILL "$moment" cat /proc/$stuck/cmdline >/dev/null; do sleep 0.1; done
kill -KILL -- -$call
echo "the scene is set"

bounded "$3" unmount "$target"
echo "left: $(cut -d' ' -f3 "/proc/$(<strayed)/stat" | grep -v Z)"
bounded "$2" --json locate
bounded "$2" install --plugin-dir "$1/plugins" --state-dir "$1/state" tmpfs
timeout -s KILL "$moment" cat /proc/$stuck/cmdline >/dev/null || echo "still stuck"
"#;

#[test]
fn nobody_waits_for_a_process_that_cannot_be_looked_at() {
    let name = "stuck::nobody_waits_for_a_process_that_cannot_be_looked_at";
    if !nix::unistd::geteuid().is_root()
        || !Path::new("/dev/fuse").exists()
        || !Path::new("/usr/bin/bindfs").exists()
    {
        return skip(name, "needs root, /dev/fuse and bindfs");
    }
    let plugin = Plugin::new("plugins/example~share", "share", None);
    let root = plugin.directory.path();
    let script =
        "cd $0; echo >begun; until [ -e go ]; do sleep 0.05; done; sleep 600 & echo $! >strayed; wait";
    let side_file = serde_json::json!({
        "driver": "exec",
        "exec": {"commands": {"mount": ["/bin/sh", "-c", script, root]}},
    });
    fs::write(plugin.executable.with_file_name(".flexvol.json"), side_file.to_string()).unwrap();
    fs::write(root.join("stuck.c"), STUCK).unwrap();
    let (source, program) = (root.join("stuck.c"), root.join("stuck"));
    let built = Command::new("cc").arg("-pthread").arg("-o").args([&program, &source]).status().unwrap();
    assert!(built.success());
    let output = Command::new("unshare")
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--",
            "bash",
            "-c",
            SCENE,
            "bash",
        ])
        .args([root, Path::new(BINARY), &plugin.executable])
        .args([slow_seconds(1), slow_seconds(60)].map(|seconds| seconds.to_string()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let took: Vec<u64> = said
        .lines()
        .filter_map(|line| line.strip_prefix("status 0 after ")?.strip_suffix(" ms")?.parse().ok())
        .collect();
    let longest = slow_seconds(30) * 1000;
    assert!(said.contains("the scene is set") && said.ends_with("still stuck\n"), "{said}");
    assert!(took.len() == 3 && took.iter().all(|took| *took < longest), "{said}");
    assert!(said.contains(r#""status":"Success""#) && said.contains("left: \n"), "{said}");
    assert!(said.contains("/found-behind-it") && said.contains("flexvol/tmpfs installed"), "{said}");
}
