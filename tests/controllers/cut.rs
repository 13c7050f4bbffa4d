//! Work that is cut short at every request to the API server and at every call of the driver,
//! before it arrives and before its answer does: the process is killed there, or the connection
//! breaks.

use super::pace::deadline;
use super::proxy::{Cut, Way};
use super::subject::Subject;
use super::trust_lines::append;

/// Point at which work is cut short, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    at: At,
    way: Way,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Request(Cut),
    Call(Cut),
}

impl Short {
    /// From now on.
    pub(crate) fn begin(self, subject: &Subject) {
        match self.at {
            At::Request(cut) => subject.proxy.cut_so(Some(cut), self.way),
            At::Call(cut) => subject.driver.cut(Some((cut, self.way))),
        }
    }

    /// Until it is as it should be, whatever is cut short; whether something was.
    pub(crate) async fn wait(self, subject: &mut Subject, until: impl AsyncFn(&Subject)) -> bool {
        let cut = tokio::select! {
            biased;
            () = reached(subject) => true,
            () = until(subject) => false,
        };
        if cut && self.way == Way::Killed {
            subject.kill().await;
            subject.begin();
        }
        if cut {
            until(subject).await;
        }
        cut
    }

    /// All is as it should be: nothing works any more. Whether something was cut short, if not
    /// before, at last.
    pub(crate) async fn end(self, subject: &mut Subject, came: bool) -> bool {
        // The answer to the last request follows what it has changed.
        let came = came || tokio::time::timeout(deadline(1), reached(subject)).await.is_ok();
        subject.kill().await;
        subject.proxy.cut(None);
        subject.driver.cut(None);
        came
    }
}

async fn reached(subject: &Subject) {
    tokio::select! {
        () = subject.proxy.reached() => {}
        () = subject.driver.reached() => {}
    }
}

/// Cuts work short at every point; returns the number of points: killed at requests and at calls,
/// then lost at both. `play` does the whole work, with a number of its own, and returns false if
/// the point was never reached.
pub(crate) async fn points(
    subject: &mut Subject,
    work: &str,
    mut play: impl AsyncFnMut(&mut Subject, usize, Short) -> bool,
) -> [usize; 4] {
    let ways = [Way::Killed, Way::Lost].into_iter();
    let ats: [fn(Cut) -> At; 2] = [At::Request, At::Call];
    let (mut points, mut plays) = ([0; 4], 0);
    for (points, (way, at)) in points.iter_mut().zip(ways.flat_map(|way| ats.map(|at| (way, at)))) {
        for number in 1.. {
            let before = play(subject, plays, Short { at: at(Cut::Before(number)), way }).await;
            let after = play(subject, plays + 1, Short { at: at(Cut::After(number)), way }).await;
            plays += 2;
            assert_eq!(before, after, "{number}");
            if !before {
                break;
            }
            *points += 2;
        }
    }
    tell(work, points);
    points
}

/// A line for docs/trust.md of each kind of points.
fn tell(work: &str, points: [usize; 4]) {
    let kinds = ["killed-at-request", "killed-at-call", "lost-at-request", "lost-at-call"];
    let line = |(kind, points)| {
        format!("TRUST controller {work} {kind} points={points} tried={points} failures=0 seed=- form=soak\n")
    };
    let lines: String = kinds.iter().zip(points).map(line).collect();
    print!("{lines}");
    append(&lines);
}
