//! Plans of every driver in a world of memory, where any step and any undo can fail.

use anyhow::{Result, ensure};
use flexvol::drivers;
use flexvol::executor::carry_out::{Applied, Node, TargetState, apply};
use flexvol::failure::{Code, Failure};
use flexvol::installed::Installed;
use flexvol::plan::{Goal, Plan, Step};
use flexvol::protocol::{Call, TargetPath, Verb};
use flexvol::side_file;
use proptest::collection::vec;
use proptest::prelude::*;
use std::ffi::OsString;

const TARGET: &str = "/k/pods/1/volumes/example~x/v";

const SETTINGS: &str = r#"{"policy":{"bindRoots":["/srv"],"volumeGroups":["a"],"csiDrivers":["a"]},"exec":{"capabilities":{"attach":true},"commands":{
    "mount":["/m","{target}"],"unmount":["/u","{target}"],"expandfs":["/g"],"attach":["/a"],"detach":["/d"],"mountdevice":["/s","{target}"]}}}"#;

/// What a plan has done so far, and where it is made to fail.
#[derive(Default)]
struct Memory {
    standing: Option<TargetState>,
    failing_step: Option<usize>,
    failing_undos: Vec<usize>,
    unconfirmed: bool,
    performed: usize,
    /// The steps that are in effect and must be taken back, by their number.
    effects: Vec<usize>,
    undone: Vec<usize>,
    looks: usize,
    confirmed: usize,
    undo_began: usize,
}

impl Node for Memory {
    type Undo = usize;

    fn look(&mut self, _: &Goal) -> Result<TargetState> {
        self.looks += 1;
        assert_eq!(self.performed, 0, "looked after the first step");
        Ok(self.standing.clone().unwrap_or(TargetState::Open))
    }

    fn perform(&mut self, step: &Step) -> Result<Option<usize>> {
        assert_eq!(self.undo_began, 0, "a step after the first undo");
        let number = self.performed;
        self.performed += 1;
        ensure!(self.failing_step != Some(number), "step {number} failed");
        let undo = step.undo().map(|_| number);
        self.effects.extend(undo);
        Ok(undo)
    }

    fn confirm(&mut self, _: &Goal) -> Result<()> {
        self.confirmed += 1;
        ensure!(!self.unconfirmed, "not so");
        Ok(())
    }

    fn begin_undo(&mut self) {
        assert!(self.undone.is_empty(), "undone before undoing began");
        self.undo_began += 1;
    }

    fn undo(&mut self, number: &usize) -> Result<()> {
        assert_eq!(self.undo_began, 1);
        self.undone.push(*number);
        ensure!(!self.failing_undos.contains(number), "busy");
        self.effects.retain(|effect| effect != number);
        Ok(())
    }
}

const SSHFS: &str = r#"{"server":"a","hostKeyCheck":"off","kubernetes.io/secret/key":"YQ=="}"#;

/// One plan of every verb of every driver that makes plans.
fn plans() -> Vec<(String, Plan)> {
    let settings = side_file::parse(SETTINGS).unwrap();
    let image = r#"{"file":"a","size":"1Gi"}"#;
    let source = r#"{"source":"/srv/a/b","create":"true"}"#;
    let export = r#"{"server":"a,b","path":"/e","subDir":"s","createSubDir":"true"}"#;
    let share = r#"{"source":"//a/b","guest":"true"}"#;
    let calls: &[(&str, &[&str])] = &[
        ("nfs", &["mount", TARGET, export]),
        ("cifs", &["mount", TARGET, share]),
        ("secretfiles", &["mount", TARGET, r#"{"kubernetes.io/secret/key":"YQ=="}"#]),
        ("overlay", &["mount", TARGET, r#"{"lower":"/srv/a"}"#]),
        ("sshfs", &["mount", TARGET, SSHFS]),
        ("csi", &["mount", TARGET, r#"{"driver":"a","volumeHandle":"b"}"#]),
        ("s3", &["mount", TARGET, r#"{"bucket":"a","public":"yes"}"#]),
        ("rclone", &["mount", TARGET, r#"{"remote":"webdav","backend.url":"http://a"}"#]),
        ("webdav", &["mount", TARGET, r#"{"url":"http://a"}"#]),
        ("glusterfs", &["mount", TARGET, r#"{"server":"a","volume":"b"}"#]),
        ("rbd", &["mount", TARGET, r#"{"monitors":"a","image":"b","kubernetes.io/secret/key":"YQ=="}"#]),
        ("cephfs", &["mount", TARGET, r#"{"monitors":"a","kubernetes.io/secret/key":"YQ=="}"#]),
        (
            "blobfuse",
            &["mount", TARGET, r#"{"container":"a","account":"b","kubernetes.io/secret/accountkey":"YQ=="}"#],
        ),
        ("lizardfs", &["mount", TARGET, r#"{"server":"a"}"#]),
        ("git", &["mount", TARGET, r#"{"repository":"https://a/b"}"#]),
        ("lvm", &["mountdevice", TARGET, "", r#"{"vg":"a","lv":"b","size":"1Gi"}"#]),
        (
            "lvm",
            &["mount", TARGET, r#"{"vg":"a","lv":"b","luks":"1","kubernetes.io/secret/passphrase":"YQ=="}"#],
        ),
        ("lvm", &["unmountdevice", TARGET]),
        ("lvm", &["expandfs", r#"{"vg":"a","lv":"b"}"#, "", TARGET, "2147483648", "1073741824"]),
        ("nbd", &["mountdevice", TARGET, "", r#"{"server":"a","export":"b"}"#]),
        ("nbd", &["mount", TARGET, r#"{"file":"a","size":"1Gi"}"#]),
        ("iscsi", &["mountdevice", TARGET, "", r#"{"targetPortal":"a","iqn":"iqn.2020-01.a:b"}"#]),
        ("qcow2", &["mountdevice", TARGET, "", r#"{"file":"a"}"#]),
        ("qcow2", &["mount", TARGET, r#"{"file":"a"}"#]),
        ("tmpfs", &["mount", TARGET, "{}"]),
        ("bind", &["mount", TARGET, source]),
        ("image", &["mount", TARGET, image]),
        ("image", &["expandfs", image, "", TARGET, "2147483648", "1073741824"]),
        ("exec", &["mount", TARGET, "{}"]),
        ("exec", &["expandfs", "{}", "", TARGET, "2", "1"]),
        ("exec", &["attach", "{}", "n"]),
        ("exec", &["detach", "v", "n"]),
    ];
    let planned = |(driver, words): &(&str, &[&str])| {
        let words: Vec<_> = words.iter().map(OsString::from).collect();
        let verb = Verb::parse(&words[0]).unwrap();
        let call = Call::parse(verb, &words[1..]).unwrap();
        let plan =
            Installed::new(drivers::find(driver).unwrap(), None, settings.clone()).plan(&call).unwrap();
        settings.policy.check(&plan).unwrap();
        (format!("{driver} {verb}"), plan)
    };
    let unmounts = drivers::ALL.iter().map(|driver| (driver.name(), &["unmount", TARGET][..]));
    calls.iter().copied().chain(unmounts).map(|call| planned(&call)).collect()
}

/// The numbers of the first `count` steps that can be taken back, the last first.
fn reversible(plan: &Plan, count: usize) -> Vec<usize> {
    let steps = plan.steps.iter().take(count).enumerate();
    let mut numbers: Vec<_> = steps.filter(|(_, step)| step.undo().is_some()).map(|(n, _)| n).collect();
    numbers.reverse();
    numbers
}

#[test]
fn every_driver_has_its_plans_here() {
    let plans = plans();
    for driver in drivers::ALL {
        let of_it: Vec<_> = plans.iter().filter(|(name, _)| name.starts_with(driver.name())).collect();
        assert!(of_it.len() >= 2, "{}", driver.name());
    }
    assert!(plans.iter().any(|(_, plan)| plan.steps.len() >= 6));
}

#[test]
fn what_works_is_done_in_order_and_confirmed() {
    for (name, plan) in plans() {
        let mut world = Memory::default();
        assert_eq!(apply(&mut world, &plan), Ok(Applied::Now), "{name}");
        assert_eq!((world.looks, world.performed, world.confirmed), (1, plan.steps.len(), 1), "{name}");
        assert_eq!((world.undo_began, world.undone.len()), (0, 0), "{name}");
    }
}

#[test]
fn what_is_so_already_is_left_alone() {
    for (name, plan) in plans() {
        let mut world =
            Memory { standing: Some(TargetState::Reached), failing_step: Some(0), ..Memory::default() };
        assert_eq!(apply(&mut world, &plan), Ok(Applied::Already), "{name}");
        assert_eq!((world.performed, world.confirmed, world.undo_began), (0, 0, 0), "{name}");
    }
}

#[test]
fn what_is_taken_is_left_alone_and_named() {
    for (name, plan) in plans() {
        let taken = TargetState::Conflict("somebody else's".into());
        let mut world = Memory { standing: Some(taken), ..Memory::default() };
        let failure = apply(&mut world, &plan).unwrap_err();
        assert_eq!(
            (failure.code(), failure.message().as_str()),
            (Code::Conflict, "somebody else's"),
            "{name}"
        );
        assert_eq!((world.performed, world.undo_began), (0, 0), "{name}");
    }
}

#[test]
fn whatever_step_fails_the_ones_before_are_taken_back_in_reverse() {
    for (name, plan) in plans() {
        for failing in 0..plan.steps.len() {
            let mut world = Memory { failing_step: Some(failing), ..Memory::default() };
            let failure = apply(&mut world, &plan).unwrap_err();
            assert_eq!(failure.message(), format!("step {failing} failed"), "{name}");
            assert_eq!(world.undone, reversible(&plan, failing), "{name}");
            assert_eq!((world.effects.len(), world.confirmed), (0, 0), "{name}");
        }
    }
}

#[test]
fn an_unconfirmed_goal_is_taken_back_whole() {
    for (name, plan) in plans() {
        let mut world = Memory { unconfirmed: true, ..Memory::default() };
        assert_eq!(apply(&mut world, &plan).unwrap_err().message(), "not so", "{name}");
        assert_eq!(world.undone, reversible(&plan, plan.steps.len()), "{name}");
        assert!(world.effects.is_empty(), "{name}");
    }
}

#[test]
fn whatever_undo_fails_the_others_go_on_and_it_is_named() {
    for (name, plan) in plans() {
        for failing in 0..=plan.steps.len() {
            for stuck in reversible(&plan, failing) {
                let failing_step = (failing < plan.steps.len()).then_some(failing);
                let mut world = Memory {
                    failing_step,
                    unconfirmed: true,
                    failing_undos: vec![stuck],
                    ..Memory::default()
                };
                let failure = apply(&mut world, &plan).unwrap_err();
                assert_eq!(failure.residue(), [format!("{stuck}: busy")], "{name}");
                assert!(failure.message().ends_with(&format!("; left behind: {stuck}: busy")), "{failure}");
                assert_eq!(world.undone, reversible(&plan, failing), "{name}");
                assert_eq!(world.effects, [stuck], "{name}");
            }
        }
    }
}

/// The steps that mount are the ones that are unmounted again; nothing that destroys data claims to
/// be undone.
#[test]
fn steps_that_cannot_be_taken_back_say_so() {
    for (name, plan) in plans() {
        for step in &plan.steps {
            let undo = step.undo();
            match step {
                Step::Mount { .. }
                | Step::MountShare { .. }
                | Step::MountFiles { .. }
                | Step::MountOverlay { .. }
                | Step::Bind { .. } => {
                    assert_eq!(undo, Some("unmount"), "{name}");
                }
                Step::Run(run) => assert_eq!(undo.is_some(), run.mounts.is_some(), "{name}"),
                Step::Serve(_) => assert!(undo.is_some_and(|undo| undo.starts_with("unmount")), "{name}"),
                Step::Format { .. } | Step::GrowImage { .. } | Step::Unmount { .. } => {
                    assert_eq!(undo, None, "{name}");
                }
                _ => {}
            }
        }
        // Whoever mounts makes sure of the target first, and mounts once.
        let mounts = |step: &Step| match step {
            Step::Mount { .. }
            | Step::MountShare { .. }
            | Step::MountFiles { .. }
            | Step::MountOverlay { .. }
            | Step::Serve(_)
            | Step::Checkout(_)
            | Step::CsiPublish { .. }
            | Step::ShowStaged { .. }
            | Step::Bind { .. } => true,
            Step::Run(run) => run.mounts.is_some(),
            _ => false,
        };
        if let Goal::Mounted { .. } = plan.goal {
            let prepared = plan.steps.iter().position(|step| matches!(step, Step::PrepareTarget { .. }));
            let mounted = plan.steps.iter().position(mounts);
            assert!(prepared < mounted && prepared.is_some(), "{name}");
            assert_eq!(mounted, Some(plan.steps.len() - 1), "{name}: something after the mount");
            assert_eq!(plan.steps.iter().filter(|step| mounts(step)).count(), 1, "{name}");
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let all: Vec<_> = plans().into_iter().flat_map(|(_, plan)| plan.steps).collect();
    prop::sample::select(all)
}

fn goal() -> impl Strategy<Value = Goal> {
    let all: Vec<_> = plans().into_iter().map(|(_, plan)| plan.goal).collect();
    prop::sample::select(all)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_plan_succeeds_whole_or_leaves_only_what_it_names(
        goal in goal(),
        steps in vec(step(), 0..9),
        failing_step in prop::option::of(0..12_usize),
        failing_undos in vec(0..9_usize, 0..4),
        unconfirmed in any::<bool>(),
    ) {
        let plan = Plan { goal, steps };
        let mut world = Memory { failing_step, failing_undos: failing_undos.clone(), unconfirmed, ..Memory::default() };
        let result: Result<Applied, Failure> = apply(&mut world, &plan);
        let failing = failing_step.filter(|number| *number < plan.steps.len());
        prop_assert_eq!(result.is_err(), failing.is_some() || unconfirmed);
        match result {
            Ok(applied) => {
                prop_assert_eq!(applied, Applied::Now);
                prop_assert_eq!(world.effects.len(), reversible(&plan, plan.steps.len()).len());
                prop_assert!(world.undone.is_empty());
            }
            Err(failure) => {
                let expected = reversible(&plan, failing.unwrap_or(plan.steps.len()));
                prop_assert_eq!(&world.undone, &expected);
                let left: Vec<_> = expected.into_iter().filter(|number| failing_undos.contains(number)).collect();
                let named: Vec<_> = left.iter().map(|number| format!("{number}: busy")).collect();
                prop_assert_eq!(failure.residue(), named);
                world.effects.reverse();
                prop_assert_eq!(world.effects, left);
            }
        }
    }
}

/// A driver refuses before anything is looked at: a plan is made or not, there is nothing between.
#[test]
fn targets_of_all_plans_are_the_call_s() {
    let target = TargetPath::parse(TARGET.as_ref()).unwrap();
    for (name, plan) in plans() {
        let of_goal = match &plan.goal {
            Goal::Mounted { target, .. } | Goal::Unmounted { target } | Goal::Ended { target } => {
                Some(target)
            }
            Goal::Performed => None,
        };
        let of_steps = plan.steps.iter().filter_map(|step| match step {
            Step::PrepareTarget { target }
            | Step::Mount { target, .. }
            | Step::Bind { target, .. }
            | Step::Unmount { target }
            | Step::EndDaemon { target, .. }
            | Step::GrowFileSystem { target } => Some(target),
            Step::Serve(daemon) => Some(&daemon.target),
            Step::Run(run) => run.mounts.as_ref().or(run.unmounts.as_ref()),
            _ => None,
        });
        assert!(of_goal.into_iter().chain(of_steps).all(|other| *other == target), "{name}");
    }
}
