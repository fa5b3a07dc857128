// How keys get from a model into its cache, read off the model's own graph: no
// table of architectures, no guess about RoPE.
#pragma once

#include "llama.h"
#include "ggml.h"

#include <cstdint>
#include <string>
#include <vector>

// The way of one layer's keys.
struct llama_kvforge_keys {
    int32_t             il       = -1;
    const ggml_tensor * write    = nullptr; // the SET_ROWS that stores them
    const ggml_tensor * rope     = nullptr; // the RoPE they went through before; null: none
    int64_t             hadamard = 0;       // width of the graph's rotation between RoPE and cache; 0: none
    std::string         why_not;            // why they cannot be centred; "" if they can
};

// The layer of a cache tensor, by its name or that of what it is a view of:
// `side` is 'k' or 'v'; -1 if it is no such tensor.
LLAMA_API int32_t llama_kvforge_layer_of(const ggml_tensor * t, char side);

// Of a SET_ROWS into a K cache.
LLAMA_API llama_kvforge_keys llama_kvforge_way_of(const ggml_tensor * set_rows);

// Of every layer whose keys a graph stores.
std::vector<llama_kvforge_keys> llama_kvforge_find_keys(ggml_cgraph * gf);

// What a RoPE operation makes of the unit vectors of a head at position `pos`:
// [head size][head size], row i is the image of unit vector i.
LLAMA_API std::vector<float> llama_kvforge_rope_matrix(const ggml_tensor * rope, int32_t pos);
