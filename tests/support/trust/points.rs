//! Killed, or failing, at any system call.

use super::tracer::{Act, CAN_FAIL, FaultInjection, Played, Role, Victim, play};
use super::{
    Answer, Dice, Inventory, Report, Rung, Speaks, Volume, Whole, is_full, is_wanted, sample_of, seed,
};
use flexvol::protocol::DriverName;
use flexvol::settings::Settings;
use flexvol::side_file;
use flexvol::sys::fs::fingerprint::Fingerprint;
use nix::errno::Errno;
use nix::libc;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

const ERRORS: [Errno; 8] = [
    Errno::EIO,
    Errno::ENOSPC,
    Errno::EMFILE,
    Errno::ENOMEM,
    Errno::EBUSY,
    Errno::EINTR,
    Errno::EROFS,
    Errno::EPERM,
];

/// Those that no kernel lets fail so: about the process itself, or its end. And close(2), which has
/// closed whatever it says, and recvfrom(2), by which the standard library alone hears from a child
/// that it has just started.
const INFALLIBLE: [i64; 19] = [
    libc::SYS_recvfrom,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_set_tid_address,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_umask,
    libc::SYS_clock_gettime,
    // A sleep ends early by a signal and in no other way; the standard library relies on it.
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_munmap,
    libc::SYS_gettimeofday,
];

/// Without memory the process that answers cannot; kubelet calls again.
const MEMORY: [i64; 4] = [libc::SYS_mmap, libc::SYS_brk, libc::SYS_mprotect, libc::SYS_mremap];

/// Kills each call of the volume at its points, and goes on as kubelet does.
#[track_caller]
pub(crate) fn crash(volume: &Volume<'_>) {
    if !is_wanted("crash") {
        return;
    }
    for place in places(volume) {
        let (baseline, calls) = place.count(volume.programs);
        let strikes = crash_strikes(&calls, volume.whole);
        place.strike_all("crash", &baseline, strikes);
    }
}

/// Lets each system call of each call of the volume fail.
#[track_caller]
pub(crate) fn faults(volume: &Volume<'_>) {
    if !is_wanted("fault") {
        return;
    }
    if !CAN_FAIL {
        return println!("SKIP faults::{}: only on x86_64 is known how", volume.name);
    }
    for place in places(volume) {
        let (baseline, calls) = place.count(false);
        let strikes = fault_strikes(&calls, volume.whole);
        place.strike_all("fault", &baseline, strikes);
    }
}

/// One call of a volume: the rung `index` on the way up, or down.
struct Place<'a> {
    volume: &'a Volume<'a>,
    index: usize,
    up: bool,
}

fn places<'a>(volume: &'a Volume<'a>) -> impl Iterator<Item = Place<'a>> {
    let up = (0..volume.up.len()).map(move |index| Place { volume, index, up: true });
    up.chain((0..volume.down.len()).map(move |index| Place { volume, index, up: false }))
}

impl Place<'_> {
    fn rung(&self) -> &Rung<'_> {
        if self.up { &self.volume.up[self.index] } else { &self.volume.down[self.index] }
    }

    /// Brings about the state before the call.
    #[track_caller]
    fn prepare(&self) {
        let volume = self.volume;
        (volume.fresh)();
        if self.up {
            volume.raise(volume.up.len() - self.index);
        } else {
            volume.raise(0);
            volume.lower(volume.down.len() - self.index);
        }
    }

    /// What there is without the volume, and what system calls the call makes.
    #[track_caller]
    fn count(&self, programs: bool) -> (Inventory, BTreeMap<Role, Vec<i64>>) {
        let baseline = self.volume.baseline();
        self.prepare();
        let played = play((self.rung().command)(), None, programs, self.both());
        self.read(&played).unwrap().success();
        self.volume.lives();
        (self.volume.fresh)();
        baseline.holds();
        (baseline, played.calls)
    }

    fn both(&self) -> bool {
        self.volume.speaks == Speaks::Kubelet
    }

    fn read(&self, played: &Played) -> Result<Answer, String> {
        self.volume.speaks.read(&played.output, Duration::ZERO)
    }

    #[track_caller]
    fn strike_all(&self, kind: &str, baseline: &Inventory, strikes: Vec<FaultInjection>) {
        let (volume, verb) = (self.volume, self.rung().verb);
        let mut report = Report::begin(kind, volume.name, verb, strikes.len());
        let mut dice = Dice::of(&format!("{kind} {} {verb}", volume.name));
        let strikes = if is_full() { strikes } else { sample(strikes, sample_of(volume.sample), &mut dice) };
        for (turn, strike) in strikes.into_iter().enumerate() {
            let tried = catch_unwind(AssertUnwindSafe(|| self.try_one(strike, baseline, turn % 2 == 0)));
            let why = tried.err().map(|panic| {
                let text = panic.downcast::<String>().map_or_else(|_| String::new(), |text| *text);
                format!("{strike:?}: {text}")
            });
            let failed = why.is_some();
            report.tried(why);
            // What one has left must not be taken for the next one's.
            if failed && catch_unwind(AssertUnwindSafe(|| self.recover(baseline))).is_err() {
                break;
            }
        }
        report.end();
    }

    fn recover(&self, baseline: &Inventory) {
        self.volume.lower(0);
        (self.volume.fresh)();
        baseline.holds();
    }

    fn try_one(&self, strike: FaultInjection, baseline: &Inventory, lower_first: bool) {
        self.prepare();
        // Who was killed leaves half an image, and the next call goes on with it. Who gets no
        // memory is.
        let killed =
            matches!(strike.act, Act::Kill(_)) || strike.number.is_some_and(|call| MEMORY.contains(&call));
        let before = if killed { Inventory::take(&[]) } else { self.volume.inventory() };
        let programs = strike.role == Role::Program;
        let played = play((self.rung().command)(), Some(strike), programs, self.both());
        (self.volume.always)();
        let succeeded = self.judge(strike, &played, &before);
        // A volume that is there and has lost its daemon is dead: kubelet asks nothing of it but to
        // go.
        let dead = succeeded && strike.act == Act::Kill(Victim::Program);
        if lower_first || dead {
            self.volume.lower(0);
            (self.volume.fresh)();
            // With what is there an installer asks a driver who it is; the next one removes it.
            baseline.holds_but(|change| change.contains("/run/flexvol/check/"));
        }
        self.volume.lives();
        (self.volume.fresh)();
        baseline.holds();
    }

    /// The file of a lock that nobody holds goes with the next call: only who has it locked may
    /// remove it. So does what is noted of an mkfs that did not come to its end, and how far a
    /// device was found blank, which the volume's unmount removes. And an installer's driver is the
    /// old or the new one, whole; or the new one and beside it, under a hidden name, the side file
    /// without which it would be nobody's.
    fn may_stay(&self, change: &str) -> bool {
        ["/run/flexvol/locks/", "/run/flexvol/unfinished", "/run/flexvol/blank"]
            .iter()
            .any(|place| change.contains(place))
            || (self.volume.speaks == Speaks::Admin
                && (!change.contains("/.flexvol-") || is_witness(change.trim_start_matches("file "))))
    }

    /// Whoever could still answer has answered, and of a call that failed on the way up nothing
    /// stays. Whether it succeeded.
    fn judge(&self, strike: FaultInjection, played: &Played, before: &Inventory) -> bool {
        let dumb = match strike.act {
            Act::Kill(Victim::Both | Victim::Supervisor) => true,
            // There is but one way to say anything.
            Act::Fail(_) => {
                strike.role == Role::Supervisor
                    && played.output.is_empty()
                    && strike.number == Some(libc::SYS_write)
            }
            Act::Kill(_) => self.volume.speaks == Speaks::Admin && played.struck,
        };
        if dumb {
            return false;
        }
        let answer = self.read(played).unwrap_or_else(|error| panic!("{error}"));
        if answer.status == "Failure" {
            assert!(names_step(&answer.message), "no step in {:?}", answer.message);
            // What has grown stays so.
            if self.up && self.rung().verb != "expandfs" && !answer.message.contains("the driver's worker") {
                before.holds_but(|change| self.may_stay(change));
            }
        }
        answer.status == "Success"
    }
}

/// So many by the dice, and as many of the call itself as of the programs it runs: an image's maker
/// makes thousands of system calls, and the driver hundreds.
fn sample(strikes: Vec<FaultInjection>, count: usize, dice: &mut Dice) -> Vec<FaultInjection> {
    let (of_programs, mut own): (Vec<_>, Vec<_>) =
        strikes.into_iter().partition(|strike| strike.role == Role::Program);
    own.extend(dice.choose(of_programs, own.len()));
    dice.choose(own, count)
}

/// Whether a file says what the executable beside it is, which no other one does.
fn is_witness(path: &str) -> bool {
    let hash = |path: &Path| Some(Fingerprint::of(File::open(path).ok()?).ok()?.hash);
    let told = |path: &Path| side_file::parse(&fs::read_to_string(path).ok()?).ok()?.hash;
    let path = Path::new(path);
    let home = path.parent().unwrap();
    let executable = DriverName::executable_in(home.file_name().unwrap());
    let there = hash(&home.join(executable));
    there.is_some() && there == told(path) && there != told(&home.join(".flexvol.json"))
}

/// More than what the kernel calls the error.
fn names_step(message: &str) -> bool {
    let plain = message.split(" (os error").next().unwrap_or_default();
    message.contains(": ") || plain.split(' ').count() > 5
}

/// Each point with each victim that makes a difference there.
fn crash_strikes(calls: &BTreeMap<Role, Vec<i64>>, whole: Whole) -> Vec<FaultInjection> {
    let victims = |role| match role {
        Role::Supervisor => vec![Victim::Supervisor, Victim::Both],
        Role::Program => vec![Victim::Worker, Victim::Both, Victim::Supervisor, Victim::Program],
        _ => vec![Victim::Worker, Victim::Both, Victim::Supervisor],
    };
    let acts = |role| victims(role).into_iter().map(Act::Kill).collect();
    strikes(calls, whole, acts, |_, _, _| true)
}

fn fault_strikes(calls: &BTreeMap<Role, Vec<i64>>, whole: Whole) -> Vec<FaultInjection> {
    let acts = |_| ERRORS.map(Act::Fail).into_iter().collect();
    // What comes before is the C library's, which starts the program.
    let own = calls
        .get(&Role::Supervisor)
        .and_then(|calls| calls.iter().position(|call| [libc::SYS_dup3, libc::SYS_fcntl].contains(call)));
    strikes(calls, whole, acts, |role, point, number| {
        let memory = role == Role::Supervisor && MEMORY.contains(&number);
        !INFALLIBLE.contains(&number)
            && !memory
            && (role != Role::Supervisor || own.is_some_and(|own| point > own))
    })
}

fn strikes(
    calls: &BTreeMap<Role, Vec<i64>>,
    whole: Whole,
    acts: impl Fn(Role) -> Vec<Act>,
    wanted: impl Fn(Role, usize, i64) -> bool,
) -> Vec<FaultInjection> {
    let mut strikes = Vec::new();
    let first = usize::try_from(seed()).unwrap();
    for (role, numbers) in calls.iter().filter(|(role, _)| **role != Role::Cleaner) {
        for (index, number) in numbers.iter().enumerate() {
            let acts = acts(*role);
            let once = first.wrapping_add(index) % acts.len();
            let acts = acts.into_iter().enumerate().filter(|(turn, _)| whole == Whole::All || *turn == once);
            if wanted(*role, index, *number) {
                let number = Some(*number);
                strikes.extend(acts.map(|(_, act)| FaultInjection {
                    role: *role,
                    point: index + 1,
                    act,
                    number,
                }));
            }
        }
    }
    strikes
}
