// What the lines that kvforge inserts into upstream files call. Everything
// behind it lives in this folder and in the Rust kernels.
#pragma once

#include "ggml.h"
#include "kvforge.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

// --- in ggml-base -----------------------------------------------------------

// The kernels, and with them the counters that prove which one ran. There is
// one copy in a process, however ggml is linked.
GGML_API const struct kvf_api * ggml_kvforge_api(void);

// The ISA that the environment variable KVFORGE_ISA (auto, scalar, avx2) asks for.
GGML_API uint32_t ggml_kvforge_isa(void);

// Does the environment variable KVFORGE_ENCODER (best, reference) ask for the
// encoder that the public ones agree with byte for byte? The best one is the default.
GGML_API bool ggml_kvforge_reference_encoder(void);

// Is this one of the types that kvforge adds?
GGML_API bool ggml_kvforge_is(enum ggml_type type);

// The type in the kernels' own numbering, or UINT32_MAX if they cannot read it.
GGML_API uint32_t ggml_kvforge_kernel_type(enum ggml_type type);

// Why K and V of these types, in heads of these sizes, cannot be served, as a
// sentence that says what to do; NULL if they can or if neither is ours. The
// text is the thread's until its next call.
GGML_API const char * ggml_kvforge_cache_problem(enum ggml_type type_k, enum ggml_type type_v, int64_t head_k, int64_t head_v);

// The same for the model in a GGUF file, by what the file says; NULL also if it
// does not say: the check of the loaded model comes later in any case.
GGML_API const char * ggml_kvforge_file_problem(const char * path, enum ggml_type type_k, enum ggml_type type_v);

// One line about the kernels that will serve a cache of these types; "" if none of ours.
GGML_API const char * ggml_kvforge_cache_kernels(enum ggml_type type_k, enum ggml_type type_v);

// Can the positions of keys of this type be shifted in the cache? `rotated` values
// of a head go through RoPE.
GGML_API bool ggml_kvforge_can_shift(enum ggml_type type, int64_t head, int64_t rotated);

// What a saved state says of a tensor of ours beside its id.
typedef struct ggml_kvforge_state_tag {
    char     name[32];
    uint64_t layout;
} ggml_kvforge_state_tag;

GGML_API ggml_kvforge_state_tag ggml_kvforge_state_tag_of(enum ggml_type type);

// Was a tensor with this tag written by the same format? If not, says so in the log.
GGML_API bool ggml_kvforge_state_tag_fits(enum ggml_type type, const ggml_kvforge_state_tag * tag);

// Facts about a type of ours.
GGML_API struct kvf_format_info ggml_kvforge_info(enum ggml_type type);

// Rows of the type traits: original domain, always.
#define KVFORGE_DECLARE(NAME, name, ...) \
    GGML_API void ggml_kvforge_to_float_##name(const void * GGML_RESTRICT x, float * GGML_RESTRICT y, int64_t k); \
    GGML_API void ggml_kvforge_from_float_ref_##name(const float * GGML_RESTRICT x, void * GGML_RESTRICT y, int64_t k); \
    GGML_API void ggml_kvforge_from_float_##name(const float * GGML_RESTRICT x, void * GGML_RESTRICT y, int64_t k); \
    GGML_API void ggml_kvforge_vec_dot_##name(int n, float * GGML_RESTRICT s, size_t bs, const void * GGML_RESTRICT x, size_t bx, const void * GGML_RESTRICT y, size_t by, int nrc);
#include "kvforge-formats.h"
KVFORGE_FORMATS(KVFORGE_DECLARE)
#undef KVFORGE_DECLARE

// Encodes `n` values, and when they cannot be encoded (inf, NaN, overflow)
// stores blocks that decode to NaN and says so once: a broken row must fail as
// loudly as it would in an f16 cache. `name` is the tensor written to.
GGML_API void ggml_kvforge_encode(enum ggml_type type, uint32_t isa, const float * x, void * bytes, int64_t n, uint32_t slot, const char * name);

// Do all blocks decode to finite values?
GGML_API bool ggml_kvforge_validate(enum ggml_type type, const void * bytes, size_t n_blocks);

// Counter slot of a cache tensor: layer + 1 from a name that holds "_l<layer>", else 0.
GGML_API uint32_t ggml_kvforge_slot(const char * name);

// Gives FLASH_ATTN_EXT on types of ours further keys and values, which stand beside
// those of the cache in the same softmax: exact copies of some, which the mask of the
// node then hides. `k` and `v` are f16, laid out as the node's own K and V are; so are
// `k_more` and `v_more`, or both NULL. `mask` is f16, [keys of k, then of k_more,
// positions, 1, sequences].
GGML_API void ggml_kvforge_flash_attn_add_exact(struct ggml_tensor * node, struct ggml_tensor * mask,
        struct ggml_tensor * k, struct ggml_tensor * v, struct ggml_tensor * k_more, struct ggml_tensor * v_more);

// Where the node keeps them.
enum ggml_kvforge_flash_attn_src {
    KVFORGE_SRC_EXACT_MASK = 5,
    KVFORGE_SRC_EXACT_K    = 6, // then V, K of the second part, V of the second part
};

// --- in ggml-cpu ------------------------------------------------------------

// Tasks for a node on our types; 0 if the node is none of ours.
int ggml_kvforge_n_tasks(const struct ggml_tensor * node, int n_threads);

// Bytes of work buffer for a node on our types; 0 if the node is none of ours.
size_t ggml_kvforge_work_size(const struct ggml_tensor * node, int n_tasks);

// Computes a node on our types and returns true; false if the node is none of ours.
bool ggml_kvforge_compute_forward(const struct ggml_compute_params * params, struct ggml_tensor * node);

// 1 or 0: the CPU backend can or cannot run this node; -1 if it is none of ours.
int ggml_kvforge_supports_op(const struct ggml_tensor * node);

#ifdef __cplusplus
}
#endif
