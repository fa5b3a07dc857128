// ATTN_SCORE_TBQ, _QJL, _POLAR on the CPU: plain dot products of queries with what
// compressed keys decode to.

#include "ggml-kvforge-work.h"

#include <cmath>
#include <vector>

namespace kvforge {

bool is_score(const ggml_tensor * node) {
    return node->op == GGML_OP_ATTN_SCORE_TBQ || node->op == GGML_OP_ATTN_SCORE_QJL || node->op == GGML_OP_ATTN_SCORE_POLAR;
}

namespace {

// Keys go through in ranges, so that threads have enough to share.
struct plan {
    kvf_scores s;
    int64_t    chunk;     // keys of a range
    int64_t    n_chunks;  // ranges of a head
    int64_t    n_units;   // (sequence, kv head, range)
};

plan make_plan(const ggml_tensor * node, int n_threads) {
    const ggml_tensor * q = node->src[0];
    const ggml_tensor * k = node->src[1];
    const int64_t n_kv_heads = ggml_get_op_params_i32(node, 0);
    const bool    polar      = node->op == GGML_OP_ATTN_SCORE_POLAR;
    const bool    preht      = polar && ggml_get_op_params_i32(node, 2);

    plan p = {};
    kvf_scores & s = p.s;
    s.struct_size = sizeof(s);
    s.k_type      = polar && ggml_get_op_params_i32(node, 1) ? (uint32_t) KVF_Q4_POLAR_RESIDUAL : ggml_kvforge_kernel_type(k->type);
    s.isa         = ggml_kvforge_isa();
    s.slot        = ggml_kvforge_slot(k->name);
    s.q_domain    = preht || node->op == GGML_OP_ATTN_SCORE_QJL ? KVF_ROTATED : KVF_ORIGINAL;
    // a transform that keeps lengths is what the kernels know
    s.scale       = preht ? 1.0f/std::sqrt(128.0f) : 1.0f;
    s.head_dim    = k->ne[0];
    s.n_heads     = q->ne[1]/n_kv_heads;
    s.n_kv_heads  = 1;
    s.n_q         = q->ne[2];
    s.q_row_stride    = q->nb[2];
    s.q_head_stride   = q->nb[1];
    s.k_row_stride    = k->nb[1];
    s.k_head_stride   = k->nb[2];
    s.out_row_stride  = node->nb[2];
    s.out_head_stride = node->nb[1];

    const int64_t heads = n_kv_heads*q->ne[3];
    const int64_t wanted = max((4*n_threads + heads - 1)/heads, (int64_t) 1);
    const int64_t share  = (k->ne[1] + wanted - 1)/wanted;
    p.chunk    = max((share + MIN_CHUNK - 1)/MIN_CHUNK*MIN_CHUNK, MIN_CHUNK);
    p.n_chunks = (k->ne[1] + p.chunk - 1)/p.chunk;
    p.n_units  = heads*p.n_chunks;
    s.n_kv     = min(p.chunk, k->ne[1]);
    return p;
}

// The scores of a range of keys, queries of n values, in double precision from the
// reference decoder. A key is decoded once for all queries.
void reference(const kvf_scores & s, int64_t n) {
    std::vector<float> key(n);
    for (size_t t = 0; t < s.n_kv; t++) {
        const int32_t status = ggml_kvforge_api()->decode(s.k_type, KVF_ISA_SCALAR, s.q_domain,
            (const char *) s.k + t*s.k_row_stride, key.data(), n, 0);
        GGML_ASSERT(status == KVF_OK);
        for (size_t position = 0; position < s.n_q; position++) {
            for (size_t head = 0; head < s.n_heads; head++) {
                const float * q = (const float *) ((const char *) s.q + position*s.q_row_stride + head*s.q_head_stride);
                double dot = 0;
                for (int64_t i = 0; i < n; i++) {
                    dot += (double) q[i]*key[i];
                }
                ((float *) ((char *) s.out + position*s.out_row_stride + head*s.out_head_stride))[t] = (float) (dot*s.scale);
            }
        }
    }
}

} // namespace

bool supports_score(const ggml_tensor * node) {
    const ggml_tensor * q = node->src[0];
    const ggml_tensor * k = node->src[1];
    return q->type == GGML_TYPE_F32 && node->type == GGML_TYPE_F32
        && q->nb[0] == sizeof(float) && k->nb[0] == ggml_type_size(k->type) && node->nb[0] == sizeof(float);
}

size_t score_work(const ggml_tensor * node, int n_threads) {
    size_t bytes = 0;
    for (int n = 1; n <= n_threads; n++) {
        const plan p = make_plan(node, n);
        bytes = max(bytes, ALIGN + n*align_up(ggml_kvforge_api()->score_scratch(&p.s)));
    }
    return bytes;
}

void score(const ggml_compute_params * params, ggml_tensor * node) {
    const ggml_tensor * q = node->src[0];
    const ggml_tensor * k = node->src[1];
    const plan p = make_plan(node, params->nth);
    const size_t scratch = align_up(ggml_kvforge_api()->score_scratch(&p.s));
    GGML_ASSERT(params->wsize >= ALIGN + params->nth*scratch);

    const int64_t n_kv_heads = k->ne[2];
    for (int64_t u = params->ith; u < p.n_units; u += params->nth) {
        const int64_t begin = u % p.n_chunks*p.chunk;
        const int64_t head  = u / p.n_chunks % n_kv_heads;
        const int64_t batch = u / (p.n_chunks*n_kv_heads);
        kvf_scores s = p.s;
        s.n_kv = min(p.chunk, k->ne[1] - begin);
        s.q    = (const float *) ((const char *) q->data + batch*q->nb[3] + head*s.n_heads*q->nb[1]);
        s.k    = (const char *) k->data + batch*k->nb[3] + head*k->nb[2] + begin*k->nb[1];
        s.out  = (float *) ((char *) node->data + batch*node->nb[3] + head*s.n_heads*node->nb[1]) + begin;
        if (params->use_ref) {
            reference(s, q->ne[0]);
            continue;
        }
        s.scratch       = (char *) align_up((size_t) params->wdata) + params->ith*scratch;
        s.scratch_bytes = scratch;
        check(ggml_kvforge_api()->score(&s), node);
    }
}

} // namespace kvforge
