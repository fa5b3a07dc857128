//! The judge: formats, scores and attention computed in `f64`, in the slowest
//! and plainest way, straight from the text of the format.
//!
//! It reads constants from a [`FormatSpec`](crate::FormatSpec) (codebook, sign
//! masks, sizes, packing) and shares no code with the codecs or with any kernel:
//! codes are taken out bit by bit, fp16 is evaluated from its definition, the
//! transforms are matrices written out entry by entry.
//!
//! ```
//! use kvforge_formats::{oracle::{self, Problem, Segment, Tensor, Type}, tbq4_0};
//!
//! // One query, two heads that share one key and value head, three keys.
//! let values = |n: usize| (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>();
//! let problem = Problem {
//!     head_dim_k: 64,
//!     head_dim_v: 64,
//!     n_heads: 2,
//!     n_kv_heads: 1,
//!     n_q: 1,
//!     q: Tensor::by_row(Type::F32, &values(2 * 64), 64, 2),
//!     segments: vec![Segment {
//!         n_kv: 3,
//!         k: Tensor::by_row(Type::Format(&tbq4_0::SPEC), &values(3 * 64), 64, 1),
//!         v: Tensor::by_row(Type::F16, &values(3 * 64), 64, 1),
//!         ..Segment::default()
//!     }],
//!     scale: 0.125,
//!     ..Problem::default()
//! };
//! let out = oracle::attention(&problem); // [n_q, n_heads, head_dim_v]
//! assert_eq!(out.len(), 2 * 64);
//! ```
//!
//! It is made for tests and smokes: arguments that do not fit together panic.

mod attention;
mod block;
mod encode;
mod half;
mod projection;
mod tensor;

pub use attention::{Mask, Problem, Scores, Segment, attention, dot, scores};
pub use block::{decode, decode_residual, decode_rotated, rotate};
pub use encode::{encode, judge};
pub use half::{from_half, to_half};
pub use tensor::{Tensor, Type};
