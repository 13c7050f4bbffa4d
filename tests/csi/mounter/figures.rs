//! What it costs to run a program in a mount pod, over running it on the node; see
//! [`figures`](super::super::figures) for the command.

use super::{Container, NAME, World};
use flexvol_linux::net::daemon_socket::Conversation;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::{HostRunner, Invocation, Runner as _};
use flexvol_model::mounter::Order;
use std::time::{Duration, Instant};

const ROUNDS: usize = 301;

/// Issue: through the mount container's own socket at most 3 ms.
const LIMIT: Duration = Duration::from_millis(3);

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "figures"]
fn overhead_of_a_program_in_a_mount_pod() {
    let Some(world) = World::new("mounter::figures::overhead_of_a_program_in_a_mount_pod") else { return };
    let _pod = Container::start(&world, "one").registers(&world, "one");
    let socket = world.registration().with_file_name(format!("{NAME}.sock"));
    let order = Order { program: "true".to_owned(), within: 10_000, ..Order::default() };
    let request = format!(r#"{{"v":1,"method":"exec","pod":"one","params":{}}}"#, order.into_json());
    let until = || Deadline::after(Duration::from_secs(10));
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        here.push(timed(|| {
            assert!(HostRunner.run(Invocation::of("true"), &until()).unwrap().status.success());
        }));
        there.push(timed(|| {
            let answer = Conversation::begin(&socket, &until()).unwrap().ask(&request, &until()).unwrap();
            assert!(answer.starts_with(b"{\"ok\":"), "{}", String::from_utf8_lossy(&answer));
        }));
    }
    let (here, there) = (median(here), median(there));
    let over = there.saturating_sub(here);
    println!("in a mount pod {there:?}, on the node {here:?}, overhead {over:?} (medians of {ROUNDS})");
    assert!(over <= LIMIT, "{over:?}");
}
