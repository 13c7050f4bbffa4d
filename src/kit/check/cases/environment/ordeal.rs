//! Life cycle of a volume while something is odd about the process that kubelet starts, or about
//! the node.

use crate::check::answer::Answer;
use crate::check::evidence::{Played, Stopped, skip};
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::Call;

/// Requirement for a driver under odd conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// The driver must work as usual.
    Works,
    /// The driver must answer: a failure with a reason is as good.
    Answers,
}

/// Calls `init`, `mount` and `unmount`, the last two only if a volume can be mounted.
/// Undoes at the end what `impose` does to the subject, and drops what it returns. `words` describe
/// the odd condition, as the beginning of a sentence.
///
/// A driver that usually prints noise may do so here too; any other driver must not begin to.
pub(super) fn endure<T>(
    subject: &mut Subject<'_>,
    words: &str,
    demand: Demand,
    impose: impl FnOnce(&mut Subject<'_>) -> Result<T, Stopped>,
) -> Played {
    works_otherwise(subject)?;
    let has_volume = subject.facts.mounts && subject.is_contained();
    let volume = has_volume.then(|| subject.volume()).transpose()?;
    if let Some(volume) = &volume {
        subject.stage(volume)?;
    }
    let ordeal = Ordeal { words, demand };
    let usual = (subject.terms.clone(), subject.executable.clone());
    subject.excused = true;
    let played = impose(subject).and_then(|imposed| {
        let played = ordeal.play(subject, volume.as_ref());
        drop(imposed);
        played
    });
    subject.excused = false;
    (subject.terms, subject.executable) = usual;
    played?;
    volume.map_or(Ok(()), |volume| finish(subject, &volume))
}

/// Blocks the case if `init` never works: a failure would show nothing new.
pub(super) fn works_otherwise(subject: &mut Subject<'_>) -> Played {
    if !subject.facts.loads {
        subject.call(&Call::Init).or_blocked("init::works")?;
    }
    Ok(())
}

struct Ordeal<'a> {
    words: &'a str,
    demand: Demand,
}

impl Ordeal<'_> {
    fn play(&self, subject: &mut Subject<'_>, volume: Option<&PodVolume>) -> Played {
        let init = subject.call(&Call::Init);
        self.judge(subject, init)?;
        let Some(volume) = volume else { return Ok(()) };
        let mount = subject.mount(volume)?;
        let mount = self.judge(subject, mount)?;
        match (mount.is_success(), subject.layers(volume)?) {
            (true, 0) => return Err(self.fails(&mount, "mount says Success and mounts nothing")),
            (false, 0) => return Ok(()),
            (false, _) => {
                return Err(self.fails(&mount, "mount fails and leaves the directory mounted"));
            }
            (true, _) => {}
        }
        let unmount = subject.unmount(volume)?;
        let unmount = self.judge(subject, unmount)?;
        if unmount.is_success() && subject.layers(volume)? > 0 {
            return Err(self.fails(&unmount, "unmount says Success and the directory is still mounted"));
        }
        Ok(())
    }

    fn judge(&self, subject: &Subject<'_>, answer: Answer) -> Result<Answer, Stopped> {
        let readable = !subject.facts.clean || answer.is_readable();
        let right = answer.is_success() || self.demand == Demand::Answers && answer.is_failure();
        match (right, readable) {
            (true, true) => Ok(answer),
            (false, _) => Err(self.fails(&answer, &answer.shown())),
            (true, false) => {
                Err(self.fails(&answer, &format!("kubelet cannot read it: {}", answer.reading())))
            }
        }
    }

    fn fails(&self, answer: &Answer, what: &str) -> Stopped {
        let wanted = match self.demand {
            Demand::Works => "must work as ever",
            Demand::Answers => "must work or say why not",
        };
        answer.fails(format!("{}, {} {wanted}, but {what}", self.words, answer.asked.verb()))
    }
}

/// Unmounts a volume that could not be unmounted before.
fn finish(subject: &mut Subject<'_>, volume: &PodVolume) -> Played {
    if subject.layers(volume)? > 0 {
        let again = subject.unmount(volume)?;
        if !again.is_success() || subject.layers(volume)? > 0 {
            return Err(again.fails("an unmount that failed must succeed once what hindered it is gone"));
        }
    }
    let last = subject.answers().last().cloned();
    last.map_or(Ok(()), |last| subject.put_away(volume, &last))
}

/// Skips the case if nothing can be mounted for the driver.
pub(super) fn needs_sandbox(subject: &Subject<'_>) -> Played {
    if subject.is_contained() {
        return Ok(());
    }
    skip("needs root, or a user namespace, for mounts")
}
