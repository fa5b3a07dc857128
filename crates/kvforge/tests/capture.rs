//! Captures built from vectors token by token are read back as they were.

use kvforge::capture::{Builder, Capture, Part};

const DIM: usize = 4;

/// A vector that says where it belongs.
fn value(layer: usize, part: Part, head: usize, position: usize) -> f32 {
    (((layer * 3 + part as usize) * 10 + head) * 1000 + position) as f32
}

fn vectors(layer: usize, part: Part, heads: usize, positions: std::ops::Range<usize>) -> Vec<f32> {
    let of = |p| (0..heads).flat_map(move |h| [value(layer, part, h, p); DIM]);
    positions.flat_map(of).collect()
}

/// 600 tokens in two parts and a second sequence, six query heads for two of keys.
fn filled(layers: &[usize]) -> Builder {
    let mut builder = Builder::new("m", layers);
    for layer in [0, 4, 9] {
        builder.scale(layer, 0.5);
        for (part, heads) in [(Part::Key, 2), (Part::Value, 2), (Part::Query, 6)] {
            for positions in [0..512, 512..600, 0..7] {
                let shape = [heads, DIM];
                let values = vectors(layer, part, heads, positions.clone());
                builder
                    .add(layer, part, shape, positions.start, &values)
                    .unwrap();
            }
        }
    }
    builder
}

#[test]
fn a_capture_is_read_as_it_was_built() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv.safetensors");
    filled(&[9, 0]).finish().unwrap().write(&path).unwrap();
    let c = Capture::read(&path).unwrap();
    assert_eq!(
        (c.model.as_str(), c.head_dim, c.n_heads, c.n_kv_heads),
        ("m", DIM, 6, 2)
    );
    assert_eq!((c.n_tokens, c.scale), (600, 0.5));
    let positions: Vec<usize> = (0..128).map(|i| 300 + 2 * i).collect();
    assert_eq!(c.q_positions, positions);
    assert_eq!(c.layers.iter().map(|l| l.index).collect::<Vec<_>>(), [0, 9]);
    for l in &c.layers {
        let at = |x: &[f32], head: usize, n: usize, i: usize| x[(head * n + i) * DIM + DIM - 1];
        for (i, p) in positions.iter().enumerate() {
            assert_eq!(at(&l.q, 5, 128, i), value(l.index, Part::Query, 5, *p));
        }
        for p in 0..600 {
            assert_eq!(at(&l.k, 1, 600, p), value(l.index, Part::Key, 1, p));
            assert_eq!(at(&l.v, 0, 600, p), value(l.index, Part::Value, 0, p));
        }
        assert_eq!(l.k_mean_other_text, None);
    }
}

#[test]
fn what_makes_no_capture_is_said() {
    let says = |result: Result<Capture, kvforge::Error>, about: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(about), "{text}");
    };
    says(
        filled(&[0, 5, 6]).finish(),
        "of layers 5, 6, found those of layers 0",
    );
    says(
        Builder::new("m", &[]).finish(),
        "queries, keys and values of a layer",
    );
    let mut other_scale = filled(&[]);
    other_scale.scale(4, 0.25);
    says(other_scale.finish(), "layer 4 with");
    let mut shorter = Builder::new("m", &[]);
    for part in [Part::Key, Part::Value, Part::Query] {
        let n = if part == Part::Query { 3 } else { 4 };
        shorter
            .add(0, part, [1, DIM], 0, &vectors(0, part, 1, 0..n))
            .unwrap();
    }
    shorter.scale(0, 1.0);
    says(shorter.finish(), "as many keys as values and queries");
    let mut builder = filled(&[]);
    let mut add = |shape, first, values: &[f32]| {
        builder
            .add(0, Part::Key, shape, first, values)
            .unwrap_err()
            .to_string()
    };
    assert!(add([2, DIM], 601, &[0.0; 2 * DIM]).contains("from position 600"));
    assert!(add([1, DIM], 600, &[0.0; DIM]).contains("1 heads"));
    assert!(add([2, DIM], 600, &[0.0; DIM]).contains("4 values"));
    assert!(add([2, DIM], 600, &[f32::INFINITY; 2 * DIM]).contains("finite key vectors"));
}
