//! A llama-perplexity for `kvforge eval`: a script that prints what the real one does, takes
//! down how it was called, and fails where it is told to.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use kvforge::calibration::{Builder, Rope, Turning};
use serde_json::Value;

/// A token is a word. `mode` holds what to do with which type of K.
const SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$0"); kl=; cal=; window=; first=
while [ $# -gt 0 ]; do case $1 in
    --kl-divergence) kl=1; shift;;
    -ctk) k=$2; shift 2;; -ctv) v=$2; shift 2;; -c) ctx=$2; shift 2;; -f) text=$2; shift 2;;
    --chunks) chunks=$2; shift 2;; --kl-divergence-base) base=$2; shift 2;;
    --kv-cal) cal=$2; shift 2;; -m|-t|-fa|-lv) shift 2;;
    --kv-window) window=$2; shift 2;; --kv-first) first=$2; shift 2;;
    *) echo "error: invalid argument: $1"; exit 1;;
esac; done
tokens=$(wc -w < "$text")
if [ -z "$kl" ] && [ "$tokens" -lt $((2 * ctx)) ]; then
    echo "E perplexity: the data file you provided tokenizes to only $tokens tokens"; exit 0
fi
exact=${window:+ $window+$first}; [ "$exact" = " 0+0" ] && exact=
echo "$k $v${cal:+ centred}$exact${kl:+ compared} $(basename "$text")" >> "$here/calls"
mode=$(cat "$here/mode" 2>/dev/null)
if [ -z "$kl" ]; then
    have=$((tokens / ctx)); [ "$have" -gt "$chunks" ] && have=$chunks
    ppl=53.5990; [ "$(basename "$text")" = copy.txt ] && ppl=1.0500
    [ "$mode" = "forgets copy" ] && ppl=53.5990
    echo logits > "$base"
    echo "I perplexity: calculating perplexity over $have chunks, n_ctx=$ctx, batch_size=2048, n_seq=2"
    [ "$mode" = "cut base" ] || echo "I Final estimate: PPL = $ppl +/- 0.75204"
    exit 0
fi
[ "$(cat "$base")" = logits ] || { echo "E no logits"; exit 0; }
[ "$k" = q4_polar ] && { echo "0.1 E init: K cache type q4_polar takes heads of 128"; exit 1; }
case $k in f16) kld="-0.000001"; [ "$(basename "$text")" = copy.txt ] && kld=0.000001;; q8_0) kld=0.004000;; q4_0) kld=0.040000;; *) kld=0.060000;; esac
[ -n "$cal" ] && kld=0.020000
[ -n "$cal" ] && [ "$mode" != uncentred ] && echo "I kvforge: keys centred in 30 of 30 layers for 64 positions"
window() { echo "I kvforge: window of $1 tokens, and the first $2, of every sequence: $3 MiB of exact copies beside 18.28 MiB of cache"; }
[ "$mode" = windowless ] && echo "I kvforge: no window: this cache is not one of plain keys and values"
case "$k $v" in
    *tbq*|*polar*)
        [ "$mode" = windowless ] || window 32 0 0.25
        if [ "$mode" = deaf ] || [ "$mode" = windowless ]; then :; elif [ -n "$exact" ]; then window $window $first 1.25; kld=0.010000
        elif [ -n "$window" ]; then echo "I kvforge: no window: all tokens are read from the cache"; fi;;
    *) [ -n "$window$first" ] && { echo "error: a window for types of llama.cpp"; exit 1; };;
esac
case $mode in
    "nan $k") kld=nan;;
    "die $k") kill -9 $$;;
    "hang $k") echo "I kl_divergence: 2.00 seconds per pass - ETA 0.05 minutes"; sleep 60;;
esac
echo "I llama_kv_cache:        CPU KV buffer size =    18.28 MiB"
echo "Mean PPL(Q)                   :  56.094258 ±   3.909967"
echo "Mean PPL(Q)/PPL(base)         :   1.046556 ±   0.008445"
echo "Mean    KLD:   $kld ±   0.001000"
echo "Maximum KLD:   1.130937"
echo "99.0%   KLD:   0.287537"
echo "Median  KLD:   0.039223"
[ "$mode" = "cut $k" ] && exit 0
echo "RMS Δp    :  4.621 ± 0.225 %"
echo "Same top p: 84.785 ± 0.795 %"
"#;

/// A calibration of one layer without RoPE, whose mean key is this number.
pub fn means(value: f32) -> Vec<u8> {
    let mut builder = Builder::new(0, "model");
    let turning = Turning {
        rope: Rope::NONE,
        step: &[],
        check_position: 0,
        check: &[],
    };
    let values = vec![value; 5 * 32];
    builder.layer(0, 32, turning);
    builder.keys(0, 1, 0, &values).unwrap();
    builder.queries(0, 1, 0, &values).unwrap();
    builder.finish().unwrap().bytes().to_vec()
}

/// A tree with that program, a model and a text.
pub struct Place {
    pub tree: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        let tree = super::common::hollow_tree();
        let place = Place { tree };
        fs::create_dir_all(place.at("build-kvforge/bin")).unwrap();
        let program = place.at("build-kvforge/bin/llama-perplexity");
        fs::write(&program, SCRIPT).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(place.at("build-kvforge/bin/libggml-base.so"), "kernels").unwrap();
        fs::write(place.at("model.gguf"), "weights").unwrap();
        fs::write(place.at("text.txt"), "word ".repeat(1024)).unwrap();
        place
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.tree.path().join(name)
    }

    pub fn mode(&self, mode: &str) {
        fs::write(self.at("build-kvforge/bin/mode"), mode).unwrap();
    }

    /// What was called since the last time that it was asked.
    pub fn calls(&self) -> Vec<String> {
        let path = self.at("build-kvforge/bin/calls");
        let calls = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        calls.lines().map(str::to_string).collect()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        self.command_on("text.txt", args)
    }

    /// The same on another text.
    pub fn command_on(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvforge"));
        command.current_dir(self.tree.path());
        command.args([
            "eval",
            "--tree",
            ".",
            "--model",
            "model.gguf",
            "--text",
            name,
        ]);
        command.args([
            "-o",
            "out",
            "--ctx",
            "256",
            "--chunks",
            "2",
            "--threads",
            "1",
        ]);
        command.args(args).env_remove("KVFORGE_ISA");
        command
    }

    pub fn eval(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    pub fn report(&self) -> Value {
        serde_json::from_slice(&fs::read(self.at("out/eval.json")).unwrap()).unwrap()
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
