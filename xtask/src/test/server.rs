//! A cache that lives, through llama-server: slots reused, saved and restored,
//! two requests at once, prompts whose middle goes, a draft model.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kvforge_formats::cache_formats;
use serde_json::{Value, json};

use super::centre::Calibrations;
use super::tree;
use crate::command::{Log, Running};
use crate::http;
use crate::measure::Bench;
use crate::places::Workshop;
use crate::report::Checked;

/// The types of the cache: what most people will choose.
const TYPE: &str = "tbq4_0";

/// Tokens that are generated for each prompt.
const TOKENS: u64 = 32;

/// How long a server may take to load the small model.
const START: Duration = Duration::from_secs(120);

const PLANETS: &str = "The planets of the solar system, in order of their distance from the sun, are Mercury, \
    Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune. The largest of them is";
const OTHERS: [&str; 3] = [
    "Water boils at a hundred degrees Celsius, and",
    "Once upon a time there was a king who had three daughters, and the youngest of them was so beautiful that",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
];

/// A prompt in three parts, of which the middle may go. Its end goes on with
/// certainty, whether or not it has seen the middle.
const BEGIN: &str = "Some lines of code follow.\n";
const MIDDLE: &str =
    "They were written on a rainy Sunday in a small town by the sea, before lunch.\n";
const END: &str = "for i in range(10):\\n    print(i)\\nfor i in range(10):\\n    print(i)\\n\
    for i in range(10):\\n    print(i)\\nfor i in range(10):\\n";

pub fn check(
    log: &Log,
    workshop: &Workshop,
    bench: &Bench<'_>,
    calibrations: &Calibrations,
) -> Result<Checked> {
    let folder = workshop.folder("test/slots")?;
    let own = calibrations.small.to_string_lossy();
    let foreign = calibrations.wide.to_string_lossy();
    let mut checks = Checks(0);
    windowed(log, bench, &mut checks).context("with the window of a context")?;
    shifted(log, bench, &mut checks).context("a prompt without its middle")?;
    for (centred, draft) in [
        (&[][..], &[][..]),
        (&["--kv-cal", &own], &["--kv-cal-draft", &own]),
    ] {
        let what = || format!("with {centred:?}");
        let expected = slots(log, bench, &folder, centred, &mut checks).with_context(what)?;
        let draft = [centred, draft].concat();
        drafted(log, bench, &draft, &expected, &mut checks).context("a draft model")?;
    }
    refused(log, bench, &foreign, &mut checks)?;
    Ok(Checked::new(checks.0, "checks"))
}

/// Checks that have passed.
struct Checks(usize);

impl Checks {
    fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) -> Result<()> {
        match holds {
            true => self.0 += 1,
            false => bail!("{}", what()),
        }
        Ok(())
    }

    fn same(&mut self, answer: &Answer, expected: &str, when: &str) -> Result<()> {
        self.expect(answer.text == expected, || {
            format!("{when}: expected `{expected}`, found `{}`", answer.text)
        })
    }
}

/// A running llama-server.
struct Server {
    running: Running,
    address: String,
}

/// What it says of a completion.
struct Answer {
    text: String,
    /// Tokens of the prompt that were in the cache, and that were evaluated.
    cached: u64,
    evaluated: u64,
    /// Milliseconds of generation.
    generation: f64,
    /// Tokens that the draft model proposed, and that were taken.
    drafted: u64,
    accepted: u64,
}

impl Server {
    fn start(log: &Log, bench: &Bench<'_>, kind: &str, more: &[&str]) -> Result<Self> {
        let mut command = bench.on("llama-server", kind, kind);
        command.args([
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "-c",
            "1024",
            "-fa",
            "on",
        ]);
        // what is reused must come from a slot, not from states kept aside
        command.args(["--parallel", "2", "--cache-ram", "0", "--no-ui"]);
        let mut running = log.start(command.args(more))?;
        let address = running.wait_for("listening on http://", START)?;
        Ok(Server { running, address })
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        match http::post(&self.address, path, body)? {
            (200, answer) => Ok(answer),
            (status, answer) => bail!("POST {path}: status {status}: {answer}"),
        }
    }

    /// Completes a prompt greedily in a slot.
    fn complete(&self, slot: u32, prompt: &str) -> Result<Answer> {
        let answer = self.post(
            "/completion",
            &json!({ "prompt": prompt, "id_slot": slot, "n_predict": TOKENS, "temperature": 0, "cache_prompt": true }),
        )?;
        let timings = &answer["timings"];
        let read = || {
            Some(Answer {
                text: answer["content"].as_str()?.into(),
                cached: timings["cache_n"].as_u64()?,
                evaluated: timings["prompt_n"].as_u64()?,
                generation: timings["predicted_ms"].as_f64()?,
                drafted: timings["draft_n"].as_u64().unwrap_or(0),
                accepted: timings["draft_n_accepted"].as_u64().unwrap_or(0),
            })
        };
        read().with_context(|| format!("an answer without text or timings: {answer}"))
    }

    /// Saves, restores or erases a slot; returns how many tokens that were.
    fn slot(&self, slot: u32, action: &str, file: &str) -> Result<u64> {
        let path = format!("/slots/{slot}?action={action}");
        let answer = self.post(&path, &json!({ "filename": file }))?;
        let count = ["n_saved", "n_restored", "n_erased"]
            .iter()
            .find_map(|name| answer[name].as_u64());
        count.with_context(|| format!("{path}: no number of tokens in {answer}"))
    }
}

/// Two slots that begin anew write the same text, with the window that contexts have by
/// themselves. What is reused has fewer exact copies, so that all else is judged without.
fn windowed(log: &Log, bench: &Bench<'_>, checks: &mut Checks) -> Result<()> {
    let server = Server::start(log, bench, TYPE, &["-lv", "4"])?;
    let said = server.running.printed()?;
    checks.expect(said.contains("kvforge: window of 32 tokens"), || {
        "a server does not say that it has a window".into()
    })?;
    let first = server.complete(0, PLANETS)?;
    let second = server.complete(1, PLANETS)?;
    let fresh = [&first, &second].map(|answer| answer.cached);
    checks.expect(fresh == [0, 0] && first.text.len() > 40, || {
        format!("{fresh:?} tokens cached, text `{}`", first.text)
    })?;
    checks.same(&second, &first.text, "in the other slot")
}

/// Without a window of exact tokens.
const BARE: [&str; 2] = ["--kv-window", "0"];

/// Slots reused, saved, restored, used at once. Returns the text of [`PLANETS`].
fn slots(
    log: &Log,
    bench: &Bench<'_>,
    folder: &Path,
    more: &[&str],
    checks: &mut Checks,
) -> Result<String> {
    // the server puts the name behind this as it is
    let path = format!("{}/", folder.display());
    let options = [&["--slot-save-path", &path], &BARE[..], more].concat();
    let server = Server::start(log, bench, TYPE, &options)?;

    let fresh = server.complete(0, PLANETS)?;
    let (expected, tokens) = (fresh.text, fresh.evaluated);
    checks.expect(fresh.cached == 0 && expected.len() > 40, || {
        format!(
            "a fresh slot: {} tokens from the cache, text `{expected}`",
            fresh.cached
        )
    })?;
    for other in OTHERS {
        let answer = server.complete(0, other)?;
        checks.expect(answer.text != expected, || {
            format!("`{other}` gives the same text")
        })?;
    }
    let again = server.complete(0, PLANETS)?;
    checks.same(&again, &expected, "after other prompts on the slot")?;
    let reused = server.complete(0, PLANETS)?;
    checks.same(&reused, &expected, "with the prompt still in the slot")?;
    let is_whole = |answer: &Answer| answer.cached == tokens - 1 && answer.evaluated == 1;
    checks.expect(is_whole(&reused), || {
        format!(
            "{} tokens reused and {} evaluated of {tokens}",
            reused.cached, reused.evaluated
        )
    })?;

    let saved = server.slot(0, "save", "slot.state")?;
    let erased = server.slot(0, "erase", "")?;
    let restored = server.slot(0, "restore", "slot.state")?;
    checks.expect(saved >= tokens && [erased, restored] == [saved; 2], || {
        format!(
            "{saved} tokens saved, {erased} erased, {restored} restored, of a prompt of {tokens}"
        )
    })?;
    let after = server.complete(0, PLANETS)?;
    checks.same(&after, &expected, "from a restored slot")?;
    checks.expect(is_whole(&after), || {
        format!("only {} tokens came with the slot", after.cached)
    })?;
    changed_file(&server, folder, checks)?;
    let after = server.complete(0, PLANETS)?;
    checks.same(&after, &expected, "after a file that was refused")?;
    checks.expect(after.cached == 0, || {
        format!("{} tokens of a refused file", after.cached)
    })?;

    at_once(&server, &expected, checks).context("two requests at once")?;
    Ok(expected)
}

/// A file whose tag names another format is no state of this cache.
fn changed_file(server: &Server, folder: &Path, checks: &mut Checks) -> Result<()> {
    let mut bytes = fs::read(folder.join("slot.state"))?;
    let tag = bytes.windows(TYPE.len()).position(|w| w == TYPE.as_bytes());
    bytes[tag.with_context(|| format!("a saved slot does not name {TYPE}"))?] ^= 1;
    fs::write(folder.join("changed.state"), bytes)?;
    let body = json!({ "filename": "changed.state" });
    let (status, answer) = http::post(&server.address, "/slots/0?action=restore", &body)?;
    checks.expect(status == 400, || {
        format!("a changed file: status {status}: {answer}")
    })?;
    let said = server.running.printed()?;
    checks.expect(said.contains("kvforge: the saved state holds"), || {
        "a changed file is refused, but the log does not say why".into()
    })
}

/// Two slots generate at the same time what each does alone.
fn at_once(server: &Server, planets: &str, checks: &mut Checks) -> Result<()> {
    let other = server.complete(1, OTHERS[1])?.text;
    // from the first token of the prompt on, in both
    for slot in [0, 1] {
        server.slot(slot, "erase", "")?;
    }
    let started = Instant::now();
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| server.complete(0, PLANETS));
        let second = server.complete(1, OTHERS[1]);
        (first.join().expect("a request does not panic"), second)
    });
    let (first, second) = (first?, second?);
    let wall = started.elapsed().as_secs_f64() * 1e3;
    checks.same(&first, planets, "slot 0")?;
    checks.same(&second, &other, "slot 1")?;
    let both = first.generation + second.generation;
    checks.expect(both > 1.1 * wall, || {
        format!("one after the other: {both:.0} ms of generation within {wall:.0} ms")
    })
}

/// The end of a prompt is reused behind a middle that went, by shifting its keys:
/// with f16, as a control, and with a compressed cache, the text is a fresh prompt's.
fn shifted(log: &Log, bench: &Bench<'_>, checks: &mut Checks) -> Result<()> {
    for kind in ["f16", TYPE] {
        let server = Server::start(log, bench, kind, &["--cache-reuse", "8", BARE[0], BARE[1]])?;
        server.complete(0, &format!("{BEGIN}{MIDDLE}{END}"))?;
        let short = format!("{BEGIN}{END}");
        let answer = server.complete(0, &short)?;
        let fresh = server.complete(1, &short)?;
        checks.same(&answer, &fresh.text, kind)?;
        let tokens = fresh.evaluated;
        let reused = fresh.cached == 0 && answer.evaluated < 8 && answer.cached > tokens - 8;
        checks.expect(reused, || {
            format!(
                "{kind}: only {} tokens of {tokens} were reused",
                answer.cached
            )
        })?;
    }
    Ok(())
}

/// A draft model with a compressed cache changes the speed and not the text.
fn drafted(
    log: &Log,
    bench: &Bench<'_>,
    more: &[&str],
    expected: &str,
    checks: &mut Checks,
) -> Result<()> {
    let model = bench.model.to_string_lossy();
    let draft = [
        "--spec-type",
        "draft-simple",
        "-md",
        &model,
        "-ctkd",
        TYPE,
        "-ctvd",
        TYPE,
    ];
    let server = Server::start(log, bench, TYPE, &[&draft, &BARE[..], more].concat())?;
    let answer = server.complete(0, PLANETS)?;
    checks.same(&answer, expected, "with a draft model")?;
    // the draft model is the model itself, so it is nearly always right
    let (drafted, accepted) = (answer.drafted, answer.accepted);
    checks.expect(drafted > TOKENS / 2 && 2 * accepted > drafted, || {
        format!("{accepted} of {drafted} drafted tokens were taken")
    })
}

/// A draft cache of a type that does not fit the draft model's heads, and the
/// calibration of another model.
fn refused(log: &Log, bench: &Bench<'_>, foreign: &str, checks: &mut Checks) -> Result<()> {
    let fits = |name: &str| tree::fitting().iter().any(|format| format.name == name);
    let wide = cache_formats().find(|format| !fits(format.name));
    let wide = wide.context("every format fits the small model")?.name;
    let model = bench.model.to_string_lossy();
    let other_heads = format!("K cache type {wide} takes heads");
    for (options, words) in [
        (["-ctkd", wide], other_heads.as_str()),
        (["--kv-cal-draft", foreign], "made for another model"),
        (["--kv-cal", foreign], "made for another model"),
    ] {
        let draft = ["--spec-type", "draft-simple", "-md", &model];
        match Server::start(log, bench, TYPE, &[&draft[..], &options].concat()) {
            Ok(_) => bail!("a server starts with {options:?}, which do not fit the model"),
            Err(error) => {
                let said = format!("{error:#}");
                checks.expect(said.contains(words), || said)?;
            }
        }
    }
    Ok(())
}
