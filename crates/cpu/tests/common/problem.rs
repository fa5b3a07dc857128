//! Random attention problems, and both ways to solve them.
#![allow(dead_code, reason = "every test file uses its own part of this module")]

use super::{Aligned, Random, isas};
use kvforge_cpu::attention::{self, Attention, Mask, MaskType, Segment};
use kvforge_cpu::view::{Rows, RowsMut, Shape};
use kvforge_cpu::{CacheType, Encoder, Isa, encode};
use kvforge_formats::oracle::{self, Problem, Tensor, Type};
use kvforge_formats::{FORMATS, FormatSpec, by_name, q4_polar, tbq4_0};

/// A head size that every type has.
pub const DIM: usize = 128;

/// Sizes and switches of a random problem.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub head_dim_k: usize,
    pub head_dim_v: usize,
    pub group: usize,
    pub n_kv_heads: usize,
    pub n_q: usize,
    /// Types and length of every segment.
    pub segments: Vec<(Type, Type, usize)>,
    pub mask: MaskRecipe,
    pub causal: bool,
    pub softcap: bool,
    pub slopes: bool,
    pub sinks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MaskRecipe {
    None,
    /// Type, heads, and the share of keys that it hides.
    Random(Type, usize, f64),
    /// Hides every key.
    All(Type),
}

impl Recipe {
    /// One segment of these types, nothing switched on.
    pub fn plain(k: Type, v: Type, n_kv: usize) -> Recipe {
        Recipe {
            head_dim_k: DIM,
            head_dim_v: DIM,
            group: 2,
            n_kv_heads: 2,
            n_q: 3,
            segments: vec![(k, v, n_kv)],
            mask: MaskRecipe::None,
            causal: false,
            softcap: false,
            slopes: false,
            sinks: false,
        }
    }

    pub fn make(&self, random: &mut Random) -> Problem {
        let n_heads = self.group * self.n_kv_heads;
        let total: usize = self.segments.iter().map(|s| s.2).sum();
        let mut pos0 = 0;
        let segments = self.segments.iter().map(|&(k, v, n_kv)| {
            let heads = self.n_kv_heads;
            let mut rows = |ty, dim| {
                let values = random.normals(n_kv * heads * dim);
                tensor(ty, &values, dim, heads)
            };
            let (k, v) = (rows(k, self.head_dim_k), rows(v, self.head_dim_v));
            let segment = oracle::Segment {
                n_kv,
                k,
                v,
                mask: self.mask(n_kv, random),
                pos0,
            };
            pos0 += n_kv as i64;
            segment
        });
        let segments = segments.collect();
        let per_head = |random: &mut Random| (0..n_heads).map(|_| random.normal()).collect();
        Problem {
            head_dim_k: self.head_dim_k,
            head_dim_v: self.head_dim_v,
            n_heads,
            n_kv_heads: self.n_kv_heads,
            n_q: self.n_q,
            q: Tensor::by_row(
                Type::F32,
                &random.normals(self.n_q * n_heads * self.head_dim_k),
                self.head_dim_k,
                n_heads,
            ),
            segments,
            scale: 1.0 / (self.head_dim_k as f32).sqrt(),
            softcap: self.softcap.then_some(1.5),
            slopes: self.slopes.then(|| per_head(random)),
            sinks: self.sinks.then(|| per_head(random)),
            // The last query sees all keys, the first ones often none.
            causal: self.causal.then_some(total as i64 - self.n_q as i64),
        }
    }

    fn mask(&self, n_kv: usize, random: &mut Random) -> Option<oracle::Mask> {
        let (ty, heads, hidden) = match self.mask {
            MaskRecipe::None => return None,
            MaskRecipe::Random(ty, heads, hidden) => (ty, heads, hidden),
            MaskRecipe::All(ty) => (ty, 1, 1.0),
        };
        let values: Vec<f32> = (0..self.n_q * heads * n_kv)
            .map(|_| match random.unit() < hidden {
                true => f32::NEG_INFINITY,
                false => random.normal(),
            })
            .collect();
        let values = match n_kv {
            0 => Tensor {
                ty,
                ..Tensor::default()
            },
            _ => Tensor::by_row(ty, &values, n_kv, heads),
        };
        Some(oracle::Mask { values, heads })
    }
}

pub fn cache_type(ty: Type) -> CacheType {
    match ty {
        Type::F32 => CacheType::F32,
        Type::F16 => CacheType::F16,
        Type::Q8_0 => CacheType::Q8_0,
        Type::Format(spec) => CacheType::Format(spec),
        Type::PolarResidual => CacheType::PolarResidual,
    }
}

/// Dense `[rows, heads, len]` of `values`. Formats go through this crate's encoder,
/// which is bit-exact; the oracle's is too slow for caches.
pub fn tensor(ty: Type, values: &[f32], len: usize, heads: usize) -> Tensor {
    let Some(spec) = format(ty) else {
        return Tensor::by_row(ty, values, len, heads);
    };
    let mut bytes = vec![0; ty.row_bytes(values.len())];
    encode(spec, Isa::best(), Encoder::Reference, values, &mut bytes, 0).unwrap();
    let head_stride = ty.row_bytes(len);
    Tensor {
        ty,
        bytes,
        row_stride: heads * head_stride,
        head_stride,
    }
}

/// kvforge's own format, if it is one.
pub fn format(ty: Type) -> Option<&'static FormatSpec> {
    match ty {
        Type::Format(spec) => Some(spec),
        Type::PolarResidual => Some(&q4_polar::SPEC),
        _ => None,
    }
}

/// Every type that a cache may hold keys in.
pub fn key_types() -> Vec<Type> {
    let ours = FORMATS.iter().filter(|spec| spec.holds_keys());
    types(ours)
}

/// Every type that a cache may hold values in.
pub fn value_types() -> Vec<Type> {
    let ours = FORMATS.iter().filter(|spec| spec.holds_values());
    types(ours)
}

/// Formats, then the types beside them.
pub fn types<'a>(ours: impl Iterator<Item = &'a &'static FormatSpec>) -> Vec<Type> {
    let others = [Type::PolarResidual, Type::F16, Type::Q8_0, Type::F32];
    ours.map(|&spec| Type::Format(spec)).chain(others).collect()
}

fn mask_type(ty: Type) -> MaskType {
    match ty {
        Type::F32 => MaskType::F32,
        Type::F16 => MaskType::F16,
        _ => panic!("a mask of {}", ty.name()),
    }
}

/// Rows of an oracle tensor; `len` values each.
pub fn rows(x: &Tensor, rows: usize, heads: usize, len: usize) -> Rows<'_> {
    let shape = Shape {
        rows,
        heads,
        row_bytes: x.ty.row_bytes(len),
        row_stride: x.row_stride,
        head_stride: x.head_stride,
    };
    Rows::new(&x.bytes, shape).unwrap()
}

pub fn segments(p: &Problem) -> Vec<Segment<'_>> {
    p.segments
        .iter()
        .map(|s| Segment {
            n_kv: s.n_kv,
            k_type: cache_type(s.k.ty),
            k: rows(&s.k, s.n_kv, p.n_kv_heads, p.head_dim_k),
            v_type: cache_type(s.v.ty),
            v: rows(&s.v, s.n_kv, p.n_kv_heads, p.head_dim_v),
            mask: s.mask.as_ref().map(|m| Mask {
                kind: mask_type(m.values.ty),
                rows: rows(&m.values, p.n_q, m.heads, s.n_kv),
            }),
            pos0: s.pos0,
        })
        .collect()
}

/// The problem as the kernels take it.
pub fn attention<'a>(p: &'a Problem, segments: &'a [Segment<'a>], isa: Isa) -> Attention<'a> {
    Attention {
        head_dim_k: p.head_dim_k,
        head_dim_v: p.head_dim_v,
        n_heads: p.n_heads,
        n_kv_heads: p.n_kv_heads,
        n_q: p.n_q,
        q: rows(&p.q, p.n_q, p.n_heads, p.head_dim_k),
        scale: p.scale,
        softcap: p.softcap.unwrap_or(0.0),
        slopes: p.slopes.as_deref(),
        sinks: p.sinks.as_deref(),
        causal: p.causal,
        segments,
        isa,
        slot: 0,
    }
}

/// Dense `[n_q, n_heads, dim]` outputs.
pub struct Out {
    bytes: Vec<u8>,
    shape: Shape,
}

impl Out {
    pub fn new(n_q: usize, n_heads: usize, dim: usize) -> Out {
        Out {
            // NaN, so that a row that is not written is noticed.
            bytes: vec![0xff; n_q * n_heads * dim * 4],
            shape: Shape {
                rows: n_q,
                heads: n_heads,
                row_bytes: dim * 4,
                row_stride: n_heads * dim * 4,
                head_stride: dim * 4,
            },
        }
    }

    pub fn rows(&mut self) -> RowsMut<'_> {
        RowsMut::new(&mut self.bytes, self.shape).unwrap()
    }

    pub fn values(&self) -> Vec<f32> {
        self.bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_ne_bytes(*b))
            .collect()
    }
}

/// All rows in one call a kv head.
pub fn attend(p: &Problem, isa: Isa) -> Vec<f32> {
    let segments = segments(p);
    let a = attention(p, &segments, isa);
    let mut out = Out::new(p.n_q, p.n_heads, p.head_dim_v);
    let mut scratch = Aligned::new(attention::attend_scratch(&a, p.n_q).unwrap());
    for kv_head in 0..p.n_kv_heads {
        attention::attend(&a, kv_head, 0..p.n_q, &mut out.rows(), scratch.get()).unwrap();
    }
    out.values()
}

/// Largest finite `|V|`, the unit of errors.
pub fn largest_value(p: &Problem) -> f64 {
    p.segments
        .iter()
        .flat_map(|s| s.v.ty.decode(&s.v.bytes))
        .filter(|v| v.is_finite())
        .fold(0f64, |m, v| m.max(v.abs()))
}

/// Largest `|found - expected| / largest`; infinite if one is finite where the
/// other is not.
pub fn worst_error(largest: f64, found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found
        .iter()
        .zip(expected)
        .map(|(&f, &e)| match (f.is_finite(), e.is_finite()) {
            (true, true) if f64::from(f) == e => 0.0,
            (true, true) => (f64::from(f) - e).abs() / largest,
            (false, false) => 0.0,
            _ => f64::INFINITY,
        })
        .fold(0.0, f64::max)
}

/// The tightest tolerance that the types of a problem ask for; other types keep
/// what our formats keep.
pub fn tolerance(p: &Problem) -> f64 {
    p.segments
        .iter()
        .flat_map(|s| [s.k.ty, s.v.ty])
        .filter_map(|ty| Some(format(ty)?.tolerance.attention))
        .fold(tbq4_0::SPEC.tolerance.attention, f64::min)
}

/// Every type with itself; what holds no values, with f16.
pub fn pairs() -> Vec<(Type, Type)> {
    let (keys, values) = (key_types(), value_types());
    let value = |k: Type| if values.contains(&k) { k } else { Type::F16 };
    keys.into_iter().map(|k| (k, value(k))).collect()
}

pub fn of_name(name: &str) -> Type {
    Type::Format(by_name(name).unwrap())
}

/// Solves a problem with every instruction set and compares with the oracle.
/// Returns the largest error seen.
#[track_caller]
pub fn check(p: &Problem, what: &dyn std::fmt::Debug) -> f64 {
    let expected = oracle::attention(p);
    let mut largest = 0f64;
    for isa in isas() {
        let error = worst_error(largest_value(p), &attend(p, isa), &expected);
        let limit = tolerance(p);
        assert!(
            error <= limit,
            "{}: {error:e} > {limit:e} for {what:?}",
            isa.name()
        );
        largest = largest.max(error);
    }
    largest
}
