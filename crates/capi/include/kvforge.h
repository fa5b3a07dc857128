// The C ABI of kvforge. Generated from crates/capi by cbindgen: do not edit.

#pragma once

#include <stddef.h>
#include <stdint.h>

// Most segments that one attention may have.
#define KVF_MAX_SEGMENTS 16

// The call did what it says.
#define KVF_OK 0

// A required pointer is null.
#define KVF_NULL 1

// A type, operation or domain number stands for nothing.
#define KVF_BAD_TYPE 2

// Lengths, head counts, strides, alignments or ranges do not fit together.
#define KVF_BAD_SHAPE 3

// This machine or this version cannot do it.
#define KVF_UNSUPPORTED 4

// A value to encode is infinite or NaN.
#define KVF_NON_FINITE 5

// The scale of a block to encode is above 65504.
#define KVF_SCALE_OVERFLOW 6

// The scratch memory is too small or not 64-byte aligned.
#define KVF_SCRATCH 7

// The bytes are no calibration file.
#define KVF_NOT_CALIBRATION 8

// The calibration file is of a version that this library does not read.
#define KVF_CALIBRATION_VERSION 9

// The calibration file's hash does not fit its content.
#define KVF_CALIBRATION_DAMAGED 10

// The calibration file says what cannot be.
#define KVF_CALIBRATION_MALFORMED 11

// RoPE does something else at position 1 than to turn pairs of channels.
#define KVF_NOT_TURNS 12

// RoPE turns other pairs of channels than when the layer was calibrated.
#define KVF_OTHER_TURNS 13

// Version of `kvf_api`'s table and of every struct here. A host asks for the
// version of the header that it was built with, and gets that one or none.
#define KVF_API_VERSION 3

// fp32. A compressed format is its own number, see `kvf_format_info`.
#define KVF_F32 4096

// IEEE binary16.
#define KVF_F16 4097

// ggml's q8_0: blocks of 32 values, an fp16 scale and 32 signed bytes.
#define KVF_Q8_0 4098

// The format `q4_polar`, read with the residual that its blocks carry.
#define KVF_Q4_POLAR_RESIDUAL 4099

// The fastest instruction set of this machine.
#define KVF_ISA_AUTO 0

// Plain code.
#define KVF_ISA_SCALAR 1

// x86-64 with AVX2, FMA and F16C.
#define KVF_ISA_AVX2 2

// The vector that was encoded.
#define KVF_ORIGINAL 0

// The vector that was coded, still under the format's rotation, or for `qjl1_256`
// projected.
#define KVF_ROTATED 1

// fp32 row to blocks; counted in blocks.
#define KVF_OP_ENCODE 0

// Blocks to fp32 row; counted in blocks.
#define KVF_OP_DECODE 1

// Query-key dot products; counted in (query, head, key) products.
#define KVF_OP_SCORE 2

// Fused attention; counted in (query, head) rows finished.
#define KVF_OP_ATTEND 3

// One stored row times one fp32 row; counted in blocks.
#define KVF_OP_DOT 4

// A run of keys and values of the same two types.
struct kvf_segment {
  // Type of the keys.
  uint32_t k_type;
  // Type of the values.
  uint32_t v_type;
  // Keys, `[n_kv, n_kv_heads, head_dim_k]` by the strides below.
  const void *k;
  // Values, `[n_kv, n_kv_heads, head_dim_v]` by the strides below.
  const void *v;
  // Tokens in the segment.
  size_t n_kv;
  // Bytes from token to token in `k`.
  size_t k_row_stride;
  // Bytes from kv head to kv head in `k`.
  size_t k_head_stride;
  // Bytes from token to token in `v`.
  size_t v_row_stride;
  // Bytes from kv head to kv head in `v`.
  size_t v_head_stride;
  // Added to the scores, `[n_q, mask_heads, n_kv]`; null for none. Minus
  // infinity hides a key, whatever its bytes are.
  const void *mask;
  // `KVF_F16` or `KVF_F32`; ignored without a mask.
  uint32_t mask_type;
  // Bytes from query position to query position in `mask`.
  size_t mask_row_stride;
  // Bytes from head to head in `mask`; 0 if all heads share it.
  size_t mask_head_stride;
  // Heads of the mask: query head `h` reads `h % mask_heads`. 0 counts as 1.
  size_t mask_heads;
  // Position of the first key, for causal attention.
  int64_t pos0;
};

// One attention over the keys and values of all segments together.
//
// For query position `q`, head `h` and a key of `h`'s kv head
// `h / (n_heads / n_kv_heads)`:
// `s = dot(q, k) * scale`; with a soft-cap `s = softcap * tanh(s / softcap)`;
// with a mask `s += slopes[h] * mask[q][key]`. A key is hidden if its mask is
// minus infinity, or if `causal` and it stands after the query. The output is
// the softmax-weighted sum of the visible values, `exp(sinks[h])` added to the
// denominator; zeros for a query that sees no key.
struct kvf_attention {
  // `sizeof(struct kvf_attention)`.
  size_t struct_size;
  // Values of a query and of a key.
  size_t head_dim_k;
  // Values of a value and of an output.
  size_t head_dim_v;
  // Query heads, a multiple of `n_kv_heads`.
  size_t n_heads;
  // Heads of K and V.
  size_t n_kv_heads;
  // Query positions.
  size_t n_q;
  // Queries, `[n_q, n_heads, head_dim_k]` by the strides below.
  const float *q;
  // Bytes from query position to query position in `q`.
  size_t q_row_stride;
  // Bytes from head to head in `q`.
  size_t q_head_stride;
  // Outputs, `[n_q, n_heads, head_dim_v]` by the strides below.
  float *out;
  // Bytes from query position to query position in `out`.
  size_t out_row_stride;
  // Bytes from head to head in `out`.
  size_t out_head_stride;
  // Factor on every dot product.
  float scale;
  // Soft-cap of the scores; 0 for none.
  float softcap;
  // ALiBi slopes, `[n_heads]`, factors on the mask; null for 1.
  const float *slopes;
  // Logits of keys without a value, `[n_heads]`; null for none.
  const float *sinks;
  // Not 0 if keys after the query are hidden.
  uint32_t causal;
  // Position of the first query, for causal attention.
  int64_t q_pos0;
  // The cache, in parts.
  const struct kvf_segment *segments;
  // Parts of the cache, at most `KVF_MAX_SEGMENTS`.
  size_t n_segments;
  // `KVF_ISA_...`.
  uint32_t isa;
  // Slot that the work is counted under.
  uint32_t slot;
};

// What a calibration file is about.
struct kvf_calibration {
  // Version of the file.
  uint32_t version;
  // Layers that it holds, at least 1.
  uint32_t n_layers;
  // Identity of the model.
  uint64_t model;
  // Hash of the content: two files with the same one give the same centres.
  uint64_t hash;
  // Tokens that the means were taken over.
  uint64_t n_tokens;
  // Name of the model; NUL-terminated, and cut where it is too long for that.
  char name[64];
};

// A layer of a calibration file.
struct kvf_calibrated_layer {
  // Its number in the model.
  uint32_t layer;
  // Heads of keys and values.
  uint32_t n_head_kv;
  // Values of a key.
  uint32_t head_dim;
  // 1 if RoPE turns its keys, else 0.
  uint32_t has_rope;
};

// One counter that is not zero.
struct kvf_count {
  // Compressed format.
  uint32_t type;
  // `KVF_OP_...`.
  uint32_t op;
  // `KVF_ISA_...`, not AUTO.
  uint32_t isa;
  // Slot that the calls named; a slot of 1024 or more counts as 1023.
  uint32_t slot;
  // Blocks, dot products or rows, see `KVF_OP_...`.
  uint64_t count;
};

// Facts about a compressed format.
struct kvf_format_info {
  // Name, for instance `tbq4_0`, NUL-terminated.
  char name[32];
  // The number that stands for it as a type.
  uint32_t id;
  // Values in a block.
  uint32_t block_len;
  // Bytes of a block.
  uint32_t block_bytes;
  // Bits of one code.
  uint32_t code_bits;
  // Values of a block in the rotated domain.
  uint32_t coded_len;
  // 1 if a cache may hold keys in it, else 0.
  uint32_t holds_keys;
  // 1 if a cache may hold values in it, else 0.
  uint32_t holds_values;
  // The same number for the same meaning of bytes: beside the name in saved files.
  uint64_t layout_hash;
  // Relative mean squared error of `kvf_encode` then decode on Gaussian values.
  double gaussian_mse;
  // The same of `kvf_encode_best`.
  double gaussian_mse_best;
  // Relative departure from it that a test allows.
  double gaussian_mse_margin;
  // Largest `|score - exact| / (|q| |k|)` of a correct kernel.
  double score_tolerance;
  // Largest `|out - exact| / max |V|` of a correct kernel.
  double attention_tolerance;
};

// Plain dot products of queries and keys: `out[q][h][t] = scale * dot(q, k)`.
struct kvf_scores {
  // `sizeof(struct kvf_scores)`.
  size_t struct_size;
  // Type of the keys.
  uint32_t k_type;
  // `KVF_ISA_...`.
  uint32_t isa;
  // Slot that the work is counted under.
  uint32_t slot;
  // `KVF_ORIGINAL` for queries as they are, `KVF_ROTATED` for what the transform
  // of the keys' format has made of them.
  uint32_t q_domain;
  // Factor on every score.
  float scale;
  // Values of a query and of a key.
  size_t head_dim;
  // Query heads, a multiple of `n_kv_heads`.
  size_t n_heads;
  // Heads of K.
  size_t n_kv_heads;
  // Query positions.
  size_t n_q;
  // Keys.
  size_t n_kv;
  // Queries, `[n_q, n_heads, head_dim]` by the strides below; in the rotated
  // domain as long as keys are there.
  const float *q;
  // Bytes from query position to query position in `q`.
  size_t q_row_stride;
  // Bytes from head to head in `q`.
  size_t q_head_stride;
  // Keys, `[n_kv, n_kv_heads, head_dim]` by the strides below.
  const void *k;
  // Bytes from token to token in `k`.
  size_t k_row_stride;
  // Bytes from kv head to kv head in `k`.
  size_t k_head_stride;
  // Scores, `[n_q, n_heads, n_kv]` by the strides below.
  float *out;
  // Bytes from query position to query position in `out`.
  size_t out_row_stride;
  // Bytes from head to head in `out`.
  size_t out_head_stride;
  // Working memory, 64-byte aligned, of `kvf_score_scratch` bytes.
  void *scratch;
  // Bytes of `scratch`.
  size_t scratch_bytes;
};

// Every function of this library under its own name.
struct kvf_api {
  // `sizeof(struct kvf_api)` as this library was built.
  size_t struct_size;
  // Version of this table.
  uint32_t version;
  // See `kvf_status_text`.
  const char *(*status_text)(int32_t status);
  // See `kvf_isa_name`.
  const char *(*isa_name)(uint32_t isa);
  // See `kvf_isa_resolve`.
  uint32_t (*isa_resolve)(uint32_t isa);
  // See `kvf_kernel_name`.
  const char *(*kernel_name)(uint32_t type, uint32_t op, uint32_t isa);
  // See `kvf_format_info`.
  int32_t (*format_info)(uint32_t index, struct kvf_format_info *out);
  // See `kvf_encode`.
  int32_t (*encode)(uint32_t type,
                    uint32_t isa,
                    const float *x,
                    void *bytes,
                    size_t n_values,
                    uint32_t slot,
                    size_t *bad_index);
  // See `kvf_encode_best`.
  int32_t (*encode_best)(uint32_t type,
                         uint32_t isa,
                         const float *x,
                         void *bytes,
                         size_t n_values,
                         uint32_t slot,
                         size_t *bad_index);
  // See `kvf_poison`.
  int32_t (*poison)(uint32_t type, void *bytes, size_t n_values);
  // See `kvf_decode`.
  int32_t (*decode)(uint32_t type,
                    uint32_t isa,
                    uint32_t domain,
                    const void *bytes,
                    float *x,
                    size_t n_values,
                    uint32_t slot);
  // See `kvf_dot`.
  int32_t (*dot)(uint32_t type,
                 uint32_t isa,
                 const void *bytes,
                 const float *q,
                 size_t n_values,
                 float *out,
                 uint32_t slot);
  // See `kvf_attend_scratch`.
  size_t (*attend_scratch)(const struct kvf_attention *a, size_t n_q);
  // See `kvf_partial_floats`.
  size_t (*partial_floats)(const struct kvf_attention *a);
  // See `kvf_attend`.
  int32_t (*attend)(const struct kvf_attention *a,
                    size_t kv_head,
                    size_t q_begin,
                    size_t q_end,
                    void *scratch,
                    size_t scratch_bytes);
  // See `kvf_attend_partial`.
  int32_t (*attend_partial)(const struct kvf_attention *a,
                            size_t kv_head,
                            size_t q_begin,
                            size_t q_end,
                            size_t segment,
                            size_t kv_begin,
                            size_t kv_end,
                            float *partials,
                            void *scratch,
                            size_t scratch_bytes);
  // See `kvf_attend_merge`.
  int32_t (*attend_merge)(const struct kvf_attention *a,
                          size_t kv_head,
                          size_t q_begin,
                          size_t q_end,
                          const float *partials,
                          size_t n_partials,
                          size_t partial_stride_floats);
  // See `kvf_score_scratch`.
  size_t (*score_scratch)(const struct kvf_scores *s);
  // See `kvf_score`.
  int32_t (*score)(const struct kvf_scores *s);
  // See `kvf_counters_reset`.
  void (*counters_reset)(void);
  // See `kvf_counter`.
  uint64_t (*counter)(uint32_t type, uint32_t op, uint32_t isa, uint32_t slot);
  // See `kvf_counter_next`.
  int32_t (*counter_next)(size_t *cursor, struct kvf_count *out);
  // See `kvf_calibration_read`.
  int32_t (*calibration_read)(const void *bytes, size_t n, struct kvf_calibration *out);
  // See `kvf_calibration_layer`.
  int32_t (*calibration_layer)(const void *bytes,
                               size_t n,
                               uint32_t index,
                               struct kvf_calibrated_layer *out);
  // See `kvf_static_centre`.
  int32_t (*static_centre)(const void *bytes,
                           size_t n,
                           uint32_t index,
                           const float *step,
                           uint64_t n_positions,
                           float *centre);
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Bytes of 64-byte aligned scratch that `kvf_attend` and `kvf_attend_partial`
// need for a range of `n_q` query positions. Only looks at head counts and sizes:
// pointers may still be null. 0 if those are bad.
//
// Safety:
// `a` is null, or readable as the size it starts with.
size_t kvf_attend_scratch(const struct kvf_attention *a, size_t n_q);

// Floats of one row of partials: `head_dim_v` accumulated values in the original
// domain, not divided; the largest score; the sum of `exp(score - largest)`. 0
// for bad arguments.
//
// Safety:
// As `kvf_attend_scratch`.
size_t kvf_partial_floats(const struct kvf_attention *a);

// Attention of all query heads of one kv head at the positions
// `q_begin .. q_end`, over all segments; writes those rows of `out`.
//
// Counts the finished rows under `slot`, for every compressed format among the
// segments. Threads may work on different heads or positions of one
// `kvf_attention` at the same time, each with its own scratch.
//
// Anything but `KVF_OK` has written nothing.
//
// Safety:
// `a` is null, or readable as the size it starts with; its `segments` are null or
// readable. Tensors are null, or readable (`out`: writable) at every row that
// their lengths and strides describe, and nobody writes them (`out`: uses the
// rows of this call) meanwhile. `slopes` and `sinks` are null or readable.
// `scratch` is null, or writable for `scratch_bytes` and used by nobody else
// meanwhile.
int32_t kvf_attend(const struct kvf_attention *a,
                   size_t kv_head,
                   size_t q_begin,
                   size_t q_end,
                   void *scratch,
                   size_t scratch_bytes);

// As `kvf_attend`, but over the keys `kv_begin .. kv_end` of one segment only,
// and unfinished: writes rows of partials,
// `[(q - q_begin) * (n_heads / n_kv_heads) + head in group][kvf_partial_floats]`,
// for `kvf_attend_merge`.
//
// Safety:
// As `kvf_attend`; `partials` is null, or writable for those rows and used by
// nobody else meanwhile.
int32_t kvf_attend_partial(const struct kvf_attention *a,
                           size_t kv_head,
                           size_t q_begin,
                           size_t q_end,
                           size_t segment,
                           size_t kv_begin,
                           size_t kv_end,
                           float *partials,
                           void *scratch,
                           size_t scratch_bytes);

// Merges `n_partials` partials of the same kv head and positions, the start of
// each `partial_stride_floats` floats behind the one before; adds the sinks,
// divides, and writes the rows of `out`. Counts as `kvf_attend` does.
//
// Safety:
// As `kvf_attend`; `partials` is null, or readable for those rows and written by
// nobody meanwhile.
int32_t kvf_attend_merge(const struct kvf_attention *a,
                         size_t kv_head,
                         size_t q_begin,
                         size_t q_end,
                         const float *partials,
                         size_t n_partials,
                         size_t partial_stride_floats);

// Checks a calibration file, all of it, and says what it is about. The bytes may
// lie at any address.
//
// Safety:
// `bytes` is null, or readable for `n` bytes that nobody writes meanwhile; `out`
// is null or writable.
int32_t kvf_calibration_read(const void *bytes, size_t n, struct kvf_calibration *out);

// Tells the shape of layer number `index` of the file, counted from 0, which is
// not its number in the model. `KVF_BAD_SHAPE` past the last one.
//
// Safety:
// As `kvf_calibration_read`.
int32_t kvf_calibration_layer(const void *bytes,
                              size_t n,
                              uint32_t index,
                              struct kvf_calibrated_layer *out);

// Computes the static centre of layer number `index` of the file,
// `[n_head_kv, head_dim]`: the mean key of a context of `n_positions`, at least 1.
//
// `step` is `[head_dim, head_dim]`, row `i` the image of unit vector `i` under the
// graph's RoPE at position 1, the graph that the centre is for; null if it has no
// RoPE. `KVF_NOT_TURNS` if it is no turning of pairs of channels,
// `KVF_OTHER_TURNS` if it pairs other channels than the calibrated one did. The
// angles may differ, as those of a stretched context do. Writes only on `KVF_OK`.
//
// Safety:
// As `kvf_calibration_read`; `step` is null, or readable for its values; `centre`
// is null, or writable for its values and used by nobody else meanwhile.
int32_t kvf_static_centre(const void *bytes,
                          size_t n,
                          uint32_t index,
                          const float *step,
                          uint64_t n_positions,
                          float *centre);

// Encodes `n_values` values, a multiple of the block length, into their blocks, as
// the public encoder of the format does, byte for byte. The same bytes on every
// instruction set. Counts blocks under `slot`.
//
// `KVF_NON_FINITE` sets `*bad_index` (if not null) to the index of the first
// value that is infinite or NaN, `KVF_SCALE_OVERFLOW` to the index of the first
// value of the block. Blocks before the bad one are written, it and later ones
// are untouched. Other errors write nothing.
//
// Safety:
// `x` is null or readable for `n_values` values, `bytes` null or writable for
// their blocks, `bad_index` null or writable; they do not overlap, and nobody
// else writes them or reads `bytes` meanwhile.
int32_t kvf_encode(uint32_t type,
                   uint32_t isa,
                   const float *x,
                   void *bytes,
                   size_t n_values,
                   uint32_t slot,
                   size_t *bad_index);

// As `kvf_encode`, but takes more time to find blocks that decode to less error,
// by the same decoder: see the formats' READMEs. The same bytes on every
// instruction set.
//
// Safety:
// As `kvf_encode`.
int32_t kvf_encode_best(uint32_t type,
                        uint32_t isa,
                        const float *x,
                        void *bytes,
                        size_t n_values,
                        uint32_t slot,
                        size_t *bad_index);

// Fills the blocks of `n_values` values with what decodes to NaN everywhere: for
// hosts that cannot report a row that could not be encoded. Its use then fails
// as visibly as a NaN in an f16 cache.
//
// Safety:
// `bytes` is null or writable for the blocks, and nobody else uses them
// meanwhile.
int32_t kvf_poison(uint32_t type, void *bytes, size_t n_values);

// Decodes blocks into `domain` (`KVF_ORIGINAL` or `KVF_ROTATED`): all that give
// `n_values` values in it, which is `coded_len` (see `kvf_format_info`) a block in
// the rotated one. `type` may also be `KVF_Q4_POLAR_RESIDUAL`, and `KVF_F32`,
// `KVF_F16` or `KVF_Q8_0`, which know no domain. The same values on every instruction set. Counts blocks of
// compressed formats under `slot`.
//
// Safety:
// `bytes` is null or readable for the blocks, `x` null or writable for
// `n_values` values; they do not overlap, and nobody else writes them or reads
// `x` meanwhile.
int32_t kvf_decode(uint32_t type,
                   uint32_t isa,
                   uint32_t domain,
                   const void *bytes,
                   float *x,
                   size_t n_values,
                   uint32_t slot);

// `*out` = dot product of one stored row, decoded into its original domain, and
// the plain row `q`. Counts blocks under `slot`.
//
// Safety:
// `bytes` is null or readable for the blocks, `q` null or readable for
// `n_values` values, `out` null or writable; nobody else writes them meanwhile.
int32_t kvf_dot(uint32_t type,
                uint32_t isa,
                const void *bytes,
                const float *q,
                size_t n_values,
                float *out,
                uint32_t slot);

// Sets every counter to zero.
void kvf_counters_reset(void);

// What a kernel has done for a slot so far; 0 for what is no kernel.
// `KVF_ISA_AUTO` asks for the instruction set that would be taken.
uint64_t kvf_counter(uint32_t type, uint32_t op, uint32_t isa, uint32_t slot);

// Goes through the counters that are not zero: start with `*cursor` 0, call until
// it returns something other than `KVF_OK`, which is `KVF_BAD_SHAPE` at the end.
//
// Safety:
// `cursor` is null or readable and writable, `out` null or writable; nobody
// else uses them meanwhile.
int32_t kvf_counter_next(size_t *cursor, struct kvf_count *out);

// Fills in the facts of format number `index`, counted from 0.
//
// Returns `KVF_BAD_TYPE` past the last one, `KVF_NULL` if `out` is null.
//
// Safety:
// `out` is null or writable.
int32_t kvf_format_info(uint32_t index, struct kvf_format_info *out);

// Bytes of 64-byte aligned scratch that `kvf_score` needs. Only looks at head
// counts and sizes: pointers may still be null. 0 if those are bad.
//
// Safety:
// `s` is null, or readable as the size it starts with.
size_t kvf_score_scratch(const struct kvf_scores *s);

// Every query head times every key of its kv head, not masked. A
// key is decoded once for all heads that share it. Counts the dot products under
// `slot`, if the keys are of a compressed format.
//
// Anything but `KVF_OK` has written nothing.
//
// Safety:
// `s` is null, or readable as the size it starts with. Its tensors are null, or
// readable (`out`: writable) at every row that their lengths and strides
// describe, and nobody writes them (`out`: uses them) meanwhile. `scratch` is
// null, or writable for `scratch_bytes` and used by nobody else meanwhile.
int32_t kvf_score(const struct kvf_scores *s);

// One English sentence: what a status means and what to do. Static,
// NUL-terminated, never null.
const char *kvf_status_text(int32_t status);

// The table of `version`; null if this library has no such version. Static.
const struct kvf_api *kvf_api(uint32_t version);

// Name of an instruction set, `"scalar"` or `"avx2"`; for `KVF_ISA_AUTO` the
// one that would be taken. Static; null for an unknown number.
const char *kvf_isa_name(uint32_t isa);

// The instruction set that a call with `isa` uses; 0 if this machine cannot.
uint32_t kvf_isa_resolve(uint32_t isa);

// Name of a kernel, for instance `"tbq4_0/attend/avx2"`. Static; null when there
// is no such kernel. `type` is a compressed format.
const char *kvf_kernel_name(uint32_t type, uint32_t op, uint32_t isa);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
