// Centred keys: what the lines that kvforge inserts into llama.cpp's cache call.
// A cache with a centre stores each key minus a constant of its layer and head.
#pragma once

#include "llama-kvforge.h"
#include "llama-kvforge-window.h"
#include "ggml-cpp.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

class llama_io_read_i;
class llama_io_write_i;
class llama_kv_cache;
struct llama_memory_i;

// The constants of a cache, by the cache's own numbering of its layers.
struct llama_kvforge_centre {
    struct layer {
        ggml_tensor *      tensor = nullptr; // [head size, kv heads] where the layer's keys lie, in the form they are stored in
        std::vector<float> values;           // the same on the host; empty: keys of this layer are stored as they are
        bool               read = false;     // of a state that is being read: the layer has been
    };

    uint64_t           id = 0; // of all constants together; 0: none
    std::vector<layer> layers;

    std::vector<std::pair<ggml_context_ptr, ggml_backend_buffer_ptr>> buffers;
};

// What a cache holds of it.
struct llama_kvforge_cache {
    std::shared_ptr<const llama_kvforge_centre> centre;  // in use; null: none
    std::shared_ptr<llama_kvforge_centre>       loading; // of a state that is being read

    llama_kvforge_window window;

    // the constants of a layer, or null
    ggml_tensor * of(size_t ikv) const { return centre ? centre->layers[ikv].tensor : nullptr; }
};

// Keys as they go into the cache: [head size, kv heads, tokens].
ggml_tensor * llama_kvforge_subtract(ggml_context * ctx, ggml_tensor * k_cur, ggml_tensor * centre);

// `tmp` (keys of the cache in fp32, or the first `tmp->ne[0]` values of each) with
// the constants of the same values added (sign 1) or subtracted (-1).
ggml_tensor * llama_kvforge_shift_by(ggml_context * ctx, ggml_tensor * tmp, ggml_tensor * centre, size_t first, int sign);

// Saved states: before the type of a layer's keys stands, if they are centred, a
// record that no reader takes for a type.
void llama_kvforge_state_write(llama_io_write_i & io, const llama_kvforge_cache & own, size_t ikv);

// Reads that record, if `type` is its mark, and then the type. False, with a line in
// the log, if the state's constants are not the cache's and the cache holds other
// keys (`n_cells` are the state's).
bool llama_kvforge_state_read(llama_io_read_i & io, llama_kv_cache & cache, size_t ikv, uint32_t n_cells, int32_t & type);

// Before a memory reads a state, and after the whole of it is in: caches that were
// empty take over its constants then. True if any did: graphs built before do not know
// them. A state that is refused half-way changes nothing.
void llama_kvforge_state_begin(llama_memory_i * memory);
bool llama_kvforge_state_end  (llama_memory_i * memory);

// Both functions of llama-kvforge.h for programs that take these from their users: an
// empty path is no calibration, a negative number what the context has by itself, and no
// window means no first tokens either, unless they are asked for.
inline bool llama_kvforge_set_up(llama_context * ctx, const char * calibration, int32_t n_window, int32_t n_first) {
    n_first = n_window == 0 && n_first < 0 ? 0 : n_first;
    return (!calibration || !*calibration || llama_kvforge_set_calibration(ctx, calibration))
        && ((n_window < 0 && n_first < 0) || llama_kvforge_set_window(ctx, n_window, n_first));
}
