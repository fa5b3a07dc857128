//! The stream of the probe: read as it was told, and nothing else believed.

use kvforge::capture::Part;
use kvforge_llama::probe::{ProbeError, Record, Stream};

const MAGIC: &[u8] = b"KVFPROB1";

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Kind, layer, three sizes, first position.
fn record(head: [u32; 6], payload: &[u8]) -> Vec<u8> {
    let mut bytes = words(&head);
    bytes.extend(words(&[0]));
    bytes.extend((payload.len() as u64).to_le_bytes());
    bytes.extend(payload);
    bytes
}

fn model() -> Vec<u8> {
    record([0; 6], b"\x2a\0\0\0\0\0\0\0a name")
}

fn rope(mode: u32) -> Vec<u8> {
    let mut payload = words(&[mode, 2, 4096]);
    payload.extend(floats(&[1e4, 1.0, 0.0, 1.0, 32.0, 1.0]));
    payload.extend(words(&[1, 777, 0]));
    if mode != u32::MAX {
        payload.extend(floats(&[0.5, 0.8, -0.8, 0.5, 1.0, 2.0, 3.0, 4.0]));
    }
    record([1, 3, 2, 0, 0, 0], &payload)
}

fn vectors(kind: u32) -> Vec<u8> {
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    record([kind, 3, 2, 3, 2, 100], &floats(&values))
}

fn end() -> Vec<u8> {
    record([7, 0, 0, 0, 0, 0], b"")
}

fn read(bytes: &[u8]) -> Result<Vec<Record>, ProbeError> {
    let mut stream = Stream::new(bytes)?;
    let mut records = vec![];
    while let Some(record) = stream.record()? {
        records.push(record);
    }
    assert_eq!(stream.record().unwrap(), None, "the end stays the end");
    Ok(records)
}

#[test]
fn records_are_read_as_they_were_told() {
    let scale = record([5, 3, 0, 0, 0, 0], &floats(&[0.125]));
    let left = record([6, 4, 0, 0, 0, 0], b"compressed keys");
    let parts = [MAGIC.to_vec(), model(), scale, rope(2), rope(u32::MAX)];
    let vectors = [vectors(2), vectors(3), vectors(4), left, end()];
    let records = read(&[parts.concat(), vectors.concat()].concat()).unwrap();
    let [model, scale, turned, plain, q, k, v, left] = &records[..] else {
        panic!("{records:?}");
    };
    let name = "a name".to_string();
    assert_eq!(*model, Record::Model { identity: 42, name });
    assert_eq!(
        *scale,
        Record::Scale {
            layer: 3,
            scale: 0.125
        }
    );
    let Record::Rope {
        layer: 3,
        head_dim: 2,
        rope,
        step,
        check_position: 777,
        check,
    } = turned
    else {
        panic!("{turned:?}");
    };
    assert_eq!(
        (rope.mode, rope.n_dims, rope.n_ctx_orig, rope.has_factors),
        (2, 2, 4096, true)
    );
    assert_eq!(
        (rope.freq_base, rope.beta_fast, rope.beta_slow),
        (1e4, 32.0, 1.0)
    );
    assert_eq!(
        (&step[..], &check[..]),
        (&[0.5, 0.8, -0.8, 0.5][..], &[1.0, 2.0, 3.0, 4.0][..])
    );
    assert!(
        matches!(plain, Record::Rope { step, check, .. } if step.is_empty() && check.is_empty())
    );
    for (found, part) in [(q, Part::Query), (k, Part::Key), (v, Part::Value)] {
        let values = (0..12).map(|i| i as f32).collect();
        let expected = Record::Vectors {
            layer: 3,
            part,
            n_heads: 3,
            head_dim: 2,
            first: 100,
            values,
        };
        assert_eq!(*found, expected);
    }
    let reason = "compressed keys".to_string();
    assert_eq!(*left, Record::LeftAlone { layer: 4, reason });
}

#[test]
fn what_stops_early_is_not_complete() {
    let whole = [MAGIC.to_vec(), model(), rope(2), vectors(3), end()].concat();
    assert_eq!(read(&whole).unwrap().len(), 3);
    for n in 0..whole.len() {
        let error = read(&whole[..n]).unwrap_err();
        assert!(matches!(error, ProbeError::EndedEarly), "{n}: {error}");
    }
}

#[test]
fn nothing_is_believed() {
    let error = read(b"ggml_log: something").unwrap_err();
    assert!(matches!(error, ProbeError::NotAStream { .. }), "{error}");
    let rope_of = |head_dim, n| record([1, 0, head_dim, 0, 0, 0], &vec![0; n]);
    let of_sizes =
        |sizes: [u32; 3], n| record([3, 0, sizes[0], sizes[1], sizes[2], 0], &vec![0; n]);
    // A payload that is announced and never comes takes no memory.
    let mut huge = of_sizes([4096, 4096, 65536], 0);
    let all = 4 * 4096_u64 * 4096 * 65536;
    huge.truncate(huge.len() - 8);
    huge.extend(all.to_le_bytes());
    let error = read(&[MAGIC, &model(), &huge].concat()).unwrap_err();
    assert!(matches!(error, ProbeError::EndedEarly), "{error}");
    for (bytes, about) in [
        (end(), "the model first"),
        ([model(), model()].concat(), "the model first, once"),
        (record([0; 6], b"short"), "8 to 4104 bytes"),
        ([model(), rope_of(0, 48)].concat(), "a head size"),
        ([model(), rope_of(u32::MAX, 48)].concat(), "a head size"),
        ([model(), rope_of(2, 47)].concat(), "48 to 80 bytes"),
        ([model(), rope_of(2, 64)].concat(), "80 bytes of RoPE"),
        ([model(), of_sizes([2, 0, 1], 0)].concat(), "from 1 to"),
        (
            [model(), of_sizes([2, 2, u32::MAX], 0)].concat(),
            "from 1 to",
        ),
        (
            [model(), of_sizes([2, 2, 2], 28)].concat(),
            "32 to 32 bytes",
        ),
        (
            [model(), record([5, 0, 0, 0, 0, 0], &floats(&[f32::NAN]))].concat(),
            "a finite scale",
        ),
        (
            [model(), record([5, 4096, 0, 0, 0, 0], &[0; 4])].concat(),
            "a layer up to",
        ),
        (
            [model(), record([6, 0, 0, 0, 0, 0], &[b'x'; 5000])].concat(),
            "0 to 4096 bytes",
        ),
        (
            [model(), record([7, 0, 0, 0, 0, 0], &[0])].concat(),
            "0 to 0 bytes",
        ),
        (
            [model(), record([8, 0, 0, 0, 0, 0], &[])].concat(),
            "a kind of record",
        ),
    ] {
        let error = read(&[MAGIC, &bytes].concat()).unwrap_err();
        assert!(
            matches!(error, ProbeError::Malformed { .. }),
            "{about}: {error}"
        );
        assert!(error.to_string().contains(about), "{about}: {error}");
    }
}
