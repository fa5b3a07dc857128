// The cases of our types for the tree's test-backend-ops, which includes this
// behind its own.
#pragma once

#include "ggml-kvforge.h"

// ATTN_SCORE_*
struct test_kvforge_score : public test_case {
    const ggml_type type;
    const int64_t hs;    // head size
    const int64_t nh;    // heads of K
    const int64_t group; // query heads of each
    const int64_t kv;    // keys
    const int64_t nb;    // query positions
    const int64_t ns;    // sequences
    const int     use_qjl;
    const int     preht;
    const bool    view;  // K is a view of a larger cache whose heads are slices of a row

    std::string vars() override {
        return VARS_TO_STR10(type, hs, nh, group, kv, nb, ns, use_qjl, preht, view);
    }

    double max_nmse_err() override {
        return 1e-9;
    }

    test_kvforge_score(ggml_type type, int64_t hs, int64_t nh, int64_t group, int64_t kv, int64_t nb, int64_t ns, bool view, int use_qjl = 0, int preht = 0)
        : type(type), hs(hs), nh(nh), group(group), kv(kv), nb(nb), ns(ns), use_qjl(use_qjl), preht(preht), view(view) {}

    ggml_tensor * build_graph(ggml_context * ctx) override {
        const int64_t width = type == GGML_TYPE_QJL1_256 ? 2*hs : hs;
        ggml_tensor * q = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, width, nh*group, nb, ns);
        ggml_tensor * k;
        if (view) {
            ggml_tensor * cache = ggml_new_tensor_3d(ctx, type, nh*hs, kv + 7, ns);
            k = ggml_view_4d(ctx, cache, hs, kv, nh, ns, cache->nb[1], ggml_row_size(type, hs), cache->nb[2], 3*cache->nb[1]);
        } else {
            k = ggml_new_tensor_4d(ctx, type, hs, kv, nh, ns);
        }
        ggml_tensor * out;
        switch (type) {
            case GGML_TYPE_QJL1_256: out = ggml_attn_score_qjl(ctx, q, k, nh); break;
            case GGML_TYPE_Q4_POLAR:
                out = preht ? ggml_attn_score_polar_preht(ctx, q, k, nh, use_qjl) : ggml_attn_score_polar(ctx, q, k, nh, use_qjl);
                break;
            default: out = ggml_attn_score_tbq(ctx, q, k, nh); break;
        }
        ggml_set_name(out, "out");
        return out;
    }
};

// FLASH_ATTN_EXT with exact copies of some keys beside the cache
struct test_kvforge_exact : public test_case {
    const ggml_type k;
    const ggml_type v;
    const int64_t hs;    // head size
    const int64_t group; // query heads of each of two kv heads
    const int64_t kv;    // keys in the cache
    const int64_t exact; // exact copies
    const int64_t more;  // exact copies in a second part; 0: there is none
    const int64_t nb;    // query positions
    const int64_t ns;    // sequences
    const int     bias;  // ALiBi, soft-cap and sinks

    std::string vars() override {
        return VARS_TO_STR10(k, v, hs, group, kv, exact, more, nb, ns, bias);
    }

    double max_nmse_err() override {
        return 5e-4;
    }

    test_kvforge_exact(ggml_type k, ggml_type v, int64_t hs, int64_t group, int64_t kv, int64_t exact, int64_t more, int64_t nb, int64_t ns, bool bias)
        : k(k), v(v), hs(hs), group(group), kv(kv), exact(exact), more(more), nb(nb), ns(ns), bias(bias) {}

    ggml_tensor * build_graph(ggml_context * ctx) override {
        const auto rows = [&](ggml_type type, int64_t n, const char * name) {
            ggml_tensor * t = ggml_new_tensor_4d(ctx, type, hs, 2, n, ns); // as a cache has them
            ggml_set_name(t, name);
            return ggml_permute(ctx, t, 0, 2, 1, 3);
        };
        const auto mask = [&](int64_t n, const char * name) {
            ggml_tensor * t = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, n, nb, 1, ns);
            ggml_set_name(t, name);
            return t;
        };
        ggml_tensor * q = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, hs, nb, 2*group, ns);
        ggml_tensor * out = ggml_flash_attn_ext(ctx, q, rows(k, kv, "k"), rows(v, kv, "v"), mask(kv, "m"), 1.0f/sqrtf(hs), bias ? 8.0f : 0.0f, bias ? 10.0f : 0.0f);
        if (bias) {
            ggml_flash_attn_ext_add_sinks(out, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 2*group));
        }
        ggml_kvforge_flash_attn_add_exact(out, mask(exact + more, "m2"), rows(GGML_TYPE_F16, exact, "k2"), rows(GGML_TYPE_F16, exact, "v2"),
            more ? rows(GGML_TYPE_F16, more, "k3") : nullptr, more ? rows(GGML_TYPE_F16, more, "v3") : nullptr);
        ggml_set_name(out, "out");
        return out;
    }

    void initialize_tensors(ggml_context * ctx) override {
        for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
            if (t->name[0] == 'm') {
                init_tensor_kq_mask(t);
            } else if (!t->view_src) {
                init_tensor_uniform(t);
            }
        }
    }
};

static inline void kvforge_exact_cases(std::vector<std::unique_ptr<test_case>> & cases, ggml_type k, ggml_type v) {
    for (int group : { 1, 6 }) {
        for (int kv : { 1, 512 }) {
            for (int nb : { 1, 75 }) {
                for (int more : { 0, nb }) {
                    cases.emplace_back(new test_kvforge_exact(k, v, 128, group, kv, 48, more, nb, 1, false));
                    cases.emplace_back(new test_kvforge_exact(k, v, 256, group, kv, 96, more, nb, 2, true));
                }
            }
        }
    }
}

static inline void kvforge_score_cases(std::vector<std::unique_ptr<test_case>> & cases, ggml_type type) {
    const int polar = type == GGML_TYPE_Q4_POLAR;
    for (int hs : { 64, 128, 256 }) {
        if (hs % ggml_blck_size(type) != 0) continue;
        for (int kv : { 1, 31, 33, 500 }) {
            for (int group : { 1, 2, 6 }) {
                for (int nb : { 1, 5 }) {
                    for (bool view : { false, true }) {
                        for (int use_qjl = 0; use_qjl <= polar; use_qjl++) {
                            // upstream's transform is 128 wide
                            for (int preht = 0; preht <= polar; preht++) {
                                cases.emplace_back(new test_kvforge_score(type, hs, 2, group, kv, nb, 1 + (nb > 1), view, use_qjl, preht));
                            }
                        }
                    }
                }
            }
        }
    }
}

static inline void kvforge_attention_cases(std::vector<std::unique_ptr<test_case>> & cases, ggml_type k, ggml_type v) {
    const auto add = [&](int64_t hsk, int64_t hsv, int64_t nh, std::array<int64_t, 2> nr23, int64_t kv, int64_t nb, bool mask, bool sinks,
            float max_bias, float softcap, std::array<int32_t, 4> permute = {0, 1, 2, 3}) {
        cases.emplace_back(new test_flash_attn_ext(hsk, hsv, nh, nr23, kv, nb, mask, sinks, max_bias, softcap, GGML_PREC_F32, k, v, permute));
    };
    const int64_t block = std::max(ggml_blck_size(k), ggml_blck_size(v));
    for (int hs : { 32, 64, 96, 128, 192, 256, 512 }) {
        if (hs % block != 0) continue;
        for (int kv : { 1, 113, 512, 1024 }) {
            for (int nb : { 1, 3, 75 }) {
                for (int group : { 1, 3, 4, 8 }) {
                    if (hs != 64 && hs != 128 && (kv == 1 || nb == 3 || group == 4)) continue;
                    add(hs, hs, 2, {group, 1}, kv, nb, true, false, 0.0f, 0.0f);
                }
            }
        }
    }
    for (bool mask : { true, false }) {
        for (bool sinks : { true, false }) {
            for (float max_bias : { 0.0f, 8.0f }) {
                for (float softcap : { 0.0f, 10.0f }) {
                    if (!mask && max_bias > 0.0f) continue;
                    for (int nb : { 1, 32 }) {
                        add(128, 128, 3, {3, 2}, 257, nb, mask, sinks, max_bias, softcap);
                        add(128, 128, 3, {3, 2}, 512, nb, mask, sinks, max_bias, softcap, {0, 2, 1, 3});
                    }
                }
            }
        }
    }
    add(256, 128, 2, {4, 1}, 300, 5, true, false, 0.0f, 0.0f);
}

// a pair in short: that it runs, and that both sides are read as what they are
static inline void kvforge_pair_cases(std::vector<std::unique_ptr<test_case>> & cases, ggml_type k, ggml_type v) {
    for (int nb : { 1, 70 }) {
        cases.emplace_back(new test_flash_attn_ext(128, 128, 2, {4, 1}, 200, nb, true, false, 0.0f, 0.0f, GGML_PREC_F32, k, v));
    }
}

static inline void kvforge_test_cases(std::vector<std::unique_ptr<test_case>> & cases) {
    const std::vector<ggml_type> ours = {
#define TYPE(NAME, ...) GGML_TYPE_##NAME,
        KVFORGE_FORMATS(TYPE)
#undef TYPE
    };
    const std::vector<ggml_type> stock = { GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_Q8_0 };
    for (ggml_type type : ours) {
        const bool values = ggml_kvforge_info(type).holds_values;
        kvforge_score_cases(cases, type);
        kvforge_attention_cases(cases, type, values ? type : GGML_TYPE_F16);
        kvforge_exact_cases(cases, type, values ? type : GGML_TYPE_F16);
        for (ggml_type other : stock) {
            kvforge_pair_cases(cases, type, other);
            if (values) kvforge_pair_cases(cases, other, type);
        }
        for (ggml_type other : ours) {
            if (other != type && ggml_kvforge_info(other).holds_values) kvforge_pair_cases(cases, type, other);
        }
        if (values) {
            // V as a part of K, as models with latent attention have it
            cases.emplace_back(new test_flash_attn_ext(640, 512, 1, {16, 1}, 300, 5, true, false, 0.0f, 0.0f, GGML_PREC_F32, type, type, {0, 1, 2, 3}, true, true));
        }
    }
}
