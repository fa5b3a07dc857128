// What the files of our CPU operations share.
#pragma once

#include "ggml-kvforge.h"

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#include <algorithm>

namespace kvforge {

using std::max;
using std::min;

// Keys of the smallest range worth a thread of its own.
constexpr int64_t MIN_CHUNK = 64;
constexpr size_t  ALIGN = 64;

inline size_t align_up(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

inline void check(int32_t status, const ggml_tensor * node) {
    if (status != KVF_OK) {
        GGML_ABORT("kvforge: %s of '%s': %s", ggml_op_name(node->op), node->name, ggml_kvforge_api()->status_text(status));
    }
}

// The reference mode of ggml-cpu runs the reference codec, which the scalar
// kernels are, and scores and attention in double precision, so that a test
// compares two things and not one with itself.
inline uint32_t isa_of(const ggml_compute_params * params) {
    return params->use_ref ? (uint32_t) KVF_ISA_SCALAR : ggml_kvforge_isa();
}

// --- ATTN_SCORE_*, in ggml-kvforge-score.cpp --------------------------------

bool   is_score(const ggml_tensor * node);
bool   supports_score(const ggml_tensor * node);
size_t score_work(const ggml_tensor * node, int n_threads);
void   score(const ggml_compute_params * params, ggml_tensor * node);

} // namespace kvforge
