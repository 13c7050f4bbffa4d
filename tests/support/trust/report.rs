//! Results of trials: what was tried, with which seed, and failures.

#[path = "lines.rs"]
mod lines;

use std::time::Instant;

/// Of every choice that is made; `FLEXVOL_SEED` sets another.
const SEED: u64 = 20_260_917;

/// Whether all there is shall be tried.
pub(crate) fn is_full() -> bool {
    std::env::var_os("FULL").is_some()
}

/// How many times something is tried: so many in the gate, so many with `FULL=1`.
pub(crate) fn rounds(gate: u32, full: u32) -> u32 {
    if is_full() { full } else { gate }
}

/// Whether this kind shall be tried, one of `crash`, `fault`, `race` and `endurance`.
pub(crate) fn is_wanted(kind: &str) -> bool {
    std::env::var_os("FLEXVOL_KIND").is_none_or(|wanted| wanted == kind)
}

pub(crate) fn seed() -> u64 {
    std::env::var("FLEXVOL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED)
}

/// How many are tried of many; `FLEXVOL_SAMPLE` says another number.
pub(crate) fn sample_of(usual: usize) -> usize {
    std::env::var("FLEXVOL_SAMPLE").ok().and_then(|sample| sample.parse().ok()).unwrap_or(usual)
}

/// xorshift: the same choices every time.
pub(crate) struct Dice(u64);

impl Dice {
    /// Another sequence for each name.
    pub(crate) fn of(name: &str) -> Self {
        let mixed =
            name.bytes().fold(seed(), |mixed, byte| (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self(mixed | 1)
    }

    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(sides).unwrap()).unwrap()
    }

    /// So many of them in their order, or all.
    pub(crate) fn choose<T>(&mut self, all: Vec<T>, count: usize) -> Vec<T> {
        let (mut left, mut wanted) = (all.len(), count.min(all.len()));
        let mut taken = |_: &T| {
            let take = self.roll(left) < wanted;
            left -= 1;
            wanted -= usize::from(take);
            take
        };
        all.into_iter().filter(|each| taken(each)).collect()
    }
}

/// One line of the results.
pub(crate) struct Report {
    line: String,
    start: Instant,
    tried: usize,
    failures: Vec<String>,
}

impl Report {
    /// `crash`, `image/ext4`, `mount`, and of how many points.
    pub(crate) fn begin(kind: &str, name: &str, what: &str, points: usize) -> Self {
        let line = format!("TRUST {kind} {name} {what} points={points}");
        Self { line, start: Instant::now(), tried: 0, failures: Vec::new() }
    }

    /// One more was tried.
    pub(crate) fn tried(&mut self, failure: Option<String>) {
        self.tried += 1;
        if let Some(failure) = failure {
            println!("NOTE FAILED {}: {}", self.line, failure.replace('\n', " "));
            self.failures.push(failure);
        }
    }

    /// Written down, whatever came out; and it must be good.
    #[track_caller]
    pub(crate) fn end(self) {
        let Self { line, start, tried, failures } = self;
        let form = if is_full() { "soak" } else { "sample" };
        let line = format!(
            "{line} tried={tried} failures={} seed={} seconds={:.1} form={form}\n",
            failures.len(),
            seed(),
            start.elapsed().as_secs_f64()
        );
        print!("NOTE {line}");
        lines::append(&line);
        assert!(failures.is_empty(), "{line}{}", failures.join("\n"));
        assert!(tried > 0, "{line}nothing was tried");
    }
}
