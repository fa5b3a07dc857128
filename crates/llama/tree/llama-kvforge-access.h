// What is private in llama.cpp and needed by our files beside it.
#pragma once

#include "llama-kvforge-centre.h"

#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-kv-cache-iswa.h"

#include <vector>

struct llama_kvforge_access {
    static llama_kvforge_cache &       of(llama_kv_cache & cache)       { return cache.kvforge; }
    static const llama_kvforge_cache & of(const llama_kv_cache & cache) { return cache.kvforge; }

    static size_t n_layers(const llama_kv_cache & cache) { return cache.layers.size(); }

    static int32_t model_layer(const llama_kv_cache & cache, size_t ikv) { return (int32_t) cache.layers[ikv].il; }

    static const ggml_tensor * keys  (const llama_kv_cache & cache, size_t ikv) { return cache.layers[ikv].k; }
    static const ggml_tensor * values(const llama_kv_cache & cache, size_t ikv) { return cache.layers[ikv].v; }

    static int64_t head_size(const llama_kv_cache & cache, size_t ikv) { return cache.hparams.n_embd_head_k(cache.layers[ikv].il); }

    static const float * hadamard(const llama_kv_cache & cache, int64_t n) { return cache.attn_rot_hadamard.at(n).data(); }

    // another cache's cells and keys
    static bool borrows(const llama_kv_cache & cache) { return cache.other != nullptr; }

    // values of a token do not lie one after the other: attention without a fused operation
    static bool values_transposed(const llama_kv_cache & cache) { return cache.v_trans; }

    // only sizes are asked for
    static bool measures(const llama_kv_cache & cache) { return cache.hparams.no_alloc; }

    static const std::vector<llama_kv_cells> & streams(const llama_kv_cache & cache) { return cache.v_cells; }

    static uint32_t n_used(const llama_kv_cache & cache) {
        uint32_t n = 0;
        for (const auto & cells : cache.v_cells) {
            n += cells.get_used();
        }
        return n;
    }

    static size_t bytes(const llama_kv_cache & cache) { return cache.total_size(); }

    static llama_kv_cache & cache_of(const llama_kv_cache_context & context) { return *context.kv; }

    // a graph is built for its size alone
    static bool reserves(const llama_kv_cache_context & context) { return context.ubatches.empty(); }

    static void build_graphs_anew(llama_context & ctx) { ctx.sched_need_reserve = true; }
};

using access_to = llama_kvforge_access;

// The caches of plain keys in a memory; none if it keeps something else.
inline std::vector<llama_kv_cache *> plain_caches_of(llama_memory_i * memory) {
    if (auto * windowed = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        return { windowed->get_base(), windowed->get_swa() };
    }
    if (auto * cache = dynamic_cast<llama_kv_cache *>(memory)) {
        return { cache };
    }
    return {};
}
