//! Tests of stores and [`settle`](super::settle()): several agents at the same time, lost answers,
//! and damaged files.

use super::contract::{Always, HANDLE, ask, goes, holder, is_a_store, mount, release, soon};
use super::decide::{Reason, Reply};
use super::evidence::{Fence, NodeState, PodState, Sight};
use super::request::Request;
use super::sharing::Sharing;
use super::store::file::FileStore;
use super::store::memory::{Fault, MemoryStore};
use super::store::{RecordStore as _, StoreError};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Instant;

#[test]
fn t1_t3_t8_t23_t24_in_memory() {
    is_a_store(&MemoryStore::default(), 100);
}

#[test]
fn t1_t3_t8_t23_t24_in_files() {
    let directory = tempfile::tempdir().unwrap();
    is_a_store(&FileStore::open(&directory.path().join("locks")).unwrap(), 100);
}

/// Two processes, or two nodes, each open their own store in the same directory.
#[test]
fn files_are_shared() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) =
        (FileStore::open(directory.path()).unwrap(), FileStore::open(directory.path()).unwrap());
    assert!(goes(&mount(&one, "a", "1")) && !goes(&mount(&other, "b", "2")));
    assert_eq!(release(&one, &holder("a", "1")), Ok(Reply::Done));
    assert!(goes(&mount(&other, "b", "2")));
}

/// Tests 2, 4 and 26, and every other point at which an answer can be lost.
#[test]
fn t2_t4_t26_a_lost_answer_is_found_out() {
    for fault in [Fault::LostReply, Fault::LostRequest, Fault::Unavailable] {
        for nth in 0..8 {
            let mut calls = 0;
            let store = MemoryStore::with_faults(move |_| {
                calls += 1;
                if calls == nth { fault } else { Fault::None }
            });
            let first = mount(&store, "a", "1");
            // Nothing may be attached without a grant; the next try gets one.
            assert!(goes(&first) || matches!(first, Err(StoreError::Failed(_))), "{first:?}");
            assert!((0..3).any(|_| goes(&mount(&store, "a", "1"))), "{fault:?} {nth}");
            assert_eq!(store.record(HANDLE).unwrap().holders.len(), 1);
            assert!((0..3).any(|_| release(&store, &holder("a", "1")) == Ok(Reply::Done)));
            assert_eq!(store.record(HANDLE), None);
        }
    }
}

/// Test 14: the storage is told once, before the lock is taken; if that fails, it is not taken.
#[test]
fn t14_the_storage_is_told_before_the_lock_is_taken() {
    let store = MemoryStore::default();
    assert!(goes(&mount(&store, "a", "1")));
    let sight = Sight { node: NodeState::OutOfService, pod: PodState::Gone, ..Sight::default() };
    let request = Request::Mount { me: Box::new(holder("b", "2")), sharing: Sharing::Exclusive };
    let failing = Always { sight, fence: Fence::Failed, ..Always::default() };
    let Ok(Reply::Refused(refusal)) = ask(&store, &request, &failing) else { panic!("not refused") };
    assert_eq!((refusal.reason, store.record(HANDLE).unwrap().epoch), (Reason::NotFenced, 0));
    let fencing = Always { sight, fence: Fence::Fenced, ..Always::default() };
    assert_eq!(ask(&store, &request, &fencing), Ok(Reply::Go { epoch: 1 }));
    assert_eq!(*fencing.asked.lock().unwrap(), ["a"]);
    assert_eq!(store.tasks(&holder("a", "1").node, soon()).unwrap().len(), 1);
    // A witness that does not support fencing is not asked for ever.
    let ignorant = Always { sight, ..Always::default() };
    let request = Request::Mount { me: Box::new(holder("c", "3")), sharing: Sharing::Exclusive };
    assert_eq!(ask(&store, &request, &ignorant), Ok(Reply::Go { epoch: 2 }));
}

fn file_of(directory: &Path) -> std::path::PathBuf {
    directory.join("records").read_dir().unwrap().next().unwrap().unwrap().path()
}

/// Test 33: a record that cannot be read does not count as free storage.
#[test]
fn t33_the_file_store_grants_nothing_by_a_damaged_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = FileStore::open(directory.path()).unwrap();
    assert!(goes(&mount(&store, "a", "1")));
    let file = file_of(directory.path());
    let whole = std::fs::read_to_string(&file).unwrap();
    let spoil = |text: &str| {
        std::fs::remove_file(&file).ok();
        flexvol_linux::fs::files::replace(&file, text.as_bytes()).unwrap();
    };
    for text in ["", "{", "null", "{}", &whole[..whole.len() / 2], &whole.replace(HANDLE, "rbd:other"), "\0"]
    {
        spoil(text);
        assert!(matches!(mount(&store, "b", "2"), Err(StoreError::Failed(_))), "{text}");
        assert!(store.list().is_err());
    }
    spoil(&whole);
    assert!(!goes(&mount(&store, "b", "2")) && goes(&mount(&store, "a", "1")));
    // The draft of a killed writer has no meaning.
    let draft = flexvol_linux::fs::files::draft_of(&file);
    std::fs::File::create(&draft).unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
    assert_eq!(release(&store, &holder("a", "1")), Ok(Reply::Done));
}

/// Test 42 for the store: a user with write access, or with a symlink here, can take every lock.
#[test]
fn t42_the_file_store_refuses_a_directory_that_others_may_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks");
    drop(FileStore::open(&path).unwrap());
    for open in ["", "records", "tasks"] {
        let below = path.join(open);
        std::fs::set_permissions(&below, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(FileStore::open(&path).is_err(), "{open}");
        std::fs::set_permissions(&below, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    symlink(&path, directory.path().join("link")).unwrap();
    assert!(FileStore::open(&directory.path().join("link")).is_err());
    assert!(FileStore::open(&directory.path().join("missing/below")).is_err());
    // Neither a record nor its draft is written through a symlink.
    let store = FileStore::open(&path).unwrap();
    assert!(goes(&mount(&store, "a", "1")));
    let (file, victim) = (file_of(&path), directory.path().join("victim"));
    std::fs::File::create(&victim).unwrap();
    symlink(&victim, flexvol_linux::fs::files::draft_of(&file)).unwrap();
    assert!(matches!(release(&store, &holder("a", "1")), Ok(Reply::Done)));
    assert!(goes(&mount(&store, "a", "1")).eq(&false));
    std::fs::remove_file(flexvol_linux::fs::files::draft_of(&file)).unwrap();
    symlink(&victim, &file).unwrap();
    assert!(mount(&store, "a", "1").is_err());
    assert_eq!(std::fs::read(&victim).unwrap(), b"");
}

/// `cargo test -p flexvol-cluster --release --lib figure_file_store -- --ignored --nocapture`
#[test]
#[ignore = "a figure"]
fn figure_file_store() {
    let directory =
        tempfile::tempdir_in(std::env::var("FLEXVOL_FIGURES").unwrap_or("/var/tmp".into())).unwrap();
    let store = FileStore::open(directory.path()).unwrap();
    let mut times: Vec<_> = (0..300)
        .map(|_| {
            let begun = Instant::now();
            assert!(goes(&mount(&store, "a", "1")) && release(&store, &holder("a", "1")).is_ok());
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    let text = format!("mount and release: median {:?}, 95 % {:?}", times[150], times[285]);
    std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes()).unwrap();
}
