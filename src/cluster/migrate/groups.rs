//! Groups of volumes that are stopped and moved together: those that share a workload. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Groups the numbers of volumes by shared workloads. `stops` has the workloads to stop for each
/// one.
pub fn together<'a>(stops: &[BTreeSet<&'a str>]) -> Vec<(Vec<usize>, BTreeSet<&'a str>)> {
    let mut parents: Vec<usize> = (0..stops.len()).collect();
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (number, workloads) in stops.iter().enumerate() {
        for workload in workloads {
            let other = *first.entry(*workload).or_insert(number);
            let (one, other) = (root(&mut parents, number), root(&mut parents, other));
            // The lower number becomes the root, so that groups have the order of the volumes.
            parents[one.max(other)] = one.min(other);
        }
    }
    let mut groups: BTreeMap<usize, (Vec<usize>, BTreeSet<&str>)> = BTreeMap::new();
    for (number, workloads) in stops.iter().enumerate() {
        let group = groups.entry(root(&mut parents, number)).or_default();
        group.0.push(number);
        group.1.extend(workloads);
    }
    groups.into_values().collect()
}

fn root(parents: &mut [usize], mut number: usize) -> usize {
    while parents[number] != number {
        parents[number] = parents[parents[number]];
        number = parents[number];
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shares_a_workload_is_together() {
        let stops: Vec<BTreeSet<_>> = [vec!["a"], vec!["b"], vec![], vec!["c", "a"], vec!["c"], vec![]]
            .into_iter()
            .map(BTreeSet::from_iter)
            .collect();
        let groups: Vec<_> = together(&stops).into_iter().map(|(volumes, _)| volumes).collect();
        assert_eq!(groups, [vec![0, 3, 4], vec![1], vec![2], vec![5]]);
    }
}
