//! What is done thousands of times leaves no more than what is done once.

use super::{Report, Volume, is_full, is_wanted};

/// So often up and down; in the gate as often as given.
#[track_caller]
pub(crate) fn endures(volume: &Volume<'_>, [gate, soak]: [usize; 2]) {
    if !is_wanted("endurance") {
        return;
    }
    let cycles = if is_full() { soak } else { gate };
    let mut report = Report::begin("endurance", volume.name, "cycle", cycles);
    let baseline = volume.baseline();
    for _ in 0..cycles {
        volume.lives();
        report.tried(None);
    }
    (volume.fresh)();
    baseline.holds();
    report.end();
}
