//! The commands in a page.

/// One command as a page shows it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    /// Where it stands, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
    /// The lines below it.
    pub(crate) output: Vec<String>,
    /// The exit status it has to have.
    pub(crate) status: i32,
}

/// What blocks may hold that is not run.
const NOT_RUN: [&str; 8] = ["yaml", "json", "rust", "text", "toml", "bash", "ini", "mermaid"];

/// All commands of a page in their order. The error begins with a line number.
pub(crate) fn commands(page: &str) -> Result<Vec<Command>, String> {
    let mut commands: Vec<Command> = Vec::new();
    // The words after the fence of the block we are in.
    let mut block: Option<&str> = None;
    for (line, text) in (1..).zip(page.lines()) {
        match (block, text.strip_prefix("```")) {
            (None, Some(words)) => block = Some(check(words).map_err(|error| format!("{line}: {error}"))?),
            (None, None) if text.starts_with("    $ ") => {
                return Err(format!("{line}: a command outside of a block ```console"));
            }
            (Some(words), Some(_)) => {
                if let (Some(status), Some(last)) = (exit_status(words), commands.last_mut()) {
                    last.status = status;
                }
                block = None;
            }
            (Some(words), None) if words.starts_with("console") => take(&mut commands, line, text),
            _ => {}
        }
    }
    Ok(commands)
}

fn check(words: &str) -> Result<&str, String> {
    let language = words.split(' ').next().unwrap_or_default();
    if language == "console" || NOT_RUN.contains(&language) {
        return Ok(words);
    }
    Err(format!("a block is console, which is run, or one of {NOT_RUN:?}, not {language:?}"))
}

fn exit_status(words: &str) -> Option<i32> {
    words.split("exit=").nth(1).map(|status| status.parse().expect("a number"))
}

fn take(commands: &mut Vec<Command>, line: usize, text: &str) {
    if let Some(text) = text.strip_prefix("$ ") {
        commands.push(Command { line, text: text.to_owned(), ..Command::default() });
    } else if let Some(last) = commands.last_mut() {
        match text.strip_prefix("> ") {
            Some(more) if last.output.is_empty() => last.text = format!("{}\n{more}", last.text),
            _ => last.output.push(text.to_owned()),
        }
    }
}

#[test]
fn commands_are_taken_with_what_they_print() {
    let page = "text\n```console exit=3\n$ a \\\n> b\nout\n$ c\n```\n```yaml\n$ no\n```\n";
    let expected = [
        Command { line: 3, text: "a \\\nb".into(), output: vec!["out".into()], status: 0 },
        Command { line: 6, text: "c".into(), output: vec![], status: 3 },
    ];
    assert_eq!(commands(page).unwrap(), expected);
    assert!(commands("```\nx\n```").unwrap_err().starts_with("1: "));
    assert!(commands("\n    $ ls\n").unwrap_err().starts_with("2: "));
}
