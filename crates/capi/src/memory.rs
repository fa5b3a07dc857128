//! The caller's memory as slices and views.

use core::ffi::c_void;
use core::slice;

use kvforge_cpu::CacheType;
use kvforge_cpu::view::{Rows, RowsMut, Shape};

use crate::status::{KVF_BAD_SHAPE, KVF_NULL, KVF_SCRATCH, KVF_UNSUPPORTED, status_of};

/// Memory of `n` elements as a slice.
///
/// # Safety
/// `ptr` is null, or misaligned, or readable for `n` elements that nobody
/// writes meanwhile.
pub(crate) unsafe fn input<'a, T>(ptr: *const T, n: usize) -> Result<&'a [T], i32> {
    check(ptr, n)?;
    // SAFETY: not null, aligned, not too large; readable by the caller's word.
    Ok(unsafe { slice::from_raw_parts(ptr, n) })
}

/// Memory of `n` elements as a slice to be written.
///
/// # Safety
/// `ptr` is null, or misaligned, or readable and writable for `n` elements that
/// nobody else uses meanwhile.
pub(crate) unsafe fn output<'a, T>(ptr: *mut T, n: usize) -> Result<&'a mut [T], i32> {
    check(ptr, n)?;
    // SAFETY: not null, aligned, not too large; ours alone by the caller's word.
    Ok(unsafe { slice::from_raw_parts_mut(ptr, n) })
}

fn check<T>(ptr: *const T, n: usize) -> Result<(), i32> {
    if ptr.is_null() {
        return Err(KVF_NULL);
    }
    let fits = n
        .checked_mul(size_of::<T>())
        .is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if ptr.is_aligned() && fits {
        Ok(())
    } else {
        Err(KVF_BAD_SHAPE)
    }
}

/// Reads a struct that starts with its own size.
///
/// # Safety
/// `ptr` is null or readable.
pub(crate) unsafe fn read<T: Copy>(ptr: *const T) -> Result<T, i32> {
    if ptr.is_null() {
        return Err(KVF_NULL);
    }
    // SAFETY: readable by the caller's word: a struct of any version has this.
    let struct_size = unsafe { ptr.cast::<usize>().read_unaligned() };
    if struct_size != size_of::<T>() {
        return Err(KVF_UNSUPPORTED);
    }
    // SAFETY: readable by the caller's word, and as large as it says.
    Ok(unsafe { ptr.read_unaligned() })
}

/// A view of rows in the caller's memory, which may be null if there are none.
///
/// # Safety
/// The rows are readable and written by nobody for `'a`, or `base` is null.
pub(crate) unsafe fn rows<'a, T>(base: *const T, shape: Shape) -> Result<Rows<'a>, i32> {
    if shape.extent().map_err(status_of)? > 0 && base.is_null() {
        return Err(KVF_NULL);
    }
    // SAFETY: by the caller's word.
    unsafe { Rows::from_raw(base.cast(), shape) }.map_err(status_of)
}

/// The same for rows to write.
///
/// # Safety
/// The rows that calls with this view write are writable and used by nobody else
/// for `'a`, or `base` is null.
pub(crate) unsafe fn rows_mut<'a>(base: *mut f32, shape: Shape) -> Result<RowsMut<'a>, i32> {
    if shape.extent().map_err(status_of)? > 0 && base.is_null() {
        return Err(KVF_NULL);
    }
    // SAFETY: by the caller's word.
    unsafe { RowsMut::from_raw(base.cast(), shape) }.map_err(status_of)
}

/// Scratch memory as floats; that it suffices is for the call to find out.
///
/// # Safety
/// `scratch` is null, or writable for `bytes` bytes that nobody else uses for
/// `'a`.
pub(crate) unsafe fn scratch<'a>(scratch: *mut c_void, bytes: usize) -> Result<&'a mut [f32], i32> {
    let floats: *mut f32 = scratch.cast();
    if floats.is_null() {
        return Err(KVF_NULL);
    }
    if !floats.is_aligned() {
        return Err(KVF_SCRATCH);
    }
    // SAFETY: not null, aligned; ours alone by the caller's word. A slice may not
    // be larger than `isize::MAX` bytes, and no call needs one that large.
    Ok(unsafe {
        slice::from_raw_parts_mut(floats, bytes.min(isize::MAX as usize) / size_of::<f32>())
    })
}

/// Bytes of a row of `n` values.
pub(crate) fn row_bytes(kind: CacheType, n: usize) -> Result<usize, i32> {
    kind.row_bytes(n).ok_or(KVF_BAD_SHAPE)
}

pub(crate) fn shape(
    rows: usize,
    heads: usize,
    row_bytes: usize,
    row_stride: usize,
    head_stride: usize,
) -> Shape {
    Shape {
        rows,
        heads,
        row_bytes,
        row_stride,
        head_stride,
    }
}

/// A size in floats as one in bytes; 0 for an error.
pub(crate) fn bytes_of(floats: Result<usize, i32>) -> usize {
    let bytes = floats.ok().and_then(|n| n.checked_mul(size_of::<f32>()));
    bytes.unwrap_or(0)
}
