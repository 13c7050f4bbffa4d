//! Unmount of a volume whose serving process does not serve any more.

use crate::check::evidence::{Played, Stopped, skip};
use crate::check::in_time::Deadline;
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::ordered::filled;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

/// Deadline for a process to be gone, or stopped, after the signal.
const MOMENT: Duration = Duration::from_millis(500);

/// Brings the volume into a pod. Also returns the processes that serve it.
fn served(subject: &mut Subject<'_>) -> Result<(PodVolume, Vec<Pid>), Stopped> {
    let volume = subject.volume()?;
    let before: BTreeSet<_> = pids(subject)?;
    subject.bring_up(&volume)?;
    let servers: Vec<_> = pids(subject)?.difference(&before).copied().collect();
    if servers.is_empty() {
        return skip("no process of the driver serves a mount");
    }
    Ok((volume, servers.into_iter().filter_map(Pid::from_raw).collect()))
}

fn pids(subject: &Subject<'_>) -> Result<BTreeSet<i32>, Stopped> {
    Ok(filled(subject.inside.processes()?.into_iter().map(|(pid, _)| pid)))
}

/// Sends a signal to the servers, some of which may be gone already.
fn tell(servers: &[Pid], signal: Signal) {
    for server in servers {
        let _ = kill_process(*server, signal);
    }
}

pub(super) fn dead(subject: &mut Subject<'_>) -> Played {
    let (volume, servers) = served(subject)?;
    tell(&servers, Signal::KILL);
    let mut end = Deadline::new(MOMENT);
    while servers
        .iter()
        .any(|server| pids(subject).is_ok_and(|pids| pids.contains(&server.as_raw_nonzero().get())))
        && !end.is_over()
    {
        sleep(Duration::from_millis(1));
    }
    let answer = subject.unmount(&volume)?.succeeds("the process that serves the mount was killed")?;
    if subject.layers(&volume)? > 0 {
        return Err(answer.fails(
            "the process that serves the mount was killed; it said Success, and it is still mounted",
        ));
    }
    subject.put_away(&volume, &answer)
}

pub(super) fn hung(subject: &mut Subject<'_>) -> Played {
    let (volume, servers) = served(subject)?;
    tell(&servers, Signal::STOP);
    let answer = subject.unmount(&volume)?;
    if answer.was_stopped() {
        tell(&servers, Signal::KILL);
        return Err(
            answer.fails("the process that serves the mount does not answer, and unmount does not end")
        );
    }
    if answer.is_success() && subject.layers(&volume)? > 0 {
        tell(&servers, Signal::KILL);
        return Err(answer.fails(
            "the process that serves the mount does not answer; it said Success, and it is still mounted",
        ));
    }
    // After a Failure, `unmount` is called again as soon as the server answers.
    tell(&servers, Signal::CONT);
    let answer = subject.unmount(&volume)?.succeeds("the process that serves the mount answers again")?;
    if subject.layers(&volume)? > 0 {
        return Err(answer.fails(
            "the process that serves the mount answers again; it said Success, and it is still mounted",
        ));
    }
    subject.put_away(&volume, &answer)
}
