//! Paths of the API, read through the user's own kubectl.

pub mod exec;

use anyhow::{Context as _, Result, bail, ensure};
use flexvol_linux::proc::piped::{Piped, of_the_user};
use flexvol_protocol::failure::{Code, Failure};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the program that kubectl executes for `kubectl flexvol`.
pub const PLUGIN: &str = "kubectl-flexvol";

/// Limit for the objects in one answer.
const PAGE: usize = 500;

/// Limit for the pages of one list: a million objects.
const PAGES: usize = 2000;

/// Reports whether kubectl called this program.
pub fn calls(program: Option<&OsString>) -> bool {
    program.is_some_and(|program| Path::new(program).file_name() == Some(PLUGIN.as_ref()))
}

/// The user's kubectl, for one cluster.
#[derive(Debug)]
pub struct Kubectl {
    program: PathBuf,
    cluster: Vec<OsString>,
}

impl Kubectl {
    /// Finds kubectl; `context` and `kubeconfig` are kubectl's own options.
    ///
    /// # Errors
    ///
    /// Fails if kubectl is not installed.
    pub fn find(context: Option<&str>, kubeconfig: Option<&Path>) -> Result<Self> {
        let missing = || Failure::new(Code::ToolMissing, "there is no kubectl in $PATH: install it");
        let program = of_the_user("kubectl").ok_or_else(missing)?;
        let context = context.map(|context| OsString::from(format!("--context={context}")));
        let file = kubeconfig.map(|file| {
            let mut word = OsString::from("--kubeconfig=");
            word.push(file);
            word
        });
        Ok(Self { program, cluster: context.into_iter().chain(file).collect() })
    }

    /// Starts its proxy to the API server at a socket.
    pub fn proxy(&self, socket: &Path) -> Result<Piped> {
        let mut at = OsString::from("--unix-socket=");
        at.push(socket);
        let words = ["proxy".into(), at];
        let all = self.cluster.iter().chain(&words).map(OsString::as_os_str);
        Piped::serve(&self.program, all).with_context(|| format!("start {}", self.program.display()))
    }

    /// Reads one object.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.ask(&["get", "--raw", path])
    }

    /// Passes each object of a kind to `take`, page by page.
    pub fn list(&self, path: &str, take: impl FnMut(Value)) -> Result<()> {
        self.list_where(path, "", take)
    }

    /// Passes the objects that a label selector matches, in kubectl's own syntax; all of them if it
    /// is empty.
    pub fn list_where(&self, path: &str, selector: &str, mut take: impl FnMut(Value)) -> Result<()> {
        let selector = escaped(selector);
        let mut token = String::new();
        for _ in 0..PAGES {
            let path = format!("{path}?limit={PAGE}&labelSelector={selector}&continue={token}");
            let mut page = self.get(&path)?;
            if let Value::Array(items) = page["items"].take() {
                items.into_iter().for_each(&mut take);
            }
            match page["metadata"]["continue"].as_str() {
                // All other characters of a token are safe in a path.
                Some(more) if !more.is_empty() => token = more.replace('=', "%3D"),
                _ => return Ok(()),
            }
        }
        bail!("read {path}: there is no end of it")
    }

    /// Creates an object.
    pub fn create(&self, path: &str, object: &Value) -> Result<()> {
        self.run(&["create", "--raw", path, "-f", "-"], Some(object.to_string().as_bytes())).map(drop)
    }

    /// Deletes an object, unless another one has its name by now.
    pub fn delete(&self, path: &str, uid: &str) -> Result<()> {
        let only = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
        self.run(&["delete", "--raw", path, "-f", "-"], Some(only.to_string().as_bytes())).map(drop)
    }

    /// Passes changes of objects to `take`, from a version on, until `take` returns false or the
    /// time is over. The caller then lists the objects again.
    pub fn watch(
        &self,
        path: &str,
        version: &str,
        time: Duration,
        mut take: impl FnMut(Value) -> bool,
    ) -> Result<()> {
        let seconds = time.as_secs().max(1);
        let path = format!("{path}?watch=true&timeoutSeconds={seconds}&resourceVersion={version}");
        let limit = format!("--request-timeout={}s", seconds + 5);
        let mut running = self.start(&["get", &limit, "--raw", &path], None)?;
        for line in running.output().context("kubectl has no output")?.lines() {
            let event = serde_json::from_str(&line.context("read what kubectl prints")?);
            if !event.is_ok_and(&mut take) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the namespace that kubectl uses if none is named.
    pub fn namespace(&self) -> Result<String> {
        let said = self.run(&["config", "view", "--minify", "--output=jsonpath={..namespace}"], None)?;
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        Ok(if said.is_empty() { "default".to_owned() } else { said })
    }

    fn ask(&self, words: &[&str]) -> Result<Value> {
        serde_json::from_slice(&self.run(words, None)?).context("read what kubectl prints")
    }

    /// Runs kubectl and returns its whole output; its error messages go to the user.
    fn run(&self, words: &[&str], input: Option<&[u8]>) -> Result<Vec<u8>> {
        let mut running = self.start(words, input)?;
        let mut text = Vec::new();
        running.output().context("kubectl has no output")?.read_to_end(&mut text)?;
        let status = running.end()?;
        ensure!(status.success(), "kubectl {} failed ({status}): see what it says", words.join(" "));
        Ok(text)
    }

    fn start(&self, words: &[&str], input: Option<&[u8]>) -> Result<Piped> {
        let all = self.cluster.iter().map(OsString::as_os_str).chain(words.iter().map(OsStr::new));
        let started = match input {
            None => Piped::start(&self.program, all),
            Some(input) => Piped::fed(&self.program, all, input),
        };
        started.with_context(|| format!("start {}", self.program.display()))
    }
}

/// Escapes text for a query.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list that is cut short without a word looks whole.
    #[test]
    fn a_list_without_an_end_is_an_error() {
        let script = r#"echo '{"metadata": {"continue": "again"}, "items": [{}]}'"#;
        let kubectl = Kubectl { program: "/bin/sh".into(), cluster: ["-c", script].map(Into::into).into() };
        let mut count = 0;
        let error = kubectl.list("/api/v1/pods", |_| count += 1).unwrap_err();
        assert!(error.to_string().contains("/api/v1/pods"), "{error}");
        assert_eq!(count, PAGES);
    }

    /// A selector that an administrator types stays one value of one query.
    #[test]
    fn a_selector_does_not_end_its_query() {
        assert_eq!(
            escaped("app=db,tier in (a,b)&watch=1#"),
            "app%3Ddb%2Ctier%20in%20%28a%2Cb%29%26watch%3D1%23"
        );
    }
}
