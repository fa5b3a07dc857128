//! Centred keys: calibrations of both models, RoPE of every kind against ggml's
//! own, and a cache that lives with its centre: tests/llama/{rope.cpp,centre.c}.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{capi, sessions};
use crate::command::Log;
use crate::kvforge::{Kvforge, Tree};
use crate::places::Workshop;
use crate::report::Checked;

/// Calibrations of the two models.
pub struct Calibrations {
    pub small: PathBuf,
    pub wide: PathBuf,
}

/// Calibrates both models, as a user would.
pub fn calibrate(
    log: &Log,
    workshop: &Workshop,
    kvforge: &Kvforge,
    tree: &Tree,
    [small, wide]: [&Path; 2],
) -> Result<Calibrations> {
    let folder = workshop.folder("test/calibrations")?;
    let run = |model: &Path, name: &str| {
        let file = folder.join(name);
        log.run(
            Command::new(kvforge.program())
                .arg("calibrate")
                .arg("--tree")
                .arg(&tree.root)
                .arg("--model")
                .arg(model)
                .arg("-o")
                .arg(&file),
        )?;
        anyhow::Ok(file)
    };
    Ok(Calibrations {
        small: run(small, "small.kvcal")?,
        wide: run(wide, "wide.kvcal")?,
    })
}

/// Runs the programs on both models; the other's calibration is the foreign one.
pub fn check(
    log: &Log,
    workshop: &Workshop,
    tree: &Tree,
    [small, wide]: [&Path; 2],
    calibrations: &Calibrations,
) -> Result<Checked> {
    let mut checked = Checked::new(0, "checks");
    let rope = sessions::build(log, workshop, tree, "rope.cpp")?;
    checked.add(capi::checks(&log.run(&mut Command::new(rope))?.stdout)?);

    let program = sessions::build(log, workshop, tree, "centre.c")?;
    let folder = workshop.folder("test/sessions/states")?;
    let Calibrations {
        small: own,
        wide: other,
    } = calibrations;
    for (model, own, foreign) in [(small, own, other), (wide, other, own)] {
        let mut command = Command::new(&program);
        command.arg(model).arg(own).arg(foreign).arg(&folder);
        let printed = log
            .run(&mut command)
            .with_context(|| format!("{}", model.display()))?;
        checked.add(capi::checks(&printed.stdout)?);
    }

    for (name, options) in [
        (
            "llama-completion",
            &["-p", "x", "-n", "1", "-c", "64", "-no-cnv", "-lv", "4"][..],
        ),
        ("llama-bench", &["-p", "8", "-n", "0", "-r", "1", "-v"]),
    ] {
        checked.add(options_of(log, tree, name, options, small, own, other)?);
    }

    // everything that a session does, with keys centred: a type of ours, and one of
    // llama.cpp's behind its own rotation; the text of the wide model hangs on how
    // sums are rounded
    let program = sessions::build(log, workshop, tree, "sessions.c")?;
    let cases: [(&Path, &Path, &str, &[&str]); 3] = [
        (small, own, "tbq4_0", &[]),
        (small, own, "q8_0", &[]),
        (wide, other, "tbq4_0", &["coarse"]),
    ];
    for (model, own, name, more) in cases {
        let mut command = Command::new(&program);
        command
            .arg(model)
            .args([name, name])
            .arg(&folder)
            .args(more);
        let printed = log
            .run(command.arg(own))
            .with_context(|| format!("centred {name}"))?;
        checked.add(capi::checks(&printed.stdout)?);
    }
    Ok(checked)
}

/// A program takes a calibration, and none that is not there or another model's.
fn options_of(
    log: &Log,
    tree: &Tree,
    name: &str,
    options: &[&str],
    model: &Path,
    own: &Path,
    foreign: &Path,
) -> Result<Checked> {
    let missing = foreign.with_extension("missing");
    let cases = [
        (own, 0, "kvforge: keys centred in 30 of 30 layers"),
        (foreign, 1, "it was made for another model"),
        (&missing, 1, "it cannot be opened"),
    ];
    for (file, code, words) in cases {
        let mut command = tree.built(name);
        command.arg("-m").arg(model).args(options);
        command.args(["-ctk", "q4_0", "--kv-cal"]).arg(file);
        let (status, printed) = log.run_any(&mut command)?;
        if status.code() != Some(code) || !printed.log.contains(words) {
            bail!("{name}: expected exit code {code} and `{words}`, found {status}");
        }
    }
    Ok(Checked::new(cases.len(), "checks"))
}
