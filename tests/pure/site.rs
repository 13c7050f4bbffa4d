//! docs/site/SUMMARY.md, the order of the pages that `bin/site` makes a site of.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The links of a page that lead into the tree, as paths from its root.
fn links(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let links = links.filter(|link| !link.is_empty() && !link.contains("://"));
    links.map(|link| plain(&Path::new(page).parent().unwrap().join(link))).collect()
}

/// Without `..`.
fn plain(path: &Path) -> String {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(plain.pop(), "{} leads out of the tree", path.display()),
            part => plain.push(part),
        }
    }
    plain.to_string_lossy().into_owned()
}

/// Every document of the root and of docs/.
fn documents() -> BTreeSet<String> {
    let directories = [".", "docs", "docs/drivers"];
    let entries = directories.iter().flat_map(|it| fs::read_dir(root().join(it)).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    let pages = paths.filter(|path| path.extension().is_some_and(|it| it == "md"));
    pages.map(|path| plain(path.strip_prefix(root()).unwrap()).trim_start_matches("./").to_owned()).collect()
}

#[test]
fn every_document_is_a_page_and_has_one_place() {
    let pages = links("docs/site/SUMMARY.md");
    let all: BTreeSet<_> = pages.iter().cloned().collect();
    assert_eq!(all.len(), pages.len(), "one is there twice");
    assert_eq!(all, documents());
}

/// What a page leads to is a page as well, or is copied.
#[test]
fn links_lead_to_what_the_site_has() {
    let pages = documents();
    for page in &pages {
        for link in links(page) {
            let is_copied = ["examples/", "docs/pictures/", "LICENSE", "Dockerfile"]
                .iter()
                .any(|it| link.starts_with(it))
                && root().join(&link).is_file();
            assert!(pages.contains(&link) || is_copied, "{page}: the site has no {link}");
        }
    }
}
