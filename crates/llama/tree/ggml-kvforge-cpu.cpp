// The part of kvforge that lives in ggml-cpu: it turns graph nodes on our types
// into calls of the kernels, split over ggml's threads.

#include "ggml-kvforge-work.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace {

using namespace kvforge;

// Query rows (positions x heads of a group) that share a decoded tile.
constexpr int64_t ROWS_PER_TILE = 64;
// Values converted at a time where a row passes through a buffer.
constexpr int64_t RUN = 1024;

bool is_copy(const ggml_tensor * node) {
    return node->op == GGML_OP_CPY || node->op == GGML_OP_DUP || node->op == GGML_OP_CONT;
}

// Does this node need our code? Copies between equal types do not: a block is
// moved as bytes, which upstream does.
bool ours(const ggml_tensor * node) {
    switch (node->op) {
        case GGML_OP_SET_ROWS:
            return ggml_kvforge_is(node->type);
        case GGML_OP_GET_ROWS:
            return ggml_kvforge_is(node->src[0]->type);
        case GGML_OP_CPY:
        case GGML_OP_DUP:
        case GGML_OP_CONT:
            return node->type != node->src[0]->type && (ggml_kvforge_is(node->type) || ggml_kvforge_is(node->src[0]->type));
        case GGML_OP_FLASH_ATTN_EXT:
            return ggml_kvforge_is(node->src[1]->type) || ggml_kvforge_is(node->src[2]->type);
        default:
            return is_score(node);
    }
}

bool is_float(ggml_type type) { return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16; }

// n values that stand `stride` bytes apart, as floats in a row: in place if they already are
const float * gather(ggml_type type, const char * data, size_t stride, int64_t n, float * buffer) {
    if (type == GGML_TYPE_F32 && stride == sizeof(float)) {
        return (const float *) data;
    }
    for (int64_t i = 0; i < n; i++) {
        const void * value = data + i*stride;
        switch (type) {
            case GGML_TYPE_F16:  buffer[i] = GGML_FP16_TO_FP32(*(const ggml_fp16_t *) value); break;
            case GGML_TYPE_BF16: buffer[i] = GGML_BF16_TO_FP32(*(const ggml_bf16_t *) value); break;
            default:             buffer[i] = *(const float *) value;                          break;
        }
    }
    return buffer;
}

void scatter(ggml_type type, char * data, size_t stride, int64_t n, const float * values) {
    for (int64_t i = 0; i < n; i++) {
        void * value = data + i*stride;
        switch (type) {
            case GGML_TYPE_F16:  *(ggml_fp16_t *) value = GGML_FP32_TO_FP16(values[i]); break;
            case GGML_TYPE_BF16: *(ggml_bf16_t *) value = GGML_FP32_TO_BF16(values[i]); break;
            default:             *(float *) value = values[i];                          break;
        }
    }
}

// this thread's part of n things, in whole multiples of `unit`
void split(int64_t n, int64_t unit, const ggml_compute_params * params, int64_t * begin, int64_t * end) {
    const int64_t units = (n + unit - 1) / unit;
    const int64_t share = (units + params->nth - 1) / params->nth * unit;
    *begin = min(n, share * params->ith);
    *end   = min(n, *begin + share);
}

// --- SET_ROWS: the cache write ----------------------------------------------

void set_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];
    const ggml_tensor * idx = dst->src[1];

    const int64_t n      = src->ne[0];
    const int64_t block  = ggml_blck_size(dst->type);
    const int64_t n_rows = src->ne[1]*src->ne[2]*src->ne[3];

    const uint32_t isa  = isa_of(params);
    const uint32_t slot = ggml_kvforge_slot(dst->name);

    // Flattened over (row, values of the row), so that one token is shared by
    // its heads. Eight blocks are what the vector encoder takes at once.
    int64_t begin, end;
    split(n_rows*n, 8*block, params, &begin, &end);

    float buffer[RUN];
    for (int64_t at = begin; at < end; ) {
        const int64_t r   = at / n;
        const int64_t i0  = at % n;
        const int64_t run = min(min(n - i0, end - at), (int64_t) RUN);

        const int64_t i1 = r % src->ne[1];
        const int64_t i2 = r / src->ne[1] % src->ne[2];
        const int64_t i3 = r / (src->ne[1]*src->ne[2]);

        const char * where = (const char *) idx->data + i1*idx->nb[0] + (i2 % idx->ne[1])*idx->nb[1] + (i3 % idx->ne[2])*idx->nb[2];
        const int64_t row = idx->type == GGML_TYPE_I64 ? *(const int64_t *) where : *(const int32_t *) where;
        GGML_ASSERT(row >= 0 && row < dst->ne[1]);

        const char * from = (const char *) src->data + i0*src->nb[0] + i1*src->nb[1] + i2*src->nb[2] + i3*src->nb[3];
        char *       to   = (char *) dst->data + ggml_row_size(dst->type, i0) + row*dst->nb[1] + i2*dst->nb[2] + i3*dst->nb[3];
        ggml_kvforge_encode(dst->type, isa, gather(src->type, from, src->nb[0], run, buffer), to, run, slot, dst->name);
        at += run;
    }
}

// --- GET_ROWS ----------------------------------------------------------------

void get_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];
    const ggml_tensor * idx = dst->src[1];

    const int64_t n_rows = ggml_nelements(idx);
    int64_t begin, end;
    split(n_rows, 1, params, &begin, &end);

    for (int64_t r = begin; r < end; r++) {
        const int64_t i0 = r % idx->ne[0];
        const int64_t i1 = r / idx->ne[0] % idx->ne[1];
        const int64_t i2 = r / (idx->ne[0]*idx->ne[1]);
        const int64_t row = *(const int32_t *) ((const char *) idx->data + i0*idx->nb[0] + i1*idx->nb[1] + i2*idx->nb[2]);
        GGML_ASSERT(row >= 0 && row < src->ne[1]);

        const char * from = (const char *) src->data + row*src->nb[1] + i1*src->nb[2] + i2*src->nb[3];
        float *      to   = (float *) ((char *) dst->data + i0*dst->nb[1] + i1*dst->nb[2] + i2*dst->nb[3]);
        check(ggml_kvforge_api()->decode(ggml_kvforge_kernel_type(src->type), isa_of(params), KVF_ORIGINAL, from, to, src->ne[0],
            ggml_kvforge_slot(src->name)), dst);
    }
}

// --- CPY, DUP, CONT ----------------------------------------------------------

// where the values from flat index `at` on begin, and how many of them share that row
struct place {
    char *  data;
    int64_t run;
};

place find(const ggml_tensor * t, int64_t at) {
    const int64_t i0 = at % t->ne[0];
    const int64_t r  = at / t->ne[0];
    const int64_t i1 = r % t->ne[1];
    const int64_t i2 = r / t->ne[1] % t->ne[2];
    const int64_t i3 = r / (t->ne[1]*t->ne[2]);
    const size_t offset = ggml_kvforge_is(t->type) ? ggml_row_size(t->type, i0) : i0*t->nb[0];
    return { (char *) t->data + offset + i1*t->nb[1] + i2*t->nb[2] + i3*t->nb[3], t->ne[0] - i0 };
}

// Shapes may differ as long as the number of values is the same, and neither
// side need be contiguous: the K-shift writes into a view of part of each head.
void copy(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];
    const bool encoding = ggml_kvforge_is(dst->type);
    const ggml_tensor * coded = encoding ? dst : src;

    int64_t begin, end;
    split(ggml_nelements(dst), 8*ggml_blck_size(coded->type), params, &begin, &end);

    float buffer[RUN];
    for (int64_t at = begin; at < end; ) {
        const place from = find(src, at);
        const place to   = find(dst, at);
        const int64_t run = min(min(from.run, to.run), min(end - at, (int64_t) RUN));
        if (encoding) {
            const float * x = gather(src->type, from.data, src->nb[0], run, buffer);
            ggml_kvforge_encode(dst->type, isa_of(params), x, to.data, run, ggml_kvforge_slot(dst->name), dst->name);
        } else {
            check(ggml_kvforge_api()->decode(ggml_kvforge_kernel_type(src->type), isa_of(params), KVF_ORIGINAL, from.data, buffer, run,
                ggml_kvforge_slot(src->name)), dst);
            scatter(dst->type, to.data, dst->nb[0], run, buffer);
        }
        at += run;
    }
}

// --- FLASH_ATTN_EXT ----------------------------------------------------------

// the cache, and what ggml_kvforge_flash_attn_add_exact puts beside it
constexpr size_t MAX_SEGMENTS = 3;

struct attention {
    kvf_attention a;
    kvf_segment   segments[MAX_SEGMENTS];
    int64_t n_kv_heads;
    int64_t group;        // query heads that share a kv head
    int64_t n_batch;
    int64_t q_block;      // query positions that share a decoded tile
    int64_t n_blocks;     // of query positions
    int64_t n_chunks;     // ranges of the cache per block, merged at the end; 1 = none

    // what is merged for a block: ranges of the cache, and each further segment
    int64_t n_parts() const { return n_chunks + a.n_segments - 1; }
};

// a segment's sources; K is null behind the last one
struct segment_src {
    const ggml_tensor * k;
    const ggml_tensor * v;
    const ggml_tensor * mask;
    int64_t             first; // column of the mask
};

segment_src source(const ggml_tensor * node, size_t i) {
    if (i == 0) {
        return { node->src[1], node->src[2], node->src[3], 0 };
    }
    if (i == MAX_SEGMENTS) {
        return {};
    }
    const int at = KVFORGE_SRC_EXACT_K + 2*(i - 1);
    return { node->src[at], node->src[at + 1], node->src[KVFORGE_SRC_EXACT_MASK], i == 1 ? 0 : node->src[at - 2]->ne[1] };
}

float op_param(const ggml_tensor * node, int i) {
    float x;
    memcpy(&x, (const char *) node->op_params + i*sizeof(float), sizeof(x));
    return x;
}

// everything but the pointers, which the plan of a graph does not have yet
attention plan(const ggml_tensor * node, int n_threads) {
    const ggml_tensor * q    = node->src[0];
    const ggml_tensor * k    = node->src[1];
    const ggml_tensor * v    = node->src[2];

    attention p = {};
    p.n_kv_heads = k->ne[2];
    p.group      = q->ne[2] / k->ne[2];
    p.n_batch    = q->ne[3];

    kvf_attention & a = p.a;
    for (segment_src from; (from = source(node, a.n_segments)).k; a.n_segments++) {
        kvf_segment & s = p.segments[a.n_segments];
        s.k_type = ggml_kvforge_kernel_type(from.k->type);
        s.v_type = ggml_kvforge_kernel_type(from.v->type);
        s.n_kv   = from.k->ne[1];
        s.k_row_stride  = from.k->nb[1];
        s.k_head_stride = from.k->nb[2];
        s.v_row_stride  = from.v->nb[1];
        s.v_head_stride = from.v->nb[2];
        if (from.mask) {
            s.mask_type        = KVF_F16;
            s.mask_row_stride  = from.mask->nb[1];
            s.mask_head_stride = from.mask->nb[2];
            s.mask_heads       = from.mask->ne[2];
        }
    }

    a.struct_size   = sizeof(a);
    a.head_dim_k    = k->ne[0];
    a.head_dim_v    = v->ne[0];
    a.n_heads       = q->ne[2];
    a.n_kv_heads    = k->ne[2];
    a.n_q           = q->ne[1];
    a.q_row_stride  = q->nb[1];
    a.q_head_stride = q->nb[2];
    // the result is [head_dim, heads, positions]
    a.out_row_stride  = node->nb[2];
    a.out_head_stride = node->nb[1];
    a.scale   = op_param(node, 0);
    a.softcap = op_param(node, 2);
    a.isa     = ggml_kvforge_isa();

    p.q_block  = min(max((ROWS_PER_TILE + p.group - 1) / p.group, (int64_t) 1), q->ne[1]);
    p.n_blocks = (q->ne[1] + p.q_block - 1) / p.q_block;
    // Too few blocks to keep the threads busy evenly: split the keys as well, but
    // no further than that takes, since partials cost memory and a merge.
    const int64_t units = p.n_batch * p.n_kv_heads * p.n_blocks;
    p.n_chunks = max(min((4*n_threads + units - 1) / units, k->ne[1] / MIN_CHUNK), (int64_t) 1);
    return p;
}

size_t scratch_bytes(const attention & p) {
    // sizes are asked for before a graph's tensors have memory, so without pointers
    kvf_attention a = p.a;
    a.segments = p.segments;
    return align_up(ggml_kvforge_api()->attend_scratch(&a, p.q_block));
}

size_t thread_bytes(const attention & p) {
    return scratch_bytes(p) + align_up(p.a.n_heads*sizeof(float));
}

size_t partial_floats(const attention & p) {
    return p.q_block * p.group * ggml_kvforge_api()->partial_floats(&p.a);
}

// The work buffer: [threads][scratch, slopes], then [units][parts][rows][partial].
size_t work_bytes(const attention & p, int n_threads) {
    const size_t units = p.n_batch * p.n_kv_heads * p.n_blocks;
    const size_t merge = p.n_chunks > 1 ? units * p.n_parts() * partial_floats(p) * sizeof(float) : 0;
    return ALIGN + n_threads*thread_bytes(p) + merge;
}

// ALiBi slope of head h, as the paper and every other backend of ggml have it
float slope(float max_bias, int64_t n_heads, int64_t h) {
    const int64_t n_log2 = (int64_t) 1 << (int) std::floor(std::log2((double) n_heads));
    const float m0 = std::pow(2.0f, -max_bias / n_log2);
    const float m1 = std::pow(2.0f, -max_bias / 2.0f / n_log2);
    return h < n_log2 ? std::pow(m0, (float) (h + 1)) : std::pow(m1, (float) (2*(h - n_log2) + 1));
}

// the pointers of one batch
void place_batch(attention & p, const ggml_tensor * node, int64_t batch) {
    const ggml_tensor * q = node->src[0];
    p.a.q   = (const float *) ((const char *) q->data + batch*q->nb[3]);
    p.a.out = (float *) ((char *) node->data + batch*node->nb[3]);
    for (size_t i = 0; i < p.a.n_segments; i++) {
        const segment_src from = source(node, i);
        kvf_segment & s = p.segments[i];
        s.k = (const char *) from.k->data + batch / (q->ne[3]/from.k->ne[3]) * from.k->nb[3];
        s.v = (const char *) from.v->data + batch / (q->ne[3]/from.v->ne[3]) * from.v->nb[3];
        if (from.mask) {
            s.mask = (const char *) from.mask->data + batch % from.mask->ne[3] * from.mask->nb[3] + from.first*from.mask->nb[0];
        }
    }
    p.a.segments = p.segments;
}

// Rows of one kv head, by the reference decoder.
std::vector<float> decoded(uint32_t type, const void * base, size_t row_stride, size_t n_rows, size_t n) {
    std::vector<float> rows(n_rows*n);
    for (size_t t = 0; t < n_rows; t++) {
        const int32_t status = ggml_kvforge_api()->decode(type, KVF_ISA_SCALAR, KVF_ORIGINAL, (const char *) base + t*row_stride, &rows[t*n], n, 0);
        GGML_ASSERT(status == KVF_OK);
    }
    return rows;
}

// The keys and values of one kv head in all segments.
struct rows {
    std::vector<float> k;
    std::vector<float> v;
};

// Attention of one (position, head) in double precision from decoded rows: slow,
// and sharing nothing with the kernels.
void reference_row(const attention & p, int64_t position, int64_t head, const std::vector<rows> & segments) {
    const float * q = (const float *) ((const char *) p.a.q + position*p.a.q_row_stride + head*p.a.q_head_stride);
    const float   m_slope = p.a.slopes ? p.a.slopes[head] : 1.0f;
    float *       out = (float *) ((char *) p.a.out + position*p.a.out_row_stride + head*p.a.out_head_stride);

    struct key { double score; const float * value; };
    std::vector<key> seen;
    double maximum = p.a.sinks ? p.a.sinks[head] : -INFINITY;
    for (size_t i = 0; i < p.a.n_segments; i++) {
        const kvf_segment & s = p.segments[i];
        for (size_t t = 0; t < s.n_kv; t++) {
            double bias = 0;
            if (s.mask) {
                const char * m = (const char *) s.mask + position*s.mask_row_stride + head % s.mask_heads * s.mask_head_stride;
                bias = GGML_FP16_TO_FP32(((const ggml_fp16_t *) m)[t]);
                if (bias == -INFINITY) {
                    continue;
                }
            }
            double dot = 0;
            for (size_t j = 0; j < p.a.head_dim_k; j++) {
                dot += (double) q[j] * segments[i].k[t*p.a.head_dim_k + j];
            }
            dot *= p.a.scale;
            if (p.a.softcap != 0) {
                dot = p.a.softcap * std::tanh(dot / p.a.softcap);
            }
            seen.push_back({ dot + m_slope*bias, &segments[i].v[t*p.a.head_dim_v] });
            maximum = max(maximum, seen.back().score);
        }
    }
    double sum = p.a.sinks ? std::exp(p.a.sinks[head] - maximum) : 0;
    std::vector<double> acc(p.a.head_dim_v, 0.0);
    for (const key & k : seen) {
        const double w = std::exp(k.score - maximum);
        sum += w;
        for (size_t i = 0; i < p.a.head_dim_v; i++) {
            acc[i] += w * k.value[i];
        }
    }
    for (size_t i = 0; i < p.a.head_dim_v; i++) {
        out[i] = sum == 0 ? 0.0f : (float) (acc[i] / sum); // NaN stays NaN
    }
}

void flash_attn(const ggml_compute_params * params, ggml_tensor * node) {
    const struct kvf_api * api = ggml_kvforge_api();
    const ggml_tensor * sinks = node->src[4];
    attention p = plan(node, params->nth);
    p.a.slot = ggml_kvforge_slot(ggml_kvforge_is(node->src[1]->type) ? node->src[1]->name : node->src[2]->name);

    GGML_ASSERT(params->wsize >= work_bytes(p, params->nth));
    char * work    = (char *) align_up((size_t) params->wdata);
    char * scratch = work + params->ith*thread_bytes(p);
    const size_t scratch_size = scratch_bytes(p);
    float * partials = (float *) (work + params->nth*thread_bytes(p));

    const float max_bias = op_param(node, 1);
    if (max_bias > 0) {
        float * slopes = (float *) (scratch + scratch_size);
        for (size_t h = 0; h < p.a.n_heads; h++) {
            slopes[h] = slope(max_bias, p.a.n_heads, h);
        }
        p.a.slopes = slopes;
    }
    p.a.sinks = sinks ? (const float *) sinks->data : nullptr;

    if (params->use_ref) {
        // every row is decoded once, for all queries of its head
        for (int64_t u = params->ith; u < p.n_batch*p.n_kv_heads; u += params->nth) {
            const int64_t kv_head = u % p.n_kv_heads;
            place_batch(p, node, u / p.n_kv_heads);
            std::vector<rows> segments;
            for (size_t i = 0; i < p.a.n_segments; i++) {
                const kvf_segment & s = p.segments[i];
                segments.push_back({
                    decoded(s.k_type, (const char *) s.k + kv_head*s.k_head_stride, s.k_row_stride, s.n_kv, p.a.head_dim_k),
                    decoded(s.v_type, (const char *) s.v + kv_head*s.v_head_stride, s.v_row_stride, s.n_kv, p.a.head_dim_v),
                });
            }
            for (size_t position = 0; position < p.a.n_q; position++) {
                for (int64_t head = kv_head*p.group; head < (kv_head + 1)*p.group; head++) {
                    reference_row(p, position, head, segments);
                }
            }
        }
        return;
    }

    // unit = (batch, kv head, block of positions)
    const int64_t units = p.n_batch * p.n_kv_heads * p.n_blocks;
    struct unit { int64_t head, begin, end; };
    const auto enter = [&](int64_t u) {
        const int64_t block = u % p.n_blocks;
        place_batch(p, node, u / (p.n_blocks*p.n_kv_heads));
        return unit { u / p.n_blocks % p.n_kv_heads, block*p.q_block, min((block + 1)*p.q_block, (int64_t) p.a.n_q) };
    };

    if (p.n_chunks == 1) {
        for (int64_t u = params->ith; u < units; u += params->nth) {
            const unit x = enter(u);
            check(api->attend(&p.a, x.head, x.begin, x.end, scratch, scratch_size), node);
        }
        return;
    }

    const int64_t n_parts = p.n_parts();
    const int64_t n_kv    = p.segments[0].n_kv;
    const size_t  stride  = partial_floats(p);
    const int64_t share = (n_kv + p.n_chunks - 1) / p.n_chunks;
    const int64_t chunk = (share + MIN_CHUNK - 1) / MIN_CHUNK * MIN_CHUNK;
    for (int64_t i = params->ith; i < units*n_parts; i += params->nth) {
        const unit x = enter(i / n_parts);
        // the last parts are the further segments, whole
        const int64_t part    = i % n_parts;
        const int64_t segment = max(part - p.n_chunks + 1, (int64_t) 0);
        const int64_t begin   = segment > 0 ? 0 : min(part*chunk, n_kv);
        const int64_t end     = segment > 0 ? (int64_t) p.segments[segment].n_kv : min(begin + chunk, n_kv);
        check(api->attend_partial(&p.a, x.head, x.begin, x.end, segment, begin, end, partials + i*stride, scratch, scratch_size), node);
    }
    ggml_barrier(params->threadpool);
    for (int64_t u = params->ith; u < units; u += params->nth) {
        const unit x = enter(u);
        check(api->attend_merge(&p.a, x.head, x.begin, x.end, partials + u*n_parts*stride, n_parts, stride), node);
    }
}

// further keys and values must fit the node's own
bool supports_exact(const ggml_tensor * node) {
    const ggml_tensor * q    = node->src[0];
    const ggml_tensor * mask = node->src[KVFORGE_SRC_EXACT_MASK];
    int64_t n_keys = 0;
    for (size_t i = 1; source(node, i).k; i++) {
        const auto fits = [&](const ggml_tensor * t, const ggml_tensor * own) {
            return t && t->type == GGML_TYPE_F16 && t->nb[0] == sizeof(ggml_fp16_t) && t->ne[0] == own->ne[0]
                && t->ne[1] == source(node, i).k->ne[1] && t->ne[2] == own->ne[2] && q->ne[3] % t->ne[3] == 0;
        };
        if (!fits(source(node, i).k, node->src[1]) || !fits(source(node, i).v, node->src[2])) {
            return false;
        }
        n_keys += source(node, i).k->ne[1];
    }
    return n_keys == 0 ? !mask
        : mask && mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(ggml_fp16_t) && mask->ne[0] == n_keys && mask->ne[1] >= q->ne[1];
}

bool supports_flash_attn(const ggml_tensor * node) {
    const ggml_tensor * q = node->src[0];
    const ggml_tensor * k = node->src[1];
    const ggml_tensor * v = node->src[2];
    const ggml_tensor * mask  = node->src[3];
    const ggml_tensor * sinks = node->src[4];
    return supports_exact(node)
        && q->type == GGML_TYPE_F32 && node->type == GGML_TYPE_F32
        && ggml_kvforge_kernel_type(k->type) != UINT32_MAX
        && ggml_kvforge_kernel_type(v->type) != UINT32_MAX
        && (!ggml_kvforge_is(v->type) || ggml_kvforge_info(v->type).holds_values)
        && k->ne[0] <= 1024 && v->ne[0] <= 1024
        // one V head for each K head; ggml itself would allow them to differ
        && k->ne[2] == v->ne[2] && q->ne[2] % k->ne[2] == 0
        && q->ne[3] % k->ne[3] == 0 && q->ne[3] % v->ne[3] == 0
        && q->nb[0] == sizeof(float) && k->nb[0] == ggml_type_size(k->type) && v->nb[0] == ggml_type_size(v->type)
        && (!mask || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(ggml_fp16_t)))
        && (!sinks || sinks->type == GGML_TYPE_F32);
}

} // namespace

int ggml_kvforge_n_tasks(const ggml_tensor * node, int n_threads) {
    return ours(node) ? n_threads : 0;
}

size_t ggml_kvforge_work_size(const ggml_tensor * node, int n_tasks) {
    if (is_score(node)) {
        return score_work(node, n_tasks);
    }
    if (!ours(node) || node->op != GGML_OP_FLASH_ATTN_EXT) {
        return 0;
    }
    // a smaller number of threads may run it, and plans other chunks
    size_t bytes = 0;
    for (int n = 1; n <= n_tasks; n++) {
        bytes = max(bytes, work_bytes(plan(node, n), n));
    }
    return bytes;
}

bool ggml_kvforge_compute_forward(const ggml_compute_params * params, ggml_tensor * node) {
    if (!ours(node)) {
        return false;
    }
    // a graph that is computed without a scheduler was never asked
    GGML_ASSERT(ggml_kvforge_supports_op(node) == 1 && "kvforge: this shape or pair of types has no kernel");
    switch (node->op) {
        case GGML_OP_SET_ROWS:       set_rows(params, node);   break;
        case GGML_OP_GET_ROWS:       get_rows(params, node);   break;
        case GGML_OP_FLASH_ATTN_EXT: flash_attn(params, node); break;
        case GGML_OP_ATTN_SCORE_TBQ:
        case GGML_OP_ATTN_SCORE_QJL:
        case GGML_OP_ATTN_SCORE_POLAR: score(params, node);    break;
        default:                     copy(params, node);       break;
    }
    return true;
}

int ggml_kvforge_supports_op(const ggml_tensor * node) {
    if (is_score(node)) {
        return supports_score(node);
    }
    if (node->op == GGML_OP_FLASH_ATTN_EXT && ours(node)) {
        return supports_flash_attn(node);
    }
    if (ours(node)) {
        const ggml_tensor * src = node->src[0];
        switch (node->op) {
            case GGML_OP_SET_ROWS:
                return is_float(src->type) && (node->src[1]->type == GGML_TYPE_I64 || node->src[1]->type == GGML_TYPE_I32);
            case GGML_OP_GET_ROWS:
                return node->type == GGML_TYPE_F32 && node->src[1]->type == GGML_TYPE_I32;
            default: {
                // a run of values must hold whole blocks on the coded side
                const ggml_tensor * coded = ggml_kvforge_is(node->type) ? node : src;
                const ggml_tensor * other = coded == node ? src : node;
                return is_float(other->type) && other->ne[0] % ggml_blck_size(coded->type) == 0;
            }
        }
    }
    // A matrix product reaches our blocks through vec_dot of the type traits,
    // in the original domain. Nothing else can read them, and nothing but the
    // operations above can write them.
    if (ggml_kvforge_is(node->type) && !is_copy(node)) {
        return 0;
    }
    for (int i = 0; i < GGML_MAX_SRC && node->src[i]; i++) {
        if (!ggml_kvforge_is(node->src[i]->type) || is_copy(node)) {
            continue;
        }
        switch (node->op) {
            case GGML_OP_MUL_MAT:
            case GGML_OP_MUL_MAT_ID:
                return i == 0 && node->src[1]->type == GGML_TYPE_F32;
            default:
                return 0; // OUT_PROD, for one, lists the types that it knows
        }
    }
    return -1;
}
