//! Codecs, counters and facts through the C ABI: every bad argument has
//! its status and writes nothing; good ones do what the Rust functions behind
//! them do.

mod common;

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

use common::*;
use kvforge_capi::*;
use kvforge_formats::{Domain, FORMATS, FormatSpec, q4_polar};

type Encode =
    unsafe extern "C" fn(u32, u32, *const f32, *mut c_void, usize, u32, *mut usize) -> i32;

/// Which of a format's reference encoders.
type Reference = fn(&FormatSpec) -> kvforge_formats::Encode;

/// The two encoders, and the references that they must equal.
const ENCODERS: [(Encode, Reference); 2] = [
    (kvf_encode, |spec| spec.encode),
    (kvf_encode_best, |spec| spec.encode_best),
];

/// The instruction set of the kernel that serves and counts an operation.
fn counted(spec: &FormatSpec, op: u32, isa: u32) -> u32 {
    let name = text(kvf_kernel_name(spec.id, op, isa));
    match name.ends_with("/scalar") {
        true => KVF_ISA_SCALAR,
        false => isa,
    }
}

#[test]
fn encoders_check_their_arguments() {
    for (isa, spec) in isas().flat_map(|isa| FORMATS.iter().map(move |spec| (isa, spec))) {
        let n = 3 * spec.block_len;
        let x = random(n, 6);
        let mut bytes = vec![0xee_u8; 3 * spec.block_bytes];
        let mut bad = usize::MAX;
        let (x, p, id) = (floats(&x), bytes.as_mut_ptr().cast(), spec.id);
        let misaligned = x.wrapping_byte_add(1);
        let huge = usize::MAX / spec.block_len * spec.block_len;
        for (encode, _) in ENCODERS {
            for (ty, isa, x, p, n, status) in [
                (77, isa, x, p, n, KVF_BAD_TYPE),
                (KVF_F16, isa, x, p, n, KVF_BAD_TYPE),
                (KVF_Q4_POLAR_RESIDUAL, isa, x, p, n, KVF_BAD_TYPE),
                (id, 9, x, p, n, KVF_UNSUPPORTED),
                (id, isa, null(), p, n, KVF_NULL),
                (id, isa, x, null_mut(), n, KVF_NULL),
                (id, isa, x, p, n - 1, KVF_BAD_SHAPE),
                (id, isa, x, p, huge, KVF_BAD_SHAPE),
                (id, isa, misaligned, p, n - spec.block_len, KVF_BAD_SHAPE),
            ] {
                // SAFETY: pointers are null, misaligned, or lead to enough memory.
                let found = unsafe { encode(ty, isa, x, p, n, 0, &mut bad) };
                assert_eq!(found, status, "{}", spec.name);
            }
        }
        // SAFETY: as above.
        unsafe {
            assert_eq!(kvf_poison(77, p, n), KVF_BAD_TYPE);
            assert_eq!(kvf_poison(id, null_mut(), n), KVF_NULL);
            assert_eq!(kvf_poison(id, p, n - 1), KVF_BAD_SHAPE);
        }
        assert!(bytes.iter().all(|b| *b == 0xee));
        assert_eq!(bad, usize::MAX);
    }
}

#[test]
fn decoders_check_their_arguments() {
    for (isa, spec) in isas().flat_map(|isa| FORMATS.iter().map(move |spec| (isa, spec))) {
        let x = random(3 * spec.block_len, 6);
        let (good, coded) = (encoded(spec.id, &x), 3 * spec.len_in(Domain::Rotated));
        let mut y = vec![RUBBISH; coded];
        let (b, y_ptr, n, id) = (good.as_ptr().cast(), y.as_mut_ptr(), x.len(), spec.id);
        let misaligned = y_ptr.wrapping_byte_add(3);
        let block = spec.len_in(Domain::Rotated);
        for (ty, isa, domain, b, y, n, status) in [
            (0, isa, KVF_ORIGINAL, b, y_ptr, n, KVF_BAD_TYPE),
            (id, 3, KVF_ORIGINAL, b, y_ptr, n, KVF_UNSUPPORTED),
            (id, isa, 2, b, y_ptr, n, KVF_BAD_TYPE),
            (id, isa, KVF_ROTATED, null(), y_ptr, coded, KVF_NULL),
            (id, isa, KVF_ROTATED, b, null_mut(), coded, KVF_NULL),
            (id, isa, KVF_ORIGINAL, b, y_ptr, n - 1, KVF_BAD_SHAPE),
            (
                id,
                isa,
                KVF_ROTATED,
                b,
                y_ptr,
                coded - block / 2,
                KVF_BAD_SHAPE,
            ),
            (KVF_Q8_0, isa, KVF_ROTATED, b, y_ptr, 33, KVF_BAD_SHAPE),
            (
                KVF_Q4_POLAR_RESIDUAL,
                isa,
                KVF_ROTATED,
                b,
                y_ptr,
                64,
                KVF_BAD_SHAPE,
            ),
            (
                KVF_F16,
                isa,
                KVF_ORIGINAL,
                b,
                y_ptr,
                usize::MAX / 2,
                KVF_BAD_SHAPE,
            ),
            (id, isa, KVF_ROTATED, b, misaligned, block, KVF_BAD_SHAPE),
        ] {
            // SAFETY: pointers are null, misaligned, or lead to enough memory.
            let found = unsafe { kvf_decode(ty, isa, domain, b, y, n, 0) };
            assert_eq!(found, status, "{}", spec.name);
        }
        let (out, q) = (y_ptr, floats(&x));
        let misaligned = q.wrapping_byte_add(1);
        for (ty, isa, b, q, n, out, status) in [
            (KVF_Q8_0, isa, b, q, n, out, KVF_BAD_TYPE),
            (id, 4, b, q, n, out, KVF_UNSUPPORTED),
            (id, isa, null(), q, n, out, KVF_NULL),
            (id, isa, b, null(), n, out, KVF_NULL),
            (id, isa, b, q, n, null_mut(), KVF_NULL),
            (id, isa, b, q, n - 24, out, KVF_BAD_SHAPE),
            (
                id,
                isa,
                b,
                misaligned,
                n - spec.block_len,
                out,
                KVF_BAD_SHAPE,
            ),
        ] {
            // SAFETY: as above.
            let found = unsafe { kvf_dot(ty, isa, b, q, n, out, 0) };
            assert_eq!(found, status, "{}", spec.name);
        }
        assert!(y.iter().all(|v| *v == RUBBISH));
    }
}

#[test]
fn encoders_do_what_the_references_do() {
    for (isa, spec) in isas().flat_map(|isa| FORMATS.iter().map(move |spec| (isa, spec))) {
        let n = 3 * spec.block_len;
        for (encode, reference) in ENCODERS {
            let mut x = random(n, 7);
            let mut good = vec![0; 3 * spec.block_bytes];
            reference(spec)(&x, &mut good).unwrap();
            // An odd address: bytes need no alignment.
            let mut bytes = vec![0xee_u8; good.len() + 1];
            let mut run = |x: &[f32], bad: *mut usize| {
                bytes.fill(0xee);
                let p = bytes[1..].as_mut_ptr().cast();
                // SAFETY: pointers are null or lead to enough memory.
                let status = unsafe { encode(spec.id, isa, floats(x), p, n, 0, bad) };
                (status, bytes[1..].to_vec())
            };
            let name = spec.name;
            assert_eq!(run(&x, null_mut()), (KVF_OK, good.clone()), "{name}");

            // Blocks before a bad one are written, it and later ones are not.
            let block = 2 * spec.block_len;
            for (value, index, status) in [
                (f32::NAN, block + 6, KVF_NON_FINITE),
                (f32::INFINITY, block + 6, KVF_NON_FINITE),
                (f32::MAX, block, KVF_SCALE_OVERFLOW),
            ] {
                x[block..].fill(1.0);
                x[block + 6] = value;
                // The length of one such value may still fit a bf16 scale.
                if value == f32::MAX {
                    x[block..].fill(value);
                }
                let mut bad = 0;
                let (found, bytes) = run(&x, &mut bad);
                assert_eq!((found, bad), (status, index), "{name}");
                let written = 2 * spec.block_bytes;
                assert_eq!(bytes[..written], good[..written], "{name}");
                assert!(bytes[written..].iter().all(|b| *b == 0xee), "{name}");
                assert_eq!(run(&x, null_mut()).0, status, "{name}");
            }
        }
    }
}

#[test]
fn decoders_do_what_the_references_do() {
    for (isa, spec) in isas().flat_map(|isa| FORMATS.iter().map(move |spec| (isa, spec))) {
        let x = random(3 * spec.block_len, 7);
        let mut bytes = encoded(spec.id, &x);
        let decode = |ty, domain: (u32, Domain), bytes: &[u8]| {
            let mut y = vec![RUBBISH; 3 * spec.len_in(domain.1)];
            let (b, p) = (bytes.as_ptr().cast(), y.as_mut_ptr());
            // SAFETY: pointers lead to enough memory.
            let status = unsafe { kvf_decode(ty, isa, domain.0, b, p, y.len(), 0) };
            assert_eq!(status, KVF_OK, "{}", spec.name);
            y
        };
        let domains = [
            (KVF_ORIGINAL, Domain::Original),
            (KVF_ROTATED, Domain::Rotated),
        ];
        for domain in domains {
            let expected = decoded(spec.id, &bytes, domain.1);
            assert_eq!(decode(spec.id, domain, &bytes), expected, "{}", spec.name);
            if **spec == q4_polar::SPEC {
                let residual = decode(KVF_Q4_POLAR_RESIDUAL, domain, &bytes);
                assert_eq!(residual, decoded_residual(&bytes, domain.1));
                assert_ne!(residual, expected);
            }
        }
        let y = decode(spec.id, domains[0], &bytes);
        let mut dot = 0.0;
        let b = bytes.as_ptr().cast();
        // SAFETY: pointers lead to enough memory.
        let status = unsafe { kvf_dot(spec.id, isa, b, floats(&x), x.len(), &mut dot, 0) };
        assert_eq!(status, KVF_OK);
        let sum = |a: &[f32], b: &[f32]| -> f64 {
            let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
            products.sum()
        };
        let limit = spec.tolerance.score * (sum(&x, &x) * sum(&y, &y)).sqrt();
        let error = (f64::from(dot) - sum(&x, &y)).abs();
        assert!(error <= limit, "{} off by {error}", spec.name);

        // SAFETY: as above.
        let status = unsafe { kvf_poison(spec.id, bytes.as_mut_ptr().cast(), x.len()) };
        assert_eq!(status, KVF_OK);
        for domain in domains {
            let y = decode(spec.id, domain, &bytes);
            assert!(y.iter().all(|v| v.is_nan()), "{}", spec.name);
        }
    }
}

fn text(s: *const std::ffi::c_char) -> String {
    // SAFETY: the library's strings are static and NUL-terminated.
    unsafe { CStr::from_ptr(s) }.to_str().unwrap().to_owned()
}

#[test]
fn names_and_facts() {
    let texts: Vec<_> = (-1..=KVF_OTHER_TURNS + 1)
        .map(|status| text(kvf_status_text(status)))
        .collect();
    for (i, a) in texts.iter().enumerate() {
        // The first and the last are no statuses and share their text.
        let twins = texts.iter().filter(|b| *b == a).count();
        assert_eq!(
            twins,
            if i == 0 || i + 1 == texts.len() { 2 } else { 1 },
            "{a}"
        );
    }
    assert_eq!(text(kvf_isa_name(KVF_ISA_SCALAR)), "scalar");
    assert_eq!(text(kvf_isa_name(KVF_ISA_AVX2)), "avx2");
    let auto = kvf_isa_resolve(KVF_ISA_AUTO);
    assert_eq!(text(kvf_isa_name(KVF_ISA_AUTO)), text(kvf_isa_name(auto)));
    assert!(kvf_isa_name(3).is_null());
    assert_eq!(kvf_isa_resolve(3), 0);
    assert_eq!(
        text(kvf_kernel_name(2, KVF_OP_ATTEND, KVF_ISA_SCALAR)),
        "tbq4_0/attend/scalar"
    );
    assert_eq!(
        text(kvf_kernel_name(1, KVF_OP_DOT, KVF_ISA_SCALAR)),
        "tbq3_0/dot/scalar"
    );
    for (ty, op, isa) in [(KVF_F16, 0, 1), (1, 5, 1), (1, 0, 3)] {
        assert!(kvf_kernel_name(ty, op, isa).is_null());
    }
    // SAFETY: null is an allowed argument.
    assert_eq!(unsafe { kvf_format_info(0, null_mut()) }, KVF_NULL);
    for (i, spec) in FORMATS.iter().enumerate() {
        let mut info = std::mem::MaybeUninit::<kvf_format_info>::uninit();
        // SAFETY: `info` is writable, and written where the call succeeds.
        let info = unsafe {
            assert_eq!(kvf_format_info(i as u32, info.as_mut_ptr()), KVF_OK);
            info.assume_init()
        };
        assert_eq!(text(info.name.as_ptr()), spec.name);
        assert_eq!(info.id, spec.id);
        let sizes = [
            info.block_len,
            info.block_bytes,
            info.code_bits,
            info.coded_len,
        ];
        let coded = spec.len_in(Domain::Rotated);
        let expected = [spec.block_len, spec.block_bytes, spec.code.bits(), coded];
        assert_eq!(sizes, expected.map(|n| n as u32));
        let holds = [info.holds_keys, info.holds_values];
        assert_eq!(
            holds,
            [spec.holds_keys(), spec.holds_values()].map(u32::from)
        );
        assert_eq!(info.layout_hash, spec.layout_hash());
        assert_eq!(info.gaussian_mse_best, spec.tolerance.gaussian_mse_best);
        assert_eq!(info.attention_tolerance, spec.tolerance.attention);
        assert_eq!(info.score_tolerance, spec.tolerance.score);
        assert_eq!(info.gaussian_mse, spec.tolerance.gaussian_mse);
        assert_eq!(info.gaussian_mse_margin, spec.tolerance.gaussian_mse_margin);
    }
}

#[test]
fn counters_can_be_read_one_by_one_or_all() {
    // A slot of this test alone; tests run at the same time.
    const SLOT: u32 = 321;
    for (isa, spec) in isas().flat_map(|isa| FORMATS.iter().map(move |spec| (isa, spec))) {
        let x = random(2 * spec.block_len, 10);
        let mut bytes = encoded(spec.id, &x);
        let counted = counted(spec, KVF_OP_ENCODE, isa);
        let count = || kvf_counter(spec.id, KVF_OP_ENCODE, counted, SLOT);
        let before = count();
        for (encode, _) in ENCODERS {
            let p = bytes.as_mut_ptr().cast();
            // SAFETY: pointers lead to enough memory.
            let status = unsafe { encode(spec.id, isa, floats(&x), p, x.len(), SLOT, null_mut()) };
            assert_eq!(status, KVF_OK);
        }
        assert_eq!(count(), before + 4, "{}", spec.name);
        assert_eq!(kvf_counter(spec.id, KVF_OP_DECODE, isa, SLOT), 0);
        let expected = kvf_count {
            r#type: spec.id,
            op: KVF_OP_ENCODE,
            isa: counted,
            slot: SLOT,
            count: count(),
        };
        let mut found = expected;
        let (mut cursor, mut seen) = (0, 0);
        // SAFETY: both are writable.
        while unsafe { kvf_counter_next(&mut cursor, &mut found) } == KVF_OK {
            seen += usize::from(found == expected);
        }
        assert_eq!(seen, 1);
    }
    // SAFETY: null is an allowed argument.
    unsafe {
        assert_eq!(kvf_counter_next(null_mut(), null_mut()), KVF_NULL);
        assert_eq!(kvf_counter_next(&mut 0, null_mut()), KVF_NULL);
    }
    for (ty, op, isa) in [(99, 0, 1), (1, 9, 1), (1, 0, 9)] {
        assert_eq!(kvf_counter(ty, op, isa, 0), 0);
    }
}
