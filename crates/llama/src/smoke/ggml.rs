//! The C API of a built ggml, as far as the smoke needs it. All `unsafe` of the
//! crate is here.
//!
//! What every SAFETY comment below builds on:
//! * *Signatures*: the functions are declared as in ggml.h, ggml-alloc.h and
//!   ggml-backend.h of the tree. ggml's structs stay opaque, but for the three
//!   fields of `ggml_init_params`, which are passed by value.
//! * *Lifetimes*: libraries are never unloaded and the backend is never freed
//!   ([`Ggml`] lives for ever). A [`Tensor`] borrows the [`Graph`] that owns its
//!   memory.
//! * *Misuse*: shapes and types that do not fit, tensors without memory and
//!   indices out of range fail an assertion inside ggml, which ends the process;
//!   they do not corrupt memory.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use kvforge_capi::{KVF_API_VERSION, KVF_OK, kvf_api, kvf_count};
use libloading::Library;

/// Something of ggml's that is only ever pointed to.
type Opaque = *mut c_void;

#[repr(C)]
struct InitParams {
    mem_size: usize,
    mem_buffer: Opaque,
    no_alloc: bool,
}

/// Declares functions, and loads them by their own names.
macro_rules! functions {
    ($table:ident: $(fn $name:ident($($arg:ty),*) $(-> $out:ty)?;)*) => {
        struct $table {
            $($name: unsafe extern "C" fn($($arg),*) $(-> $out)?,)*
        }

        impl $table {
            fn load(library: &Library) -> Result<$table, libloading::Error> {
                Ok($table {
                    $($name: {
                        // SAFETY: the signature is the header's, see the head of this file.
                        unsafe { *library.get(concat!(stringify!($name), "\0").as_bytes())? }
                    },)*
                })
            }
        }
    };
}

functions! { Base:
    fn ggml_init(InitParams) -> Opaque;
    fn ggml_free(Opaque);
    fn ggml_tensor_overhead() -> usize;
    fn ggml_graph_overhead() -> usize;
    fn ggml_type_name(c_int) -> *const c_char;
    fn ggml_row_size(c_int, i64) -> usize;
    fn ggml_nbytes(Opaque) -> usize;
    fn ggml_set_name(Opaque, *const c_char) -> Opaque;
    fn ggml_new_tensor(Opaque, c_int, c_int, *const i64) -> Opaque;
    fn ggml_view_3d(Opaque, Opaque, i64, i64, i64, usize, usize, usize) -> Opaque;
    fn ggml_permute(Opaque, Opaque, c_int, c_int, c_int, c_int) -> Opaque;
    fn ggml_set_rows(Opaque, Opaque, Opaque, Opaque) -> Opaque;
    fn ggml_get_rows(Opaque, Opaque, Opaque) -> Opaque;
    fn ggml_cpy(Opaque, Opaque, Opaque) -> Opaque;
    fn ggml_mul_mat(Opaque, Opaque, Opaque) -> Opaque;
    fn ggml_flash_attn_ext(Opaque, Opaque, Opaque, Opaque, Opaque, f32, f32, f32) -> Opaque;
    fn ggml_flash_attn_ext_add_sinks(Opaque, Opaque);
    fn ggml_attn_score_tbq(Opaque, Opaque, Opaque, c_int) -> Opaque;
    fn ggml_attn_score_qjl(Opaque, Opaque, Opaque, c_int) -> Opaque;
    fn ggml_attn_score_polar(Opaque, Opaque, Opaque, c_int, bool) -> Opaque;
    fn ggml_attn_score_polar_preht(Opaque, Opaque, Opaque, c_int, bool) -> Opaque;
    fn ggml_new_graph(Opaque) -> Opaque;
    fn ggml_build_forward_expand(Opaque, Opaque);
    fn ggml_backend_alloc_ctx_tensors(Opaque, Opaque) -> Opaque;
    fn ggml_backend_buffer_free(Opaque);
    fn ggml_backend_tensor_set(Opaque, *const c_void, usize, usize);
    fn ggml_backend_tensor_get(Opaque, *mut c_void, usize, usize);
    fn ggml_backend_supports_op(Opaque, Opaque) -> bool;
    fn ggml_backend_graph_compute(Opaque, Opaque) -> c_int;
    fn ggml_backend_dev_description(Opaque) -> *const c_char;
    fn ggml_backend_dev_backend_reg(Opaque) -> Opaque;
    fn ggml_backend_dev_init(Opaque, *const c_char) -> Opaque;
    fn ggml_backend_reg_get_proc_address(Opaque, *const c_char) -> Opaque;
}

functions! { Registry:
    fn ggml_backend_dev_by_type(c_int) -> Opaque;
    fn ggml_backend_load_all_from_path(*const c_char);
}

functions! { Glue:
    fn ggml_kvforge_api() -> *const kvf_api;
    fn ggml_kvforge_isa() -> u32;
    fn ggml_kvforge_is(c_int) -> bool;
}

/// `GGML_BACKEND_DEVICE_TYPE_CPU`
const DEVICE_CPU: c_int = 0;
/// Types that the smoke needs besides kvforge's, by their ids, which are for ever.
const STOCK: [c_int; 5] = [0, 1, 8, 26, 27];
/// ggml numbers its types from 0; there will never be as many.
const TYPES: c_int = 4096;

/// Why a built ggml cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The system's loader refused.
    #[error("cannot load it: {0}")]
    Loader(String),
    /// ggml has no backend for the CPU.
    #[error("it has no CPU backend")]
    NoDevice,
    /// The kernels were built from another version of kvforge.
    #[error("its kernels are of another version of kvforge than this one; ship and build again")]
    OtherVersion,
}

impl From<libloading::Error> for LoadError {
    fn from(cause: libloading::Error) -> LoadError {
        LoadError::Loader(cause.to_string())
    }
}

/// A built ggml with its CPU backend, loaded into this process for good.
pub struct Ggml {
    base: Base,
    glue: Glue,
    device: Opaque,
    backend: Opaque,
    set_n_threads: unsafe extern "C" fn(Opaque, c_int),
    kernels: &'static kvf_api,
}

/// A ggml type id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type(c_int);

impl Ggml {
    /// Loads a shared ggml: the library with the tensors (ggml-base) and the one
    /// with the registry of backends (ggml), which brings the CPU backend with it
    /// or finds it in `folder`.
    pub fn load(base: &Path, registry: &Path, folder: &Path) -> Result<&'static Ggml, LoadError> {
        // SAFETY: running the libraries' initialisers is what the caller asks
        // for. They are leaked, and so stay loaded: ggml's threads and its hook
        // on the end of the process need them.
        let (base, registry): (&'static Library, &'static Library) = unsafe {
            let base = Box::leak(Box::new(Library::new(base)?));
            (base, Box::leak(Box::new(Library::new(registry)?)))
        };
        let glue = Glue::load(base)?;
        let registry = Registry::load(registry)?;
        let base = Base::load(base)?;

        // SAFETY: signatures. The table is static in a library that stays loaded;
        // its first two fields are the same in every version, and the others are
        // only looked at if the version is ours and none of them is missing.
        let kernels = unsafe {
            let table = (glue.ggml_kvforge_api)();
            if table.is_null()
                || (*table).version != KVF_API_VERSION
                || (*table).struct_size < size_of::<kvf_api>()
            {
                return Err(LoadError::OtherVersion);
            }
            &*table
        };

        // SAFETY: signatures; the path outlives the call.
        let device = unsafe {
            let mut device = (registry.ggml_backend_dev_by_type)(DEVICE_CPU);
            if device.is_null() {
                // GGML_BACKEND_DL: backends are libraries that are looked for.
                let folder = c_string(&folder.to_string_lossy());
                (registry.ggml_backend_load_all_from_path)(folder.as_ptr());
                device = (registry.ggml_backend_dev_by_type)(DEVICE_CPU);
            }
            device
        };
        if device.is_null() {
            return Err(LoadError::NoDevice);
        }
        // SAFETY: signatures; `device` is one.
        let (backend, set_n_threads) = unsafe {
            let of_device = (base.ggml_backend_dev_backend_reg)(device);
            let name = c"ggml_backend_set_n_threads";
            (
                (base.ggml_backend_dev_init)(device, ptr::null()),
                (base.ggml_backend_reg_get_proc_address)(of_device, name.as_ptr()),
            )
        };
        if backend.is_null() || set_n_threads.is_null() {
            return Err(LoadError::NoDevice);
        }
        // SAFETY: ggml-backend.h gives the function of this name this type.
        let set_n_threads = unsafe {
            std::mem::transmute::<Opaque, unsafe extern "C" fn(Opaque, c_int)>(set_n_threads)
        };
        Ok(Box::leak(Box::new(Ggml {
            base,
            glue,
            device,
            backend,
            set_n_threads,
            kernels,
        })))
    }

    /// Name of the processor.
    pub fn device(&self) -> String {
        // SAFETY: signatures; `device` is one.
        text(unsafe { (self.base.ggml_backend_dev_description)(self.device) })
    }

    /// The type that ggml prints as `name`.
    pub fn type_named(&self, name: &str) -> Option<Type> {
        // SAFETY: signatures; any number may be asked about.
        let ours = (0..TYPES).filter(|&id| unsafe { (self.glue.ggml_kvforge_is)(id) });
        // ggml_type_name does not check its argument, so only ids that exist come here.
        // SAFETY: signatures; the stock types and ours are within ggml's table.
        let name_of = |id| text(unsafe { (self.base.ggml_type_name)(id) });
        STOCK
            .into_iter()
            .chain(ours)
            .find(|&id| name_of(id) == name)
            .map(Type)
    }

    /// Name of the instruction set that the kernels take in this process.
    pub fn isa(&self) -> String {
        // SAFETY: signatures.
        let isa = unsafe { (self.glue.ggml_kvforge_isa)() };
        text((self.kernels.isa_name)(isa))
    }

    /// Every counter that is not zero, by name of the kernel and slot.
    pub fn counters(&self) -> BTreeMap<(String, u32), u64> {
        let mut all = BTreeMap::new();
        let mut cursor = 0;
        let mut next = kvf_count {
            r#type: 0,
            op: 0,
            isa: 0,
            slot: 0,
            count: 0,
        };
        // SAFETY: both point to locals.
        while unsafe { (self.kernels.counter_next)(&mut cursor, &mut next) } == KVF_OK {
            let kernel = text((self.kernels.kernel_name)(next.r#type, next.op, next.isa));
            all.insert((kernel, next.slot), next.count);
        }
        all
    }

    /// Bytes of a row of `n` values.
    pub fn row_bytes(&self, ty: Type, n: usize) -> usize {
        // SAFETY: signatures; `ty` came from ggml.
        unsafe { (self.base.ggml_row_size)(ty.0, n as i64) }
    }

    /// An empty graph, with room for `tensors` tensors.
    pub fn graph(&'static self, tensors: usize) -> Graph {
        // SAFETY: signatures. The context keeps only headers (no_alloc); the
        // tensors' memory comes from the backend, in `Graph::allocate`.
        unsafe {
            let b = &self.base;
            let context = (b.ggml_init)(InitParams {
                mem_size: tensors * (b.ggml_tensor_overhead)() + (b.ggml_graph_overhead)(),
                mem_buffer: ptr::null_mut(),
                no_alloc: true,
            });
            Graph {
                ggml: self,
                context: NonNull::new(context).expect("ggml_init has memory"),
                buffer: OnceLock::new(),
            }
        }
    }
}

/// Tensors, and the operations that make them out of each other.
pub struct Graph {
    ggml: &'static Ggml,
    context: NonNull<c_void>,
    buffer: OnceLock<NonNull<c_void>>,
}

/// A tensor of a graph.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    raw: NonNull<c_void>,
    graph: PhantomData<&'g Graph>,
}

/// Why a graph did not run.
#[derive(Debug, thiserror::Error)]
pub enum ComputeError {
    /// The backend says beforehand that it cannot.
    #[error("the backend says that it does not support the operation")]
    Unsupported,
    /// It tried and failed.
    #[error("the graph failed with status {0}")]
    Failed(i32),
}

impl Graph {
    fn base(&self) -> &'static Base {
        &self.ggml.base
    }

    fn context(&self) -> Opaque {
        self.context.as_ptr()
    }

    fn tensor(&self, raw: Opaque) -> Tensor<'_> {
        Tensor {
            raw: NonNull::new(raw).expect("ggml makes a tensor or ends the process"),
            graph: PhantomData,
        }
    }

    /// A tensor of up to four sizes, fastest first.
    pub fn new_tensor(&self, ty: Type, sizes: &[usize]) -> Tensor<'_> {
        let mut ne = [1i64; 4];
        for (to, from) in ne.iter_mut().zip(sizes) {
            *to = *from as i64;
        }
        // SAFETY: signatures; `ne` holds the four sizes that are announced.
        self.tensor(unsafe { (self.base().ggml_new_tensor)(self.context(), ty.0, 4, ne.as_ptr()) })
    }

    /// The same with a name.
    pub fn named(&self, name: &str, ty: Type, sizes: &[usize]) -> Tensor<'_> {
        let tensor = self.new_tensor(ty, sizes);
        // SAFETY: signatures; ggml copies the name.
        unsafe { (self.base().ggml_set_name)(tensor.raw.as_ptr(), c_string(name).as_ptr()) };
        tensor
    }

    /// The first `rows` rows of a cache `[heads * len, cells]` as attention sees
    /// them: `[len, rows, heads]`, not contiguous.
    pub fn heads<'g>(
        &'g self,
        cache: Tensor<'g>,
        ty: Type,
        len: usize,
        heads: usize,
        rows: usize,
    ) -> Tensor<'g> {
        let head = self.ggml.row_bytes(ty, len);
        let row = self.ggml.row_bytes(ty, len * heads);
        // SAFETY: signatures; ggml checks that the view is inside its source.
        self.tensor(unsafe {
            let (b, c) = (self.base(), self.context());
            let (len, heads, rows) = (len as i64, heads as i64, rows as i64);
            let view = (b.ggml_view_3d)(c, cache.raw.as_ptr(), len, heads, rows, head, row, 0);
            (b.ggml_permute)(c, view, 0, 2, 1, 3)
        })
    }

    /// `SET_ROWS`: row `i` of `rows` goes to row `indices[i]` of `into`.
    pub fn set_rows<'g>(
        &'g self,
        into: Tensor<'g>,
        rows: Tensor<'g>,
        indices: Tensor<'g>,
    ) -> Tensor<'g> {
        let (a, b, c) = (into.raw.as_ptr(), rows.raw.as_ptr(), indices.raw.as_ptr());
        // SAFETY: signatures, misuse.
        self.tensor(unsafe { (self.base().ggml_set_rows)(self.context(), a, b, c) })
    }

    /// `GET_ROWS`: rows `indices` of `from`, as F32.
    pub fn get_rows<'g>(&'g self, from: Tensor<'g>, indices: Tensor<'g>) -> Tensor<'g> {
        let (a, b) = (from.raw.as_ptr(), indices.raw.as_ptr());
        // SAFETY: signatures, misuse.
        self.tensor(unsafe { (self.base().ggml_get_rows)(self.context(), a, b) })
    }

    /// `CPY` of `from` into `into`.
    pub fn copy<'g>(&'g self, from: Tensor<'g>, into: Tensor<'g>) -> Tensor<'g> {
        let (a, b) = (from.raw.as_ptr(), into.raw.as_ptr());
        // SAFETY: signatures, misuse.
        self.tensor(unsafe { (self.base().ggml_cpy)(self.context(), a, b) })
    }

    /// `MUL_MAT`: rows of `a` times rows of `b`.
    pub fn mul_mat<'g>(&'g self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        let (a, b) = (a.raw.as_ptr(), b.raw.as_ptr());
        // SAFETY: signatures, misuse.
        self.tensor(unsafe { (self.base().ggml_mul_mat)(self.context(), a, b) })
    }

    /// `FLASH_ATTN_EXT`.
    pub fn flash_attn<'g>(&'g self, x: &FlashAttn<'g>) -> Tensor<'g> {
        let (q, k, v, mask) = (x.q.raw, x.k.raw, x.v.raw, x.mask.raw);
        let (q, k, v, mask) = (q.as_ptr(), k.as_ptr(), v.as_ptr(), mask.as_ptr());
        let b = self.base();
        // SAFETY: signatures, misuse.
        self.tensor(unsafe {
            let out = (b.ggml_flash_attn_ext)(
                self.context(),
                q,
                k,
                v,
                mask,
                x.scale,
                x.max_bias,
                x.softcap,
            );
            if let Some(sinks) = x.sinks {
                (b.ggml_flash_attn_ext_add_sinks)(out, sinks.raw.as_ptr());
            }
            out
        })
    }

    /// `ATTN_SCORE_*`.
    pub fn attn_score<'g>(&'g self, x: &Score<'g>) -> Tensor<'g> {
        let (q, k) = (x.q.raw.as_ptr(), x.k.raw.as_ptr());
        let (b, c, heads) = (self.base(), self.context(), x.n_kv_heads as c_int);
        // SAFETY: signatures, misuse.
        self.tensor(unsafe {
            match x.op {
                ScoreOp::Tbq => (b.ggml_attn_score_tbq)(c, q, k, heads),
                ScoreOp::Qjl => (b.ggml_attn_score_qjl)(c, q, k, heads),
                ScoreOp::Polar { use_qjl, preht } => match preht {
                    false => (b.ggml_attn_score_polar)(c, q, k, heads, use_qjl),
                    true => (b.ggml_attn_score_polar_preht)(c, q, k, heads, use_qjl),
                },
            }
        })
    }

    /// Gives every tensor its memory. Once, when all have been made.
    pub fn allocate(&self) {
        self.buffer.get_or_init(|| {
            // SAFETY: signatures; `Drop` frees the buffer.
            let buffer = unsafe {
                (self.base().ggml_backend_alloc_ctx_tensors)(self.context(), self.ggml.backend)
            };
            NonNull::new(buffer).expect("the CPU backend has memory")
        });
    }

    /// Bytes of a tensor.
    pub fn len(&self, tensor: Tensor<'_>) -> usize {
        // SAFETY: signatures.
        unsafe { (self.base().ggml_nbytes)(tensor.raw.as_ptr()) }
    }

    /// Sets all bytes of a contiguous tensor.
    pub fn write(&self, tensor: Tensor<'_>, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len(tensor), "bytes of the tensor");
        // SAFETY: signatures; `bytes` is as long as the tensor.
        unsafe {
            (self.base().ggml_backend_tensor_set)(
                tensor.raw.as_ptr(),
                bytes.as_ptr().cast(),
                0,
                bytes.len(),
            );
        }
    }

    /// All bytes of a contiguous tensor.
    pub fn read(&self, tensor: Tensor<'_>) -> Vec<u8> {
        let mut bytes = vec![0; self.len(tensor)];
        // SAFETY: signatures; `bytes` is as long as the tensor.
        unsafe {
            (self.base().ggml_backend_tensor_get)(
                tensor.raw.as_ptr(),
                bytes.as_mut_ptr().cast(),
                0,
                bytes.len(),
            );
        }
        bytes
    }

    /// Runs what `result` needs.
    pub fn compute(&self, result: Tensor<'_>, threads: usize) -> Result<(), ComputeError> {
        let (b, backend) = (self.base(), self.ggml.backend);
        // SAFETY: signatures; the backend allows any positive number of threads.
        // The graph is one of this context, made anew for each run.
        let status = unsafe {
            if !(b.ggml_backend_supports_op)(backend, result.raw.as_ptr()) {
                return Err(ComputeError::Unsupported);
            }
            let graph = (b.ggml_new_graph)(self.context());
            (b.ggml_build_forward_expand)(graph, result.raw.as_ptr());
            (self.ggml.set_n_threads)(backend, threads.max(1) as c_int);
            (b.ggml_backend_graph_compute)(backend, graph)
        };
        match status {
            0 => Ok(()),
            status => Err(ComputeError::Failed(status)),
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: signatures; no tensor outlives its graph.
        unsafe {
            if let Some(buffer) = self.buffer.get() {
                (self.base().ggml_backend_buffer_free)(buffer.as_ptr());
            }
            (self.base().ggml_free)(self.context());
        }
    }
}

/// Arguments of [`Graph::flash_attn`].
pub struct FlashAttn<'g> {
    /// `[head_dim, n_q, heads]`, F32.
    pub q: Tensor<'g>,
    /// `[head_dim, n_kv, kv heads]`.
    pub k: Tensor<'g>,
    /// `[head_dim, n_kv, kv heads]`.
    pub v: Tensor<'g>,
    /// `[n_kv, n_q]`, F16.
    pub mask: Tensor<'g>,
    /// `[heads]`, F32.
    pub sinks: Option<Tensor<'g>>,
    /// Factor on the scores.
    pub scale: f32,
    /// Largest ALiBi bias; 0 for none.
    pub max_bias: f32,
    /// Soft-cap of the scores; 0 for none.
    pub softcap: f32,
}

/// A form of the operations that give plain scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreOp {
    /// `ATTN_SCORE_TBQ`, queries as they are.
    Tbq,
    /// `ATTN_SCORE_QJL`, the sketch of the queries.
    Qjl,
    /// `ATTN_SCORE_POLAR`.
    Polar {
        /// Whether the residual is added.
        use_qjl: bool,
        /// Whether a Hadamard transform has gone over the queries.
        preht: bool,
    },
}

impl ScoreOp {
    /// What tells it from other forms of the same operation.
    pub fn in_words(self) -> String {
        match self {
            ScoreOp::Tbq | ScoreOp::Qjl => String::new(),
            ScoreOp::Polar { use_qjl, preht } => {
                format!("use_qjl {}, preht {}, ", u8::from(use_qjl), u8::from(preht))
            }
        }
    }
}

/// Arguments of [`Graph::attn_score`].
pub struct Score<'g> {
    /// Which form.
    pub op: ScoreOp,
    /// `[head_dim or sketch, heads, n_q]`, F32.
    pub q: Tensor<'g>,
    /// `[head_dim, n_kv, kv heads]`.
    pub k: Tensor<'g>,
    /// Heads of K.
    pub n_kv_heads: usize,
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("no name holds a NUL")
}

/// Copies a C string; null gives "".
fn text(raw: *const c_char) -> String {
    if raw.is_null() {
        return String::new();
    }
    // SAFETY: the strings that come here are NUL-terminated and outlive the copy.
    unsafe { CStr::from_ptr(raw) }
        .to_string_lossy()
        .into_owned()
}
