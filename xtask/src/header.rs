//! The C header, generated from the C ABI crate and checked in.

use anyhow::{Context as _, Result};
use cbindgen::{Builder, Config};

use crate::places::root;

/// The text of the header.
pub fn generate() -> Result<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_becomes_plain() {
        let rust = "// See [`kvf_x`], [`kvf_y`](fn@kvf_y).\n//\n// [`kvf_x`]: crate::kvf_x\n#define A 1\n//\n// # Safety\nint x[3];\n";
        let c = "// See kvf_x, kvf_y.\n#define A 1\n//\n// Safety:\nint x[3];\n";
        assert_eq!(for_c(rust), c);
    }
}
