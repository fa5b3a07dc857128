//! Strided rows in memory that belongs to somebody else.
//!
//! A K or V cache, queries, masks and outputs are all `heads x rows` rows of
//! bytes, found by two strides, at any alignment. A view is checked once, when
//! it is made; what it hands out afterwards lies inside it.

use core::marker::PhantomData;
use core::ops::Range;
use core::slice;

use crate::Error;

/// Where the rows of a tensor are, in bytes from its first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Rows of a head: tokens or query positions.
    pub rows: usize,
    /// Heads.
    pub heads: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes from a row to the next one of the same head.
    pub row_stride: usize,
    /// Bytes from a head to the next one in the same row.
    pub head_stride: usize,
}

impl Shape {
    /// Bytes from the start of the first row to the end of the last one.
    ///
    /// # Errors
    /// [`Error::Shape`] if rows overlap, or the memory would be larger than an
    /// address space.
    pub fn extent(&self) -> Result<usize, Error> {
        if self.rows == 0 || self.heads == 0 {
            return Ok(0);
        }
        let apart = |n: usize, stride: usize| n == 1 || stride >= self.row_bytes;
        if !apart(self.rows, self.row_stride) || !apart(self.heads, self.head_stride) {
            return Err(Error::Shape("a stride is smaller than a row"));
        }
        let last = |n: usize, stride: usize| (n - 1).checked_mul(stride);
        last(self.rows, self.row_stride)
            .zip(last(self.heads, self.head_stride))
            .and_then(|(rows, heads)| rows.checked_add(heads)?.checked_add(self.row_bytes))
            .filter(|&extent| isize::try_from(extent).is_ok())
            .ok_or(Error::Shape("a tensor is larger than the address space"))
    }

    /// Bytes from the start of the first row to the start of that one.
    fn offset(&self, head: usize, row: usize) -> Option<usize> {
        // No overflow: below the extent, which does not.
        (head < self.heads && row < self.rows)
            .then(|| head * self.head_stride + row * self.row_stride)
    }
}

/// Rows to read.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    base: *const u8,
    shape: Shape,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: it is a shared borrow of bytes, like `&[u8]`.
unsafe impl Send for Rows<'_> {}
// SAFETY: as above.
unsafe impl Sync for Rows<'_> {}

impl Default for Rows<'_> {
    /// No rows.
    fn default() -> Self {
        Rows {
            base: core::ptr::null(),
            shape: Shape::default(),
            memory: PhantomData,
        }
    }
}

impl<'a> Rows<'a> {
    /// The rows of `shape` in `bytes`, which starts with the first one.
    ///
    /// # Errors
    /// [`Error::Shape`] if they do not fit, or see [`Shape::extent`].
    pub fn new(bytes: &'a [u8], shape: Shape) -> Result<Rows<'a>, Error> {
        if shape.extent()? > bytes.len() {
            return Err(Error::Shape("a tensor reaches past its memory"));
        }
        Ok(Rows {
            base: bytes.as_ptr(),
            shape,
            memory: PhantomData,
        })
    }

    /// The rows of `shape` at `base`.
    ///
    /// # Errors
    /// See [`Shape::extent`].
    ///
    /// # Safety
    /// For `'a`, every row of the shape is readable and written by nobody. What
    /// lies between rows does not matter. `base` may be anything if the
    /// shape has no rows.
    pub unsafe fn from_raw(base: *const u8, shape: Shape) -> Result<Rows<'a>, Error> {
        shape.extent()?;
        Ok(Rows {
            base,
            shape,
            memory: PhantomData,
        })
    }

    /// Where the rows are.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Some rows of one head; `None` if they are not all there.
    pub(crate) fn span(&self, head: usize, rows: Range<usize>) -> Option<Span<'a>> {
        let n = rows.end.checked_sub(rows.start)?;
        let mut base = self.base;
        if n > 0 {
            self.shape.offset(head, rows.end - 1)?;
            // SAFETY: the offset of a row that exists is within the memory.
            base = unsafe { base.add(self.shape.offset(head, rows.start)?) };
        }
        Some(Span {
            base,
            n,
            row_bytes: self.shape.row_bytes,
            stride: self.shape.row_stride,
            memory: PhantomData,
        })
    }

    /// One row; `None` if there is no such row.
    pub(crate) fn row(&self, head: usize, row: usize) -> Option<&'a [u8]> {
        Some(self.span(head, row..row.checked_add(1)?)?.row(0))
    }
}

/// Consecutive rows of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    base: *const u8,
    n: usize,
    row_bytes: usize,
    stride: usize,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Span<'a> {
    /// How many rows.
    pub(crate) fn len(&self) -> usize {
        self.n
    }

    /// Where the cache lines of row `i` are or would be, to ask for them early.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn lines(&self, i: usize) -> impl Iterator<Item = *const u8> + use<> {
        let row = self.base.wrapping_add(i.wrapping_mul(self.stride));
        let lines = (0..self.row_bytes).step_by(64);
        lines.map(move |offset| row.wrapping_add(offset))
    }

    /// Row `i`; no bytes if there is no such row.
    #[inline]
    pub(crate) fn row(&self, i: usize) -> &'a [u8] {
        if i >= self.n {
            return &[];
        }
        // SAFETY: row `i` is one of the rows that `Rows::span` found to exist, so
        // it is readable for `row_bytes`, and shared for `'a`.
        unsafe { slice::from_raw_parts(self.base.add(i * self.stride), self.row_bytes) }
    }
}

/// Rows to write.
#[derive(Debug)]
pub struct RowsMut<'a> {
    base: *mut u8,
    shape: Shape,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: it is an exclusive borrow of bytes, like `&mut [u8]`.
unsafe impl Send for RowsMut<'_> {}

impl<'a> RowsMut<'a> {
    /// The rows of `shape` in `bytes`, which starts with the first one.
    ///
    /// # Errors
    /// [`Error::Shape`] if they do not fit, or see [`Shape::extent`].
    pub fn new(bytes: &'a mut [u8], shape: Shape) -> Result<RowsMut<'a>, Error> {
        if shape.extent()? > bytes.len() {
            return Err(Error::Shape("a tensor reaches past its memory"));
        }
        Ok(RowsMut {
            base: bytes.as_mut_ptr(),
            shape,
            memory: PhantomData,
        })
    }

    /// The rows of `shape` at `base`.
    ///
    /// # Errors
    /// See [`Shape::extent`].
    ///
    /// # Safety
    /// For `'a`, every row that a call given this view writes is writable and
    /// used by nobody else. Other rows, and what lies between rows, do not matter:
    /// threads may hold views of one tensor if they write different rows.
    pub unsafe fn from_raw(base: *mut u8, shape: Shape) -> Result<RowsMut<'a>, Error> {
        shape.extent()?;
        Ok(RowsMut {
            base,
            shape,
            memory: PhantomData,
        })
    }

    /// Where the rows are.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// One row; `None` if there is no such row.
    pub(crate) fn row(&mut self, head: usize, row: usize) -> Option<&mut [u8]> {
        let offset = self.shape.offset(head, row)?;
        // SAFETY: the row exists, so it is writable for `row_bytes`; it is ours
        // alone while `self` is borrowed.
        Some(unsafe { slice::from_raw_parts_mut(self.base.add(offset), self.shape.row_bytes) })
    }
}
