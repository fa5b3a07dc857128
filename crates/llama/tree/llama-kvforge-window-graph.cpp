// The window in graphs: how attention gets the exact copies, and what sets its masks.

#include "llama-kvforge-access.h"
#include "ggml-kvforge.h"

#include "llama-graph.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-hybrid-iswa.h"

#include <algorithm>
#include <cmath>
#include <cstring>

using window_t = llama_kvforge_window;

namespace {

// the caches that a graph is built for
std::vector<const llama_kv_cache_context *> contexts_of(const llama_memory_context_i * memory) {
    if (const auto * hybrid = dynamic_cast<const llama_memory_hybrid_context *>(memory)) {
        return { hybrid->get_attn() };
    }
    if (const auto * hybrid = dynamic_cast<const llama_memory_hybrid_iswa_context *>(memory)) {
        return contexts_of(hybrid->get_attn());
    }
    if (const auto * windowed = dynamic_cast<const llama_kv_cache_iswa_context *>(memory)) {
        return { windowed->get_base(), windowed->get_swa() };
    }
    if (const auto * cache = dynamic_cast<const llama_kv_cache_context *>(memory)) {
        return { cache };
    }
    return {};
}

class window_input : public llm_graph_input_i {
public:
    window_input(llama_kv_cache & cache, const ggml_tensor * whole) : cache(cache), whole(whole) {}

    llama_kv_cache &    cache;
    const ggml_tensor * whole; // the mask that attention would have without a window

    bool     first     = false;
    uint32_t n_written = 0;

    ggml_tensor * mask   = nullptr; // of the cache, [n_kv, tokens, 1, streams]
    ggml_tensor * exact  = nullptr; // of the copies, [slots, then the ubatch's own tokens; tokens, 1, streams]
    ggml_tensor * rows   = nullptr; // where tokens are written
    ggml_tensor * tokens = nullptr; // which ones; null: all of them

    std::vector<const ggml_tensor *> read; // keys of caches that have their copies in this graph

    // behind the input that sets the whole mask: a graph sets them in the order in which
    // they came into it
    void set_input(const llama_ubatch * ubatch) override {
        window_t & w = access_to::of(cache).window;
        const auto & now = w.now;

        // what is read exact moves from one mask into the other, whatever it is
        memcpy(mask->data, whole->data, ggml_nbytes(mask));
        const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
        auto * from = (ggml_fp16_t *) mask->data;
        auto * to   = (ggml_fp16_t *) exact->data;
        std::fill(to, to + ggml_nelements(exact), hidden);
        for (size_t s = 0; s < now.copies.size(); s++) {
            for (uint32_t i = 0; i < now.n_tokens; i++, from += mask->ne[0], to += exact->ne[0]) {
                const llama_pos pos = ubatch->pos[s*now.n_tokens + i];
                for (const auto & copy : now.copies[s]) {
                    if (pos - copy.pos < (llama_pos) w.n || copy.pos < (llama_pos) w.n_first) {
                        to[copy.column] = from[copy.cell];
                        from[copy.cell] = hidden;
                    }
                }
            }
        }
        const auto has_ring = [](const window_t::layer & layer) { return layer.k != nullptr; };
        if ((size_t) std::count_if(w.layers.begin(), w.layers.end(), has_ring) == read.size()) {
            for (const auto & [stream, slot, what] : now.pending) {
                w.slots[stream][slot] = what;
            }
        }
        if (rows) {
            ggml_backend_tensor_set(rows, now.rows.data(), 0, ggml_nbytes(rows));
        }
        if (tokens) {
            ggml_backend_tensor_set(tokens, now.tokens.data(), 0, ggml_nbytes(tokens));
        }
    }

    bool can_reuse(const llm_graph_params &) override {
        const window_t & w = access_to::of(cache).window;
        const auto & now = w.now;
        return mask->ne[0] == now.n_kv && mask->ne[1] == now.n_tokens && mask->ne[3] == (int64_t) now.copies.size()
            && exact->ne[0] == w.n_slots + (first ? 0 : now.n_tokens)
            && first == now.first && n_written == now.tokens.size();
    }
};

ggml_tensor * input(ggml_tensor * t, const char * name) {
    ggml_set_input(t);
    ggml_set_name(t, name);
    return t;
}

window_input & input_of(llm_graph_result & res, ggml_context * ctx, ggml_cgraph * gf, const llama_kv_cache_context & context, ggml_tensor * mask) {
    llama_kv_cache & cache = access_to::cache_of(context);
    for (const auto & known : res.inputs) {
        auto * own = dynamic_cast<window_input *>(known.get());
        if (own && &own->cache == &cache && own->whole == mask) {
            return *own;
        }
    }
    const window_t & w = access_to::of(cache).window;
    auto made = std::make_unique<window_input>(cache, mask);
    ggml_build_forward_expand(gf, mask); // it gets memory although no operation may read it
    const int64_t n_tokens = mask->ne[1];
    const int64_t n_all    = mask->ne[1]*mask->ne[3];
    if (access_to::reserves(context)) {
        made->first     = n_all <= w.SLACK;
        made->n_written = made->first ? n_all : std::min<int64_t>(n_all, w.n_slots*mask->ne[3]);
    } else {
        made->first     = w.now.first;
        made->n_written = w.now.tokens.size();
    }
    made->mask  = input(ggml_new_tensor_4d(ctx, GGML_TYPE_F16, mask->ne[0], n_tokens, 1, mask->ne[3]), "kvforge_window_cache_mask");
    made->exact = input(ggml_new_tensor_4d(ctx, GGML_TYPE_F16, w.n_slots + (made->first ? 0 : n_tokens), n_tokens, 1, mask->ne[3]), "kvforge_window_mask");
    if (made->n_written > 0) {
        made->rows = input(ggml_new_tensor_1d(ctx, GGML_TYPE_I64, made->n_written), "kvforge_window_rows");
        if (!made->first) {
            made->tokens = input(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, made->n_written), "kvforge_window_tokens");
        }
    }
    return static_cast<window_input &>(*res.add_input(std::move(made)));
}

// the tokens that the graph stores in this part of the cache, [values of a cell, tokens]; null: none
ggml_tensor * stored(ggml_cgraph * gf, const ggml_tensor * cache) {
    for (int i = ggml_graph_n_nodes(gf) - 1; i >= 0; i--) {
        const ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op == GGML_OP_SET_ROWS && node->view_src == cache) {
            return node->src[0];
        }
    }
    return nullptr;
}

} // namespace

void llama_kvforge_window_attach(llm_graph_result & res, ggml_context * ctx, ggml_cgraph * gf,
        const llama_memory_context_i * memory, ggml_tensor * attention) {
    const ggml_tensor * k    = attention->src[1];
    const ggml_tensor * v    = attention->src[2];
    ggml_tensor *       mask = attention->src[3];
    if (!k->view_src || !v->view_src || !mask || mask->op != GGML_OP_NONE || mask->type != GGML_TYPE_F16) {
        return;
    }
    for (const auto * context : contexts_of(memory)) {
        llama_kv_cache & cache = access_to::cache_of(*context);
        const window_t & w = access_to::of(cache).window;
        size_t ikv = 0;
        while (ikv < w.layers.size() && access_to::keys(cache, ikv) != k->view_src) {
            ikv++;
        }
        if (ikv == w.layers.size() || access_to::values(cache, ikv) != v->view_src) {
            continue;
        }
        ggml_tensor * k_cur = stored(gf, k->view_src);
        ggml_tensor * v_cur = stored(gf, v->view_src);
        if (!k_cur || !v_cur) {
            return;
        }
        window_input & in = input_of(res, ctx, gf, *context, mask);
        // a layer that reads keys which another one has stored and read: by now the ring
        // may be one ubatch further
        if (std::count(in.read.begin(), in.read.end(), k->view_src) > 0) {
            return;
        }
        in.read.push_back(k->view_src);

        const auto write = [&](ggml_tensor * ring, ggml_tensor * cur) {
            if (in.rows) {
                cur = in.tokens ? ggml_get_rows(ctx, cur, in.tokens) : cur;
                ggml_build_forward_expand(gf, ggml_set_rows(ctx, ggml_reshape_2d(ctx, ring, ring->ne[0], ring->ne[1]*ring->ne[2]), cur, in.rows));
            }
        };
        // [values of a cell, tokens, streams] as attention reads the cache
        const auto view = [&](ggml_tensor * t, int64_t n_tokens, size_t offset, const ggml_tensor * like) {
            ggml_tensor * heads = ggml_view_4d(ctx, t, like->ne[0], like->ne[2], n_tokens, like->ne[3],
                like->ne[0]*t->nb[0], t->nb[1], n_tokens*t->nb[1], offset);
            return ggml_permute(ctx, heads, 0, 2, 1, 3);
        };
        ggml_tensor * ring_k = w.layers[ikv].k;
        ggml_tensor * ring_v = w.layers[ikv].v;
        const size_t stream = k->view_offs / k->view_src->nb[2];
        if (in.first) {
            write(ring_k, k_cur);
            write(ring_v, v_cur);
        }
        ggml_tensor * k_more = nullptr;
        ggml_tensor * v_more = nullptr;
        if (!in.first) {
            k_more = view(ggml_cast(ctx, k_cur, GGML_TYPE_F16), mask->ne[1], 0, k);
            v_more = view(ggml_cast(ctx, v_cur, GGML_TYPE_F16), mask->ne[1], 0, v);
        }
        attention->src[3] = in.mask;
        ggml_kvforge_flash_attn_add_exact(attention, in.exact,
            view(ring_k, w.n_slots, stream*ring_k->nb[2], k), view(ring_v, w.n_slots, stream*ring_v->nb[2], v), k_more, v_more);
        if (!in.first) {
            ggml_build_forward_expand(gf, attention);
            write(ring_k, k_cur);
            write(ring_v, v_cur);
        }
        return;
    }
}
