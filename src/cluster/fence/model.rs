//! Model checker: the states that a small world can reach, nearest first, and long random walks
//! through larger worlds. No state may break an invariant; with a rule broken on purpose, one must.
//!
//! It is written here because it is short: a set of visited states, the shortest way to each, and a
//! seeded walk. `FULL=1` explores far more.

use super::evidence::Fence;
use super::sharing::Sharing;
use super::world::{Broken, Event, Plan, Setting, World};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;

/// Result of an exploration.
struct Explored {
    states: usize,
    wrong: Option<(&'static str, Vec<Event>)>,
    /// True for each pod that ever had the storage: a model without events proves nothing.
    had: Vec<bool>,
}

/// Explores breadth first, so that the way to a violation is the shortest.
fn explore(setting: &Setting, most: usize, invariants: &[&str]) -> Explored {
    let events = setting.events();
    let hasher = RandomState::new();
    let first = setting.begin();
    let mut ways = HashMap::from([(hasher.hash_one(&first), None)]);
    let mut ahead = VecDeque::from([first]);
    let mut had = vec![false; setting.pods.len()];
    while let Some(world) = ahead.pop_front() {
        let from = hasher.hash_one(&world);
        had.iter_mut().enumerate().for_each(|(pod, had)| *had |= world.has(pod));
        if let Some(wrong) = world.wrong(setting).into_iter().find(|wrong| invariants.contains(wrong)) {
            return Explored { states: ways.len(), wrong: Some((wrong, way(&ways, from))), had };
        }
        for event in &events {
            let Some(next) = setting.step(&world, *event) else { continue };
            let key = hasher.hash_one(&next);
            if ways.len() < most && !ways.contains_key(&key) {
                ways.insert(key, Some((from, *event)));
                ahead.push_back(next);
            }
        }
    }
    Explored { states: ways.len(), wrong: None, had }
}

fn way(ways: &HashMap<u64, Option<(u64, Event)>>, mut at: u64) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(Some((from, event))) = ways.get(&at) {
        events.push(*event);
        at = *from;
    }
    events.reverse();
    events
}

const WRITERS: &str = "never two writers";
const DETACHED: &str = "released after detached";
const EPOCHS: &str = "epochs never fall";
const ALL: [&str; 3] = [WRITERS, DETACHED, EPOCHS];

const WRITER: Plan = Plan { node: 0, read_only: false, sharing: Sharing::Exclusive };
const READER: Plan = Plan { node: 1, read_only: true, sharing: Sharing::SharedReadOnly };

/// Returns a setting with a writer on each of two nodes.
fn two(broken: Broken, fence: Fence) -> Setting {
    Setting {
        pods: vec![WRITER, Plan { node: 1, ..WRITER }],
        nodes: 2,
        boots: 1,
        reviewed: false,
        fence,
        broken,
    }
}

/// Returns the same setting with a controller.
fn reviewed(broken: Broken, fence: Fence) -> Setting {
    Setting { reviewed: true, ..two(broken, fence) }
}

/// Prints a line for `--nocapture`.
fn show(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn full() -> bool {
    std::env::var_os("FULL").is_some()
}

/// Tests 18, 20 and 58: the states nearest to the beginning. Each broken rule is found among fewer
/// than 400,000.
#[test]
fn t58_the_nearest_states_of_two_nodes_break_no_invariant() {
    let most = if full() { 1_500_000 } else { 400_000 };
    let fences = [Fence::Fenced, Fence::Unsupported];
    for (by, fence) in [two, reviewed].into_iter().flat_map(|by| fences.map(|fence| (by, fence))) {
        let setting = by(Broken::Nothing, fence);
        let explored = explore(&setting, most, &ALL);
        show(&format!("{fence:?}, reviewed: {}: {} states", setting.reviewed, explored.states));
        assert_eq!(explored.wrong, None);
        assert_eq!(explored.had, [true, true]);
    }
}

/// All states of a node with a controller. No other pod is needed to see that a pod which still
/// writes has lost the storage.
#[test]
fn t58_no_state_of_a_node_beside_a_controller_breaks_an_invariant() {
    let setting = Setting { pods: vec![WRITER], nodes: 1, ..reviewed(Broken::Nothing, Fence::Unsupported) };
    let explored = explore(&setting, usize::MAX, &ALL);
    show(&format!("one node beside a controller: {} states, all of them", explored.states));
    assert_eq!((explored.wrong, &explored.had[..]), (None, &[true][..]));
}

/// Every rule is needed: if one alone is broken, a forbidden state is reached.
#[test]
fn t58_each_broken_rule_is_found() {
    let mut reader = two(Broken::ReaderBesideWriter, Fence::Fenced);
    reader.pods[1] = READER;
    let mut neighbours = two(Broken::UsageIgnored, Fence::Fenced);
    neighbours.pods[1].node = 0;
    let fenced = |broken| two(broken, Fence::Fenced);
    // One node is enough to see that its attached storage was taken.
    let alone = |broken| Setting { pods: vec![WRITER], nodes: 1, ..reviewed(broken, Fence::Unsupported) };
    for (setting, expected) in [
        (fenced(Broken::PodMissingIsEvidence), WRITERS),
        (fenced(Broken::SilentIsOff), DETACHED),
        (fenced(Broken::BlindWrite), WRITERS),
        (fenced(Broken::ReleaseFirst), DETACHED),
        (fenced(Broken::NoFence), DETACHED),
        (fenced(Broken::NoReturn), DETACHED),
        (fenced(Broken::ReturnUnwritten), DETACHED),
        (fenced(Broken::AgainUnwritten), DETACHED),
        (fenced(Broken::EpochForgotten), EPOCHS),
        (two(Broken::TaintWithoutPowerOff, Fence::Unsupported), DETACHED),
        (reader, WRITERS),
        (neighbours, DETACHED),
        (alone(Broken::ServesUnreported), DETACHED),
        (alone(Broken::ServesTainted), DETACHED),
        (alone(Broken::BlindWrite), DETACHED),
        (alone(Broken::SilentIsOff), DETACHED),
    ] {
        let explored = explore(&setting, usize::MAX, &[expected]);
        let (wrong, way) = explored.wrong.unwrap_or_else(|| panic!("{:?} is not found", setting.broken));
        show(&format!("{:?}: {wrong} is broken after {} states by {way:?}", setting.broken, explored.states));
    }
}

/// Random numbers that are the same for the same seed (xorshift64*).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(number).unwrap() % below
    }
}

/// Returns a setting with four pods on three nodes, chosen by the seed.
fn crowd(dice: &mut Dice, broken: Broken) -> Setting {
    let kinds = [Sharing::Exclusive, Sharing::ExclusivePerNode, Sharing::SharedReadOnly, Sharing::Exclusive];
    let pods = (0..4).map(|pod| {
        let sharing = kinds[dice.roll(kinds.len())];
        Plan { node: (pod + dice.roll(2)) % 3, read_only: sharing == Sharing::SharedReadOnly, sharing }
    });
    let pods = pods.collect();
    let fence = [Fence::Fenced, Fence::Unsupported, Fence::Failed][dice.roll(3)];
    Setting { pods, nodes: 3, boots: 3, reviewed: dice.roll(2) == 0, fence, broken }
}

/// Weights the events so that most are work: with disasters alone nothing is ever mounted.
fn mostly_work(events: Vec<Event>) -> Vec<Event> {
    let weight = |event: &Event| match event {
        Event::Mount(_) | Event::Attach(_) | Event::Answered(_) | Event::Confirm(_) | Event::Serve(_) => 12,
        Event::Release(_) | Event::Detach(_) | Event::Healed(_) | Event::PowerOn(_) | Event::Report(_) => 8,
        Event::Untaint(_) | Event::Review | Event::Reviewed => 6,
        Event::LateArrives | Event::Work(_) | Event::ReplyLost(_) | Event::RequestLate(_) => 4,
        _ => 1,
    };
    events.into_iter().flat_map(|event| std::iter::repeat_n(event, weight(&event))).collect()
}

/// Returns the violation at the end of a walk, and how often a pod got the storage.
fn walk(seed: u64, broken: Broken) -> (Option<&'static str>, usize) {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let setting = crowd(&mut dice, broken);
    let events = mostly_work(setting.events());
    let mut world: World = setting.begin();
    let mut attached = 0;
    for _ in 0..300 {
        let event = events[dice.roll(events.len())];
        let Some(next) = setting.step(&world, event) else { continue };
        attached += usize::from(matches!(event, Event::Attach(_)));
        world = next;
        if let Some(wrong) = world.wrong(&setting).first() {
            return (Some(wrong), attached);
        }
    }
    (None, attached)
}

/// Tests 1 and 18: 100,000 interleavings with faults; without `FULL=1`, some thousands of them.
#[test]
fn t18_random_walks_never_grant_twice() {
    let walks = if full() { 100_000 } else { 3_000 };
    let mut attached = 0;
    for seed in 0..walks {
        let (wrong, granted) = walk(seed, Broken::Nothing);
        assert_eq!(wrong, None, "seed {seed}");
        attached += granted;
    }
    show(&format!("{walks} walks, {attached} times attached"));
    assert!(attached > usize::try_from(walks).unwrap() / 2, "{attached}");
}

/// The random walks find what the exploration finds.
#[test]
fn random_walks_find_broken_rules() {
    for broken in [Broken::SilentIsOff, Broken::BlindWrite, Broken::ReleaseFirst, Broken::NoFence] {
        assert!((0..20_000).any(|seed| walk(seed, broken).0.is_some()), "{broken:?} is not found");
    }
}
