// The window: beside a cache of our types, its newest tokens stand once more, exact.
// What the lines that kvforge inserts into llama.cpp's cache and graphs call.
//
// Every token is coded into the cache, and copied as f16 into a slot of a small ring.
// A query then reads the keys of its last `n` positions from the copies, and all others
// from the cache. The ring is only a better copy: whatever is not in it is read from the
// cache, so that losing it (a shift, a prefix used again) costs accuracy until it is full
// again, and never makes anything wrong. A slot knows the cell that it is a copy of and
// how often that cell has been taken since: a cell that holds something else by now has
// no copy.
#pragma once

#include "llama-kvforge.h"
#include "ggml-cpp.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

class llama_io_read_i;
class llama_io_write_i;
class llama_kv_cache;
class llama_kv_cells;
class llm_graph_result;
struct llama_memory_context_i;
struct llama_memory_i;
struct llama_ubatch;

// What a cache holds of it. Streams are those of the cache.
struct llama_kvforge_window {
    // Slots of a stream beyond the windows of its sequences: so many tokens can be written
    // before attention has read the oldest of a window, and taken back again without
    // leaving a gap in it.
    static constexpr uint32_t SLACK = 16;

    uint32_t n       = 0; // newest positions of a sequence that its queries read exact; 0: no window
    uint32_t n_first = 0; // first positions of every sequence, too
    uint32_t n_slots = 0; // of a stream

    struct layer {
        ggml_tensor * k = nullptr; // [values of a cell, n_slots, streams], f16; as keys are stored: centred, rotated
        ggml_tensor * v = nullptr;
    };
    std::vector<layer> layers; // by the cache's own numbering

    std::vector<std::pair<ggml_context_ptr, ggml_backend_buffer_ptr>> buffers;

    // what a slot is a copy of
    struct slot {
        uint32_t  cell  = 0;
        uint32_t  taken = 0; // of the cell, at that time; 0: the slot is empty
        llama_pos pos   = 0;
    };
    std::vector<std::vector<slot>> slots; // [streams][n_slots]

    // What the graph of one ubatch does. A few tokens go into the ring first, and are read
    // from there; of many, attention reads this batch's own keys and values, and those
    // that later ones will want are copied into the ring behind it.
    struct plan {
        bool     first    = true; // tokens are written before attention
        uint32_t n_tokens = 0;    // of a stream of the ubatch
        uint32_t n_kv     = 0;

        struct copy { uint32_t column; uint32_t cell; llama_pos pos; };
        std::vector<std::vector<copy>> copies; // [streams of the ubatch]: what can be read exact
        std::vector<int32_t>           tokens; // of the ubatch, that are written
        std::vector<int64_t>           rows;   // where to, over all streams

        // What slots will hold once a graph has written them in all layers. There are graphs
        // that store tokens without attention, or in some layers only (of draft models):
        // those leave no copies.
        struct written { llama_seq_id stream; uint32_t slot; llama_kvforge_window::slot what; };
        std::vector<written> pending;
    };
    plan now;

    size_t bytes() const;
};

// After a cache has taken an ubatch into its cells (`strm` and `idxs`, by streams of the
// ubatch): decides what goes where.
void llama_kvforge_window_apply(llama_kv_cache & cache, const std::vector<llama_seq_id> & strm,
    const std::vector<std::vector<uint32_t>> & idxs, const llama_ubatch & ubatch, uint32_t n_kv);

// Attention of a layer, before it is put into its graph: gives it the exact copies, if the
// cache that it reads has any.
void llama_kvforge_window_attach(llm_graph_result & res, ggml_context * ctx, ggml_cgraph * gf,
    const llama_memory_context_i * memory, ggml_tensor * attention);

// Copies a stream's ring together with the stream.
void llama_kvforge_window_copy(llama_kv_cache & cache, uint32_t from, uint32_t to);

// Saved states of caches of our types: behind the tokens of a stream stand the exact copies
// of those that have one. Cells are `ranges`, or `idxs` where they are loaded to. False, with
// a line in the log, if what is read cannot be that.
void llama_kvforge_window_write(llama_io_write_i & io, const llama_kv_cache & cache, uint32_t strm, const std::vector<std::pair<uint32_t, uint32_t>> & ranges);
bool llama_kvforge_window_read (llama_io_read_i & io, llama_kv_cache & cache, uint32_t strm, const std::vector<uint32_t> & idxs);

// What a new context begins with: its window, if the cache is of our types. Throws if its
// memory is of a kind that they are not for.
void llama_kvforge_begin(llama_memory_i * memory, ggml_type type_k, ggml_type type_v);
