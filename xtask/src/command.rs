//! Runs programs: all they print goes into a log, the terminal shows that
//! they are alive, and a failure says what was run and how it ended.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::places::shown;

/// A program that runs longer than this hangs.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Without a terminal, a sign of life is printed this often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// Lines of output that a failure shows.
const TAIL: usize = 30;

/// What a program printed.
pub struct Printed {
    /// Standard output.
    pub stdout: String,
    /// Standard output and standard error as they came; only standard error
    /// if they were asked for apart.
    pub log: String,
}

/// A log that successive commands of one step append to.
pub struct Log {
    path: PathBuf,
}

impl Log {
    /// An empty log.
    pub fn new(path: PathBuf) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Log { path })
    }

    /// Runs a program to its end. Any exit code but 0 is an error.
    pub fn run(&self, command: &mut Command) -> Result<Printed> {
        let (status, printed) = self.run_any(command)?;
        self.expect_success(command, status, &printed)?;
        Ok(printed)
    }

    /// Runs a program to its end, its standard output kept apart.
    pub fn run_apart(&self, command: &mut Command) -> Result<Printed> {
        let out = self.path.with_extension("out");
        let file = File::create(&out).with_context(|| format!("cannot write {}", out.display()))?;
        let (status, mut printed) = self.spawn(command, file.into())?;
        self.expect_success(command, status, &printed)?;
        printed.stdout = text_from(&out, 0)?;
        Ok(printed)
    }

    /// Runs a program to its end, whatever its exit code is.
    pub fn run_any(&self, command: &mut Command) -> Result<(ExitStatus, Printed)> {
        let stdout = self.append()?;
        let (status, mut printed) = self.spawn(command, stdout.into())?;
        printed.stdout.clone_from(&printed.log);
        Ok((status, printed))
    }

    /// Starts a program that goes on while it is used.
    pub fn start(&self, command: &mut Command) -> Result<Running> {
        let stdout = self.append()?;
        let (child, begin) = self.begin(command, stdout.into())?;
        Ok(Running {
            child,
            log: self.path.clone(),
            begin,
        })
    }

    /// Starts a program; also says where in the log its output begins.
    fn begin(&self, command: &mut Command, stdout: Stdio) -> Result<(Child, u64)> {
        let mut head = self.append()?;
        writeln!(head, "$ {}", in_words(command))?;
        let begin = head.metadata()?.len();
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(self.append()?)
            .spawn();
        Ok((
            child.with_context(|| format!("cannot run {program}"))?,
            begin,
        ))
    }

    fn spawn(&self, command: &mut Command, stdout: Stdio) -> Result<(ExitStatus, Printed)> {
        let (mut child, begin) = self.begin(command, stdout)?;
        let started = Instant::now();
        let mut life = Life::new();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if started.elapsed() > LIMIT {
                child.kill()?;
                child.wait()?;
                bail!(
                    "`{}` was stopped after {} minutes; its output is in {}",
                    in_words(command),
                    LIMIT.as_secs() / 60,
                    shown(&self.path)
                );
            }
            life.show(&self.path);
            thread::sleep(Duration::from_millis(if started.elapsed().as_secs() < 2 {
                20
            } else {
                250
            }));
        };
        life.clear();
        Ok((
            status,
            Printed {
                stdout: String::new(),
                log: text_from(&self.path, begin)?,
            },
        ))
    }

    fn expect_success(
        &self,
        command: &Command,
        status: ExitStatus,
        printed: &Printed,
    ) -> Result<()> {
        if !status.success() {
            bail!(
                "`{}` ended with {status}\n{}(all of it: {})",
                in_words(command),
                tail(&printed.log),
                shown(&self.path)
            );
        }
        Ok(())
    }

    fn append(&self) -> Result<File> {
        File::options()
            .append(true)
            .open(&self.path)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// A program that was started; it is ended when this goes.
pub struct Running {
    child: Child,
    log: PathBuf,
    begin: u64,
}

impl Running {
    /// All that it has printed so far.
    pub fn printed(&self) -> Result<String> {
        text_from(&self.log, self.begin)
    }

    /// Waits until it prints a line with `words`, and returns what follows them
    /// in that line.
    pub fn wait_for(&mut self, words: &str, limit: Duration) -> Result<String> {
        let started = Instant::now();
        loop {
            // looked at first: what it said before it ended counts
            let ended = self.child.try_wait()?;
            let printed = self.printed()?;
            let found = printed.split_inclusive('\n').find_map(|line| {
                let (_, rest) = line.strip_suffix('\n')?.split_once(words)?;
                Some(rest.trim().to_string())
            });
            if let Some(rest) = found {
                return Ok(rest);
            }
            if let Some(status) = ended {
                bail!(
                    "the program ended with {status} before it said `{words}`\n{}(all of it: {})",
                    tail(&printed),
                    shown(&self.log)
                );
            }
            if started.elapsed() > limit {
                bail!(
                    "the program did not say `{words}` within {} s; its output is in {}",
                    limit.as_secs(),
                    shown(&self.log)
                );
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // that it has ended already is what is wanted
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a file holds from a byte on. It need not be UTF-8: a model may stop in
/// the middle of a character.
fn text_from(path: &Path, begin: u64) -> Result<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(begin))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A command as one would type it in the root of the checkout.
pub fn in_words(command: &Command) -> String {
    let quoted = |word: &std::ffi::OsStr| {
        let word = shown(Path::new(word));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{word}'")
        }
    };
    let mut words: Vec<String> = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_string_lossy(), quoted(value?))))
        .collect();
    words.push(quoted(command.get_program()));
    words.extend(command.get_args().map(quoted));
    words.join(" ")
}

/// The last lines of a text, indented.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL);
    lines[from..]
        .iter()
        .map(|line| format!("    {line}\n"))
        .collect()
}

/// Shows that a program is alive: the last line of its log, in place on a
/// terminal, now and then elsewhere.
struct Life {
    started: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl Life {
    fn new() -> Self {
        Life {
            started: Instant::now(),
            shown: None,
            terminal: io::stdout().is_terminal(),
        }
    }

    fn show(&mut self, log: &Path) {
        let pause = if self.terminal {
            Duration::from_secs(1)
        } else {
            SIGN_OF_LIFE
        };
        if self.shown.unwrap_or(self.started).elapsed() < pause {
            return;
        }
        self.shown = Some(Instant::now());
        let line = last_line(log);
        let seconds = self.started.elapsed().as_secs();
        let text = format!(
            "      {}:{:02}  {}",
            seconds / 60,
            seconds % 60,
            line.chars().take(90).collect::<String>()
        );
        let mut out = io::stdout();
        // a terminal that went away is no reason to stop
        let _ = if self.terminal {
            write!(out, "\r\x1b[K{text}")
        } else {
            writeln!(out, "{text}")
        };
        let _ = out.flush();
    }

    fn clear(&self) {
        if self.terminal && self.shown.is_some() {
            print!("\r\x1b[K");
            let _ = io::stdout().flush();
        }
    }
}

/// The last line of a log; of a build's, the last that says how far it is,
/// rather than a compiler's warning.
fn last_line(log: &Path) -> String {
    let length = fs::metadata(log).map_or(0, |m| m.len());
    let text = text_from(log, length.saturating_sub(1 << 14)).unwrap_or_default();
    let mut lines = text
        .rsplit(['\n', '\r'])
        .filter(|line| !line.trim().is_empty());
    let last = lines.clone().next().unwrap_or_default();
    let progress = lines.find(|line| line.starts_with('['));
    progress.unwrap_or(last).trim().replace('\x1b', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_started_program_is_waited_for_and_ended() {
        const LIMIT: Duration = Duration::from_secs(10);
        let dir = tempfile::tempdir().unwrap();
        let log = Log::new(dir.path().join("log")).unwrap();
        let mut running = log
            .start(&mut sh("echo ready at 7; exec sleep 100"))
            .unwrap();
        assert_eq!(running.wait_for("ready at ", LIMIT).unwrap(), "7");
        let said = running.wait_for("never", Duration::ZERO).unwrap_err();
        assert!(said.to_string().contains("did not say `never`"), "{said}");
        let process = format!("/proc/{}", running.child.id());
        assert!(Path::new(&process).exists());
        drop(running);
        assert!(!Path::new(&process).exists());

        let mut ended = log.start(&mut sh("echo sorry; exit 3")).unwrap();
        let said = ended.wait_for("ready at ", LIMIT).unwrap_err().to_string();
        assert!(
            said.contains("exit status: 3") && said.contains("sorry"),
            "{said}"
        );
    }
}
