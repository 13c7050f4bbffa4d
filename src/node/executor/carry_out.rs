//! Execution of every plan: look (is the goal reached already, or is the target in use by something
//! else?), perform each step, look again. If anything fails, undo the performed steps in reverse
//! order and report what could not be undone.
//!
//! `dispatch` defines what a step means on a real node; the tests here use their own [`Node`] and
//! let any step fail.

use crate::hints::to_failure;
use anyhow::Result;
use flexvol_linux::errno::is_bare;
use flexvol_model::plan::{Goal, Plan, Step};
use flexvol_protocol::failure::{Code, Failure};
use std::fmt::Display;

/// State of the node relative to a goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// Reached: there is nothing to do.
    Reached,
    /// Not reached, and nothing is in the way.
    Open,
    /// The target is in use; by what, and what to do about it.
    Conflict(String),
}

/// Node on which plans are carried out.
pub trait Node {
    /// Undo of a performed step; its text names what is left if the undo fails.
    type Undo: Display;

    /// Returns the state of the node. Never asks a server that may be dead.
    fn look(&mut self, goal: &Goal) -> Result<TargetState>;

    /// Performs one step, which may have been performed before. Returns its undo if it changed
    /// anything. A step that fails leaves nothing behind.
    fn perform(&mut self, step: &Step) -> Result<Option<Self::Undo>>;

    /// Fails unless the goal is reached now. Checks the node, and does not rely on what `perform`
    /// reported.
    fn confirm(&mut self, goal: &Goal) -> Result<()>;

    /// Called once before the first [`undo`](Self::undo), which does not depend on the time that
    /// the call has left.
    fn begin_undo(&mut self) {}

    /// Undoes what `perform` did.
    fn undo(&mut self, undo: &Self::Undo) -> Result<()>;
}

/// Outcome of a successful [`apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The goal had been reached before.
    Already,
    /// The steps were performed.
    Now,
}

/// Carries out a plan on `node`, or leaves the node as it was.
pub fn apply<W: Node>(node: &mut W, plan: &Plan) -> Result<Applied, Failure> {
    match node.look(&plan.goal).map_err(|error| to_failure(named(error, "look at the target")))? {
        TargetState::Reached => return Ok(Applied::Already),
        TargetState::Conflict(by) => return Err(Failure::new(Code::Conflict, by)),
        TargetState::Open => {}
    }
    let mut undos = Vec::new();
    match carry_out(node, plan, &mut undos) {
        Ok(()) => Ok(Applied::Now),
        Err(error) => Err(roll_back(node, &undos, to_failure(error))),
    }
}

fn carry_out<W: Node>(node: &mut W, plan: &Plan, undos: &mut Vec<W::Undo>) -> Result<()> {
    for step in &plan.steps {
        undos.extend(node.perform(step).map_err(|error| named(error, step.doing()))?);
    }
    node.confirm(&plan.goal).map_err(|error| named(error, "look whether it is done"))
}

/// Adds the action to a bare kernel error, which says nothing without it. Most errors get their
/// action where more about it is known.
fn named(error: anyhow::Error, doing: &'static str) -> anyhow::Error {
    if is_bare(&error) { error.context(doing) } else { error }
}

fn roll_back<W: Node>(node: &mut W, undos: &[W::Undo], failure: Failure) -> Failure {
    node.begin_undo();
    undos.iter().rev().fold(failure, |failure, undo| match node.undo(undo) {
        Ok(()) => failure,
        Err(error) => failure.with_residue(format!("{undo}: {error:#}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_protocol::TargetPath;

    /// Test node that notes what it performs; the step or undo of the given number fails.
    #[derive(Default)]
    struct Notebook {
        standing: Option<TargetState>,
        failing_step: Option<usize>,
        failing_undo: Option<usize>,
        unconfirmed: bool,
        performed: usize,
        notes: Vec<String>,
    }

    impl Node for Notebook {
        type Undo = String;

        fn look(&mut self, _: &Goal) -> Result<TargetState> {
            Ok(self.standing.clone().unwrap_or(TargetState::Open))
        }

        fn perform(&mut self, _: &Step) -> Result<Option<String>> {
            self.performed += 1;
            anyhow::ensure!(self.failing_step != Some(self.performed), "step {} failed", self.performed);
            self.notes.push(format!("do {}", self.performed));
            Ok((self.performed != 2).then(|| self.performed.to_string()))
        }

        fn confirm(&mut self, _: &Goal) -> Result<()> {
            anyhow::ensure!(!self.unconfirmed, "not there");
            Ok(())
        }

        fn undo(&mut self, undo: &String) -> Result<()> {
            anyhow::ensure!(
                self.failing_undo.map(|number| number.to_string()).as_ref() != Some(undo),
                "busy"
            );
            self.notes.push(format!("undo {undo}"));
            Ok(())
        }
    }

    fn plan() -> Plan {
        let target = TargetPath::parse("/a/b".as_ref()).unwrap();
        let step = Step::PrepareTarget { target: target.clone() };
        Plan { goal: Goal::Unmounted { target }, steps: vec![step.clone(), step.clone(), step] }
    }

    fn run(mut node: Notebook) -> (Result<Applied, Failure>, String) {
        let result = apply(&mut node, &plan());
        (result, node.notes.join(", "))
    }

    #[test]
    fn does_nothing_when_there_is_nothing_to_do() {
        let (result, notes) = run(Notebook { standing: Some(TargetState::Reached), ..Notebook::default() });
        assert_eq!((result, notes.as_str()), (Ok(Applied::Already), ""));
    }

    #[test]
    fn touches_nothing_when_the_target_is_taken() {
        let taken = TargetState::Conflict("/a/b shows something else".into());
        let (result, notes) = run(Notebook { standing: Some(taken), ..Notebook::default() });
        assert_eq!((result.unwrap_err().code(), notes.as_str()), (Code::Conflict, ""));
    }

    #[test]
    fn undoes_in_reverse_whatever_step_fails() {
        for (failing, expected) in [(1, ""), (2, "do 1, undo 1"), (3, "do 1, do 2, undo 1")] {
            let (result, notes) = run(Notebook { failing_step: Some(failing), ..Notebook::default() });
            assert_eq!(result.unwrap_err().message(), format!("step {failing} failed"));
            assert_eq!(notes, expected);
        }
    }

    #[test]
    fn success_is_what_the_second_look_says() {
        let (result, notes) = run(Notebook { unconfirmed: true, ..Notebook::default() });
        assert_eq!(result.unwrap_err().message(), "not there");
        assert_eq!(notes, "do 1, do 2, do 3, undo 3, undo 1");
    }

    #[test]
    fn names_what_an_undo_left_and_goes_on() {
        let (result, notes) =
            run(Notebook { unconfirmed: true, failing_undo: Some(3), ..Notebook::default() });
        assert_eq!(result.unwrap_err().message(), "not there; left behind: 3: busy");
        assert_eq!(notes, "do 1, do 2, do 3, undo 1");
    }
}
