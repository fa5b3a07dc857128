// Constructors: operations that give plain scores, attention over more than the cache.

#include "ggml-kvforge.h"

#include "ggml-impl.h"

#include <inttypes.h>

// what every one of them asks of its arguments; `what` names the one that was called
static struct ggml_tensor * attn_score(struct ggml_context * ctx, enum ggml_op op, const char * what, int64_t q_width,
        struct ggml_tensor * q, struct ggml_tensor * k, int n_kv_heads) {
#define EXPECT(condition, ...) do { if (!(condition)) { GGML_ABORT(__VA_ARGS__); } } while (0)
    EXPECT(q->type == GGML_TYPE_F32, "%s: expected queries of type f32, found %s", what, ggml_type_name(q->type));
    EXPECT(q->nb[0] == sizeof(float) && k->nb[0] == ggml_type_size(k->type), "%s: expected rows whose values are one after the other", what);
    EXPECT(q->ne[0] == q_width, "%s: expected queries of %" PRId64 " values for keys of %" PRId64 ", found %" PRId64,
        what, q_width, k->ne[0], q->ne[0]);
    EXPECT(n_kv_heads > 0 && k->ne[2] == n_kv_heads, "%s: expected keys of %d heads, found %" PRId64, what, n_kv_heads, k->ne[2]);
    EXPECT(q->ne[1] % n_kv_heads == 0, "%s: expected a multiple of %d query heads, found %" PRId64, what, n_kv_heads, q->ne[1]);
    EXPECT(q->ne[3] == k->ne[3], "%s: expected as many sequences of queries as of keys, found %" PRId64 " and %" PRId64,
        what, q->ne[3], k->ne[3]);
#undef EXPECT
    struct ggml_tensor * result = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, k->ne[1], q->ne[1], q->ne[2], q->ne[3]);
    result->op     = op;
    result->src[0] = q;
    result->src[1] = k;
    ggml_set_op_params_i32(result, 0, n_kv_heads);
    return result;
}

static void expect_keys(const char * what, bool good, const struct ggml_tensor * k, const char * types) {
    if (!good) {
        GGML_ABORT("%s: expected keys of type %s, found %s", what, types, ggml_type_name(k->type));
    }
}

struct ggml_tensor * ggml_attn_score_tbq(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, int n_kv_heads) {
    const bool good = k->type == GGML_TYPE_TBQ3_0 || k->type == GGML_TYPE_TBQ4_0 || k->type == GGML_TYPE_TBQ3_TCQ;
    expect_keys(__func__, good, k, "tbq3_0, tbq4_0 or tbq3_tcq");
    return attn_score(ctx, GGML_OP_ATTN_SCORE_TBQ, __func__, k->ne[0], q, k, n_kv_heads);
}

struct ggml_tensor * ggml_attn_score_qjl(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, int n_kv_heads) {
    expect_keys(__func__, k->type == GGML_TYPE_QJL1_256, k, "qjl1_256");
    return attn_score(ctx, GGML_OP_ATTN_SCORE_QJL, __func__, 2*k->ne[0], q, k, n_kv_heads);
}

static struct ggml_tensor * polar(struct ggml_context * ctx, const char * what, struct ggml_tensor * q, struct ggml_tensor * k,
        int n_kv_heads, bool use_qjl, bool preht) {
    expect_keys(what, k->type == GGML_TYPE_Q4_POLAR, k, "q4_polar");
    struct ggml_tensor * result = attn_score(ctx, GGML_OP_ATTN_SCORE_POLAR, what, k->ne[0], q, k, n_kv_heads);
    ggml_set_op_params_i32(result, 1, use_qjl);
    ggml_set_op_params_i32(result, 2, preht);
    return result;
}

struct ggml_tensor * ggml_attn_score_polar(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, int n_kv_heads, bool use_qjl) {
    return polar(ctx, __func__, q, k, n_kv_heads, use_qjl, false);
}

struct ggml_tensor * ggml_attn_score_polar_preht(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, int n_kv_heads, bool use_qjl) {
    return polar(ctx, __func__, q, k, n_kv_heads, use_qjl, true);
}

void ggml_kvforge_flash_attn_add_exact(struct ggml_tensor * node, struct ggml_tensor * mask,
        struct ggml_tensor * k, struct ggml_tensor * v, struct ggml_tensor * k_more, struct ggml_tensor * v_more) {
    struct ggml_tensor * parts[] = { mask, k, v, k_more, v_more };
    GGML_ASSERT(node->op == GGML_OP_FLASH_ATTN_EXT);
    GGML_ASSERT(mask && k && v && !k_more == !v_more);
    GGML_ASSERT(KVFORGE_SRC_EXACT_MASK + 5 <= GGML_MAX_SRC);
    for (int i = 0; i < 5; i++) {
        GGML_ASSERT(!parts[i] || parts[i]->type == GGML_TYPE_F16);
        node->src[KVFORGE_SRC_EXACT_MASK + i] = parts[i];
    }
}
