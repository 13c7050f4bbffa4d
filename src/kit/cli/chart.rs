//! `flexvol-kit chart`, which `flexvol manifest helm` executes.

use crate::chart;
use anyhow::{Context as _, Result};
use clap::Args;
use flexvol_linux::fs::files;
use flexvol_terminal::screen::Screen;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write a Helm chart from a manifest that flexvol manifest helm has made
#[derive(Args)]
pub(super) struct Chart {
    /// The directory to write it into
    directory: PathBuf,
    /// The manifest, with marks for Helm's values
    marked: String,
    /// The values, as JSON
    values: String,
}

impl Chart {
    /// Writes the chart. Existing files are not overwritten: they may have been edited.
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let values = serde_json::from_str(&self.values).context("read the values")?;
        let files = chart::files(&self.marked, &values);
        let paths: Vec<_> = files.iter().map(|(name, _)| self.directory.join(name)).collect();
        for (path, (_, text)) in paths.iter().zip(&files) {
            files::write_new(path, text)?;
        }
        if screen.wants_json() {
            screen.json(&json!({"written": paths}))?;
        } else {
            paths.iter().try_for_each(|path| screen.line(&format!("wrote {}", path.display())))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
