//! Calls for one target at the same time.

use super::{Report, Rung, Volume, is_full, is_wanted};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How often each pair is played.
const ROUNDS: usize = 4;
const LONG_ROUNDS: usize = 500;

/// Two of the same call, and a call and its opposite, at the same moment; each answers well, and
/// the next calls work.
#[track_caller]
pub(crate) fn races(volume: &Volume<'_>) {
    if !is_wanted("race") {
        return;
    }
    let (last, first) = (volume.up.last().unwrap(), volume.down.first().unwrap());
    let down = || volume.raise(1);
    let up = || volume.raise(0);
    race(volume, "mount+mount", [last, last], &down, Some(true));
    race(volume, "mount+unmount", [last, first], &down, None);
    race(volume, "unmount+mount", [first, last], &up, None);
    race(volume, "unmount+unmount", [first, first], &up, Some(false));
}

/// `ends` says whether it must be up, if both have to succeed.
fn race(volume: &Volume<'_>, what: &str, pair: [&Rung<'_>; 2], before: &dyn Fn(), ends: Option<bool>) {
    let rounds = if is_full() { LONG_ROUNDS } else { ROUNDS };
    // Where each call logs in to a server.
    let rounds = if volume.programs { rounds } else { rounds.div_ceil(10) };
    let mut report = Report::begin("race", volume.name, what, rounds);
    let baseline = volume.baseline();
    for _ in 0..rounds {
        let round = || {
            before();
            let commands = pair.map(|rung| (rung.command)());
            let answers = std::thread::scope(|scope| {
                let speaks = volume.speaks;
                let calls = commands.map(|command| scope.spawn(move || speaks.call(command)));
                calls.map(|call| call.join().unwrap())
            });
            if let Some(up) = ends {
                for answer in answers {
                    answer.success();
                }
                if up {
                    (volume.intact)();
                }
            }
            volume.lives();
            (volume.fresh)();
            baseline.holds();
        };
        report.tried(
            catch_unwind(AssertUnwindSafe(round))
                .err()
                .map(|panic| panic.downcast::<String>().map_or_else(|_| "panicked".to_owned(), |text| *text)),
        );
    }
    report.end();
}
