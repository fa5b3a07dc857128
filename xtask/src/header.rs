//! The C header, generated from the C ABI crate and checked in.

use std::fs;

use anyhow::{Context as _, Result, bail};
use cbindgen::{Builder, Config};

use crate::places::{root, shown};

const HEADER: &str = "crates/capi/include/kvforge.h";

/// Writes the header, or, if `check`, only says whether it is up to date.
pub fn write(check: bool) -> Result<String> {
    let path = root().join(HEADER);
    let text = generate()?;
    let before = fs::read_to_string(&path).ok();
    if before.as_deref() == Some(text.as_str()) {
        return Ok(format!("{} is up to date", shown(&path)));
    }
    if check {
        let line = differing_line(before.as_deref().unwrap_or_default(), &text);
        bail!(
            "{}:{line} is not what crates/capi says; run `cargo xtask gen`",
            shown(&path)
        );
    }
    fs::create_dir_all(path.parent().expect("in a folder"))?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(format!("wrote {}", shown(&path)))
}

fn generate() -> Result<String> {
    let capi = root().join("crates/capi");
    let config = Config::from_file(capi.join("cbindgen.toml")).map_err(anyhow::Error::msg)?;
    let bindings = Builder::new()
        .with_crate(capi)
        .with_config(config)
        .generate()
        .context("cbindgen cannot read crates/capi")?;
    let mut bytes = Vec::new();
    bindings.write(&mut bytes);
    Ok(for_c(&String::from_utf8(bytes)?))
}

/// Turns Rust's way of writing documentation into C's: links become plain
/// names, headings become words.
fn for_c(header: &str) -> String {
    let is_link_target =
        |line: &&str| line.trim_start().starts_with("// [`") && line.contains("`]: ");
    let mut text = String::new();
    for line in header.lines().filter(|line| !is_link_target(line)) {
        let line = line.replace("// # Safety", "// Safety:");
        let mut rest = line.trim_end();
        while let Some((before, link)) = rest.split_once("[`") {
            let Some((name, after)) = link.split_once("`]") else {
                break;
            };
            text += before;
            text += name;
            // [`name`](where)
            rest = match after
                .strip_prefix('(')
                .and_then(|place| place.split_once(')'))
            {
                Some((_, after)) => after,
                None => after,
            };
        }
        text += rest;
        text.push('\n');
    }
    text.replace("//\n//\n", "//\n")
        .replace("//\n#define", "#define")
}

/// The first line, counted from 1, in which two texts differ.
fn differing_line(a: &str, b: &str) -> usize {
    1 + a.lines().zip(b.lines()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_becomes_plain() {
        let rust = "// See [`kvf_x`], [`kvf_y`](fn@kvf_y).\n//\n// [`kvf_x`]: crate::kvf_x\n#define A 1\n//\n// # Safety\nint x[3];\n";
        let c = "// See kvf_x, kvf_y.\n#define A 1\n//\n// Safety:\nint x[3];\n";
        assert_eq!(for_c(rust), c);
    }

    #[test]
    fn the_differing_line_is_found() {
        assert_eq!(differing_line("a\nb\nc\n", "a\nx\nc\n"), 2);
        assert_eq!(differing_line("", "a\n"), 1);
    }
}
