//! As much HTTP as it takes to talk to a server on this machine.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// An answer that takes longer than this does not come.
const LIMIT: Duration = Duration::from_secs(300);

/// Posts JSON to `address` (such as `127.0.0.1:8080`), and returns the status and
/// the JSON of the answer.
pub fn post(address: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
    let answer = exchange(address, path, &body.to_string());
    let answer = answer.with_context(|| format!("POST {path} to {address}"))?;
    parse(&answer).with_context(|| format!("the answer to POST {path}: {answer}"))
}

fn exchange(address: &str, path: &str, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes)?)
}

fn parse(answer: &str) -> Result<(u16, Value)> {
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of headers")?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status.and_then(|s| s.parse().ok()).context("no status")?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then_some(value.trim())
    });
    let length: usize = length.context("no Content-Length")?.parse()?;
    if body.len() != length {
        bail!("{} bytes came of {length}", body.len());
    }
    Ok((status, serde_json::from_str(body)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_all_of_its_body() {
        let whole = "HTTP/1.1 400 Bad Request\r\ncontent-length: 7\r\n\r\n{\"a\":1}";
        assert_eq!(parse(whole).unwrap(), (400, serde_json::json!({ "a": 1 })));
        for broken in [
            &whole[..whole.len() - 1],
            "HTTP/1.1 200 OK\r\n\r\n{}",
            "HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
            "",
        ] {
            assert!(parse(broken).is_err(), "{broken}");
        }
    }
}
