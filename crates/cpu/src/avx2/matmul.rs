//! Register-blocked fp32 matrix product.
//!
//! A strip of `M` rows of `a` times `N` vectors of columns of `b` accumulates in
//! `M * N` registers. Strips go down the rows before they go on to the next
//! columns, so the panel of `b` that they share stays in the first-level cache.

use core::arch::x86_64::*;

use crate::kernels::{LINE, Product};

/// Floats in a vector.
const LANES: usize = 8;

/// Rows of the highest strip: with [`LINE_VECTORS`] it takes 12 accumulators, and
/// two vectors of `b` and one of `a` beside them, of 16 registers.
const MAX_HEIGHT: usize = 6;

/// Vectors in a [`LINE`].
const LINE_VECTORS: usize = LINE / LANES;

#[target_feature(enable = "avx2,fma")]
pub(super) fn matmul(mut p: Product<'_>) {
    if !p.fits() {
        // The engine's operands do; this keeps the pointers below honest.
        debug_assert!(false, "operands of a matrix product do not fit");
        return;
    }
    // Strips of equal height, as high as registers allow. Where few rows leave
    // registers free, more columns keep more multiplications in flight.
    match p.rows.div_ceil(p.rows.div_ceil(MAX_HEIGHT).max(1)) {
        0 => {}
        1 => columns::<1, 8>(&mut p),
        2 => columns::<2, 4>(&mut p),
        3 => columns::<3, 4>(&mut p),
        4 => columns::<4, LINE_VECTORS>(&mut p),
        5 => columns::<5, LINE_VECTORS>(&mut p),
        _ => columns::<MAX_HEIGHT, LINE_VECTORS>(&mut p),
    }
}

/// All columns, `N` vectors at a time, then what is left a line at a time.
#[target_feature(enable = "avx2,fma")]
fn columns<const M: usize, const N: usize>(p: &mut Product<'_>) {
    let mut col = 0;
    while col + N * LANES <= p.cols {
        rows::<M, N>(p, col);
        col += N * LANES;
    }
    while col + LINE <= p.cols {
        rows::<M, LINE_VECTORS>(p, col);
        col += LINE;
    }
}

/// All rows of `N` vectors of columns, `M` at a time, then what is left.
#[target_feature(enable = "avx2,fma")]
fn rows<const M: usize, const N: usize>(p: &mut Product<'_>, col: usize) {
    let mut row = 0;
    while row + M <= p.rows {
        strip::<M, N>(p, row, col);
        row += M;
    }
    match p.rows - row {
        1 => strip::<1, N>(p, row, col),
        2 => strip::<2, N>(p, row, col),
        3 => strip::<3, N>(p, row, col),
        4 => strip::<4, N>(p, row, col),
        5 => strip::<5, N>(p, row, col),
        _ => {}
    }
}

/// Rows `row .. row + M`, columns `col .. col + N * LANES`; the caller has found
/// them to be within the product, and the product fits its slices.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn strip<const M: usize, const N: usize>(p: &mut Product<'_>, row: usize, col: usize) {
    let mut acc = [[_mm256_setzero_ps(); N]; M];
    // SAFETY: `row + M <= rows`, `col + N * LANES <= cols` and `d < depth`, so
    // every offset below lies in what `Product::fits` has checked.
    unsafe {
        let a = p.a.as_ptr().add(row * p.a_pitch);
        let mut b = p.b.as_ptr().add(col);
        let c = p.c.as_mut_ptr().add(row * p.c_pitch + col);
        if p.add {
            for (i, acc) in acc.iter_mut().enumerate() {
                for (j, acc) in acc.iter_mut().enumerate() {
                    *acc = _mm256_loadu_ps(c.add(i * p.c_pitch + j * LANES));
                }
            }
        }
        for d in 0..p.depth {
            let mut line = [_mm256_setzero_ps(); N];
            for (j, line) in line.iter_mut().enumerate() {
                *line = _mm256_loadu_ps(b.add(j * LANES));
            }
            for (i, acc) in acc.iter_mut().enumerate() {
                let a = _mm256_broadcast_ss(&*a.add(i * p.a_pitch + d));
                for (acc, line) in acc.iter_mut().zip(line) {
                    *acc = _mm256_fmadd_ps(a, line, *acc);
                }
            }
            b = b.wrapping_add(p.b_pitch);
        }
        for (i, acc) in acc.iter().enumerate() {
            for (j, acc) in acc.iter().enumerate() {
                _mm256_storeu_ps(c.add(i * p.c_pitch + j * LANES), *acc);
            }
        }
    }
}
