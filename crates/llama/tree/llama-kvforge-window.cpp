// The window of a cache: which tokens have copies, and the memory that holds them.

#include "llama-kvforge-access.h"
#include "ggml-kvforge.h"

#include "llama-impl.h"
#include "llama-io.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-recurrent.h"

#include <algorithm>
#include <climits>
#include <map>
#include <stdexcept>

using window_t = llama_kvforge_window;

namespace {

// Many sequences that share a small cache share this part of its size, the newest tokens of
// each first: the ring stays small beside the cache.
constexpr uint32_t SHARED_PART = 16;

bool is_ours(const llama_kv_cache & cache) {
    if (access_to::n_layers(cache) == 0) {
        return false;
    }
    return ggml_kvforge_is(cache.type_k()) || (access_to::values(cache, 0) && ggml_kvforge_is(cache.type_v()));
}

// the same, and those beside recurrent layers
std::vector<llama_kv_cache *> caches_of(llama_memory_i * memory) {
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return { hybrid->get_mem_attn() };
    }
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return plain_caches_of(hybrid->get_mem_attn());
    }
    return plain_caches_of(memory);
}

bool holds(const window_t::slot & slot, const llama_kv_cells & cells) {
    return slot.taken != 0 && slot.taken == cells.kvforge_taken(slot.cell)
        && !cells.is_empty(slot.cell) && cells.pos_get(slot.cell) == slot.pos;
}

// --- what goes where ------------------------------------------------------------

// How far the tokens of a stream are from being read: positions behind the query of their
// sequence that asks for the oldest ones.
struct distances {
    const llama_kv_cells & cells;
    uint32_t n;
    uint32_t n_first;
    std::vector<std::pair<llama_seq_id, llama_pos>> asking; // by sequence: the position

    int32_t of(uint32_t cell, llama_pos pos) const {
        int32_t least = INT_MAX;
        for (const auto & [seq, asks] : asking) {
            if (cells.seq_has(cell, seq)) {
                // the first tokens are as near as the last of the window, so that many
                // sequences' first ones leave room for their newest
                least = std::min(least, pos < (llama_pos) n_first ? std::min<int32_t>(asks - pos, std::max(n, 1u) - 1) : asks - pos);
            }
        }
        return least;
    }
};

// Once the tokens of all sequences of a stream are in the cache.
distances from_next(const llama_kv_cells & cells, const window_t & w) {
    distances far { cells, w.n, w.n_first, {} };
    for (llama_seq_id seq = 0; seq < LLAMA_MAX_SEQ; seq++) {
        if (cells.seq_pos_max(seq) >= 0) {
            far.asking.push_back({ seq, cells.seq_pos_max(seq) + 1 });
        }
    }
    return far;
}

struct token { uint32_t index; uint32_t cell; llama_pos pos; };

// Slots for tokens of one stream: [i] is that of tokens[i], or UINT32_MAX. If they come
// first, nothing may go that a query of theirs reads.
std::vector<uint32_t> place(const window_t & w, const std::vector<window_t::slot> & slots, const std::vector<token> & tokens,
        const distances & far, bool first) {
    std::vector<std::pair<int32_t, uint32_t>> free; // the farthest first
    for (uint32_t i = 0; i < slots.size(); i++) {
        free.push_back({ holds(slots[i], far.cells) ? far.of(slots[i].cell, slots[i].pos) : INT_MAX, i });
    }
    std::stable_sort(free.begin(), free.end(), [](const auto & a, const auto & b) { return a.first > b.first; });

    std::vector<std::pair<int32_t, uint32_t>> wanted; // the nearest first
    for (uint32_t i = 0; i < tokens.size(); i++) {
        wanted.push_back({ far.of(tokens[i].cell, tokens[i].pos), i });
    }
    std::stable_sort(wanted.begin(), wanted.end());

    std::vector<uint32_t> placed(tokens.size(), UINT32_MAX);
    for (size_t i = 0; i < std::min(free.size(), wanted.size()); i++) {
        if (first ? free[i].first < (int32_t) std::max(w.n, 1u) : free[i].first <= wanted[i].first) {
            break;
        }
        placed[wanted[i].second] = free[i].second;
    }
    return placed;
}

// --- memory -----------------------------------------------------------------------

window_t make(const llama_kv_cache & cache, uint32_t n, uint32_t n_first) {
    window_t w;
    const uint32_t n_streams = cache.get_n_stream();
    const uint32_t n_seqs    = n_streams == 1 ? cache.get_n_seq_max() : 1;
    w.n       = std::min(n, cache.get_size());
    w.n_first = std::min(n_first, cache.get_size());
    bool has_values = false; // else they are part of the keys
    for (size_t ikv = 0; ikv < access_to::n_layers(cache); ikv++) {
        has_values = has_values || access_to::values(cache, ikv);
    }
    if ((w.n == 0 && w.n_first == 0) || !has_values) {
        return {};
    }
    const uint32_t n_each = w.n + w.n_first;
    w.n_slots = std::min<uint64_t>((uint64_t) n_seqs*n_each, std::max(n_each, cache.get_size()/SHARED_PART)) + w.SLACK;
    w.slots.assign(n_streams, std::vector<window_t::slot>(w.n_slots));
    w.layers.resize(access_to::n_layers(cache));

    std::map<ggml_backend_buffer_type_t, std::vector<size_t>> places;
    for (size_t ikv = 0; ikv < w.layers.size(); ikv++) {
        if (access_to::values(cache, ikv)) {
            places[ggml_backend_buffer_get_type(access_to::keys(cache, ikv)->buffer)].push_back(ikv);
        }
    }
    for (const auto & [buft, layers] : places) {
        ggml_context_ptr ctx { ggml_init({ 2*layers.size()*ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true }) };
        for (size_t ikv : layers) {
            auto & layer = w.layers[ikv];
            layer.k = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F16, access_to::keys  (cache, ikv)->ne[0], w.n_slots, n_streams);
            layer.v = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F16, access_to::values(cache, ikv)->ne[0], w.n_slots, n_streams);
            ggml_format_name(layer.k, "kvforge_window_k_l%d", access_to::model_layer(cache, ikv));
            ggml_format_name(layer.v, "kvforge_window_v_l%d", access_to::model_layer(cache, ikv));
        }
        ggml_backend_buffer_ptr buffer { access_to::measures(cache)
            ? ggml_backend_buft_alloc_buffer(buft, 0) : ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft) };
        if (!buffer) {
            throw std::runtime_error("no memory for the exact copies of a window");
        }
        if (access_to::measures(cache)) {
            for (ggml_tensor * t = ggml_get_first_tensor(ctx.get()); t; t = ggml_get_next_tensor(ctx.get(), t)) {
                t->buffer = buffer.get();
            }
        }
        ggml_backend_buffer_clear(buffer.get(), 0); // what is hidden must still be numbers
        w.buffers.emplace_back(std::move(ctx), std::move(buffer));
    }
    return w;
}

void set_window(llama_memory_i * memory, int32_t n_window, int32_t n_first) {
    const auto caches = caches_of(memory);
    std::vector<std::pair<llama_kv_cache *, window_t>> made;
    size_t bytes = 0, cached = 0;
    for (auto * cache : caches) {
        if (!is_ours(*cache) || access_to::borrows(*cache)) {
            continue;
        }
        if (access_to::values_transposed(*cache)) {
            LLAMA_LOG_WARN("kvforge: no window without flash attention: all tokens are read from the cache\n");
            return;
        }
        if (cache->type_k() == GGML_TYPE_F32 || cache->type_v() == GGML_TYPE_F32) {
            LLAMA_LOG_WARN("kvforge: no window beside f32, which attention casts: all tokens are read from the cache\n");
            return;
        }
        const window_t & old = access_to::of(*cache).window;
        made.emplace_back(cache, make(*cache, n_window < 0 ? old.n : n_window, n_first < 0 ? old.n_first : n_first));
        bytes  += made.back().second.bytes();
        cached += access_to::bytes(*cache);
    }
    if (made.empty()) {
        LLAMA_LOG_INFO("kvforge: no window: this cache is %s\n", caches.empty() ? "not one of plain keys and values" : "of none of kvforge's types");
        return;
    }
    if (bytes > 0) {
        LLAMA_LOG_INFO("kvforge: window of %u tokens, and the first %u, of every sequence: %.2f MiB of exact copies beside %.2f MiB of cache\n",
            made[0].second.n, made[0].second.n_first, bytes/1024.0/1024.0, cached/1024.0/1024.0);
    } else {
        LLAMA_LOG_INFO("kvforge: no window: all tokens are read from the cache\n");
    }
    for (auto & [cache, window] : made) {
        access_to::of(*cache).window = std::move(window);
    }
}

} // namespace

size_t llama_kvforge_window::bytes() const {
    size_t n = 0;
    for (const auto & layer : layers) {
        n += layer.k ? ggml_nbytes(layer.k) + ggml_nbytes(layer.v) : 0;
    }
    return n;
}

void llama_kvforge_window_apply(llama_kv_cache & cache, const std::vector<llama_seq_id> & strm,
        const std::vector<std::vector<uint32_t>> & idxs, const llama_ubatch & ubatch, uint32_t n_kv) {
    window_t & w = access_to::of(cache).window;
    if (w.n_slots == 0) {
        return;
    }
    window_t::plan now;
    now.n_kv     = n_kv;
    now.n_tokens = ubatch.n_tokens/strm.size();

    // by stream: its tokens, and who asks for which ones
    std::vector<std::vector<token>> tokens(strm.size());
    std::vector<distances> during, later;
    for (size_t s = 0; s < strm.size(); s++) {
        const llama_kv_cells & cells = access_to::streams(cache)[strm[s]];
        later.push_back(from_next(cells, w));
        during.push_back(later[s]);
        for (uint32_t i = 0; i < now.n_tokens; i++) {
            const uint32_t index = s*now.n_tokens + i;
            tokens[s].push_back({ index, idxs[s][i], ubatch.pos[index] });
            for (auto & [seq, asks] : during[s].asking) {
                if (cells.seq_has(idxs[s][i], seq)) {
                    asks = std::min(asks, ubatch.pos[index]);
                }
            }
        }
    }

    std::vector<std::vector<uint32_t>> placed(strm.size());
    for (size_t s = 0; s < strm.size() && now.first; s++) {
        placed[s] = place(w, w.slots[strm[s]], tokens[s], during[s], true);
        now.first = std::count(placed[s].begin(), placed[s].end(), UINT32_MAX) == 0;
    }
    for (size_t s = 0; s < strm.size(); s++) {
        const llama_kv_cells & cells = later[s].cells;
        auto & slots = w.slots[strm[s]];
        auto & copies = now.copies.emplace_back();
        const auto read_slots = [&] {
            for (uint32_t i = 0; i < slots.size(); i++) {
                if (holds(slots[i], cells)) {
                    copies.push_back({ i, slots[i].cell, slots[i].pos });
                }
            }
        };
        if (!now.first) {
            placed[s] = place(w, slots, tokens[s], later[s], false);
            read_slots(); // before they are written
            for (uint32_t i = 0; i < now.n_tokens; i++) {
                copies.push_back({ w.n_slots + i, tokens[s][i].cell, tokens[s][i].pos });
            }
        }
        for (uint32_t i = 0; i < now.n_tokens; i++) {
            const uint32_t to = placed[s][i];
            if (to != UINT32_MAX) {
                slots[to] = {}; // its row may be written by some layers, and not by others
                now.pending.push_back({ strm[s], to, { tokens[s][i].cell, cells.kvforge_taken(tokens[s][i].cell), tokens[s][i].pos } });
                now.tokens.push_back(tokens[s][i].index);
                now.rows.push_back((int64_t) strm[s]*w.n_slots + to);
            }
        }
        if (now.first) {
            read_slots();
            for (uint32_t i = 0; i < now.n_tokens; i++) {
                copies.push_back({ placed[s][i], tokens[s][i].cell, tokens[s][i].pos });
            }
        }
    }
    w.now = std::move(now);
}

void llama_kvforge_window_copy(llama_kv_cache & cache, uint32_t from, uint32_t to) {
    window_t & w = access_to::of(cache).window;
    if (w.n_slots == 0) {
        return;
    }
    for (const auto & [ctx, buffer] : w.buffers) {
        for (ggml_tensor * t = ggml_get_first_tensor(ctx.get()); t; t = ggml_get_next_tensor(ctx.get(), t)) {
            std::vector<uint8_t> bytes(t->nb[2]);
            ggml_backend_tensor_get(t, bytes.data(), from*t->nb[2], bytes.size());
            ggml_backend_tensor_set(t, bytes.data(), to*t->nb[2], bytes.size());
        }
    }
    const auto & streams = access_to::streams(cache);
    for (uint32_t i = 0; i < w.n_slots; i++) {
        const auto & slot = w.slots[from][i];
        w.slots[to][i] = { slot.cell, holds(slot, streams[from]) ? streams[to].kvforge_taken(slot.cell) : 0, slot.pos };
    }
}

// "kfvw"
static const uint32_t COPIES_MARK = 0x7776666b;

// Tensors of the ring, or, if there is none, what it would have in the place of each.
static std::vector<std::pair<ggml_tensor *, size_t>> rings(const llama_kv_cache & cache) {
    const window_t & w = access_to::of(cache).window;
    std::vector<std::pair<ggml_tensor *, size_t>> all;
    for (size_t ikv = 0; ikv < access_to::n_layers(cache); ikv++) {
        if (const ggml_tensor * v = access_to::values(cache, ikv)) {
            all.push_back({ w.n_slots ? w.layers[ikv].k : nullptr, access_to::keys(cache, ikv)->ne[0]*sizeof(ggml_fp16_t) });
            all.push_back({ w.n_slots ? w.layers[ikv].v : nullptr, v->ne[0]*sizeof(ggml_fp16_t) });
        }
    }
    return all;
}

void llama_kvforge_window_write(llama_io_write_i & io, const llama_kv_cache & cache, uint32_t strm, const std::vector<std::pair<uint32_t, uint32_t>> & ranges) {
    if (!is_ours(cache)) {
        return;
    }
    const window_t & w = access_to::of(cache).window;
    const auto & cells = access_to::streams(cache)[strm];
    // which of the saved cells has which slot
    std::vector<std::pair<uint32_t, uint32_t>> copies;
    uint32_t saved = 0;
    for (const auto & [begin, end] : ranges) {
        for (uint32_t i = 0; i < w.n_slots; i++) {
            const auto & slot = w.slots[strm][i];
            if (holds(slot, cells) && slot.cell >= begin && slot.cell < end) {
                copies.push_back({ saved + slot.cell - begin, i });
            }
        }
        saved += end - begin;
    }
    const uint32_t n = copies.size();
    io.write(&COPIES_MARK, sizeof(COPIES_MARK));
    io.write(&n, sizeof(n));
    const auto tensors = rings(cache);
    std::vector<uint8_t> row;
    for (const auto & [cell, slot] : copies) {
        io.write(&cell, sizeof(cell));
        for (const auto & [ring, bytes] : tensors) {
            row.resize(bytes);
            ggml_backend_tensor_get(ring, row.data(), strm*ring->nb[2] + slot*ring->nb[1], bytes);
            io.write(row.data(), bytes);
        }
    }
}

bool llama_kvforge_window_read(llama_io_read_i & io, llama_kv_cache & cache, uint32_t strm, const std::vector<uint32_t> & idxs) {
    if (!is_ours(cache)) {
        return true;
    }
    uint32_t mark, n;
    io.read(&mark, sizeof(mark));
    io.read(&n, sizeof(n));
    if (mark != COPIES_MARK || n > idxs.size()) {
        LLAMA_LOG_ERROR("kvforge: the saved state is damaged, or was saved by another version: exact copies of tokens are not where they should be. Save it again\n");
        return false;
    }
    window_t & w = access_to::of(cache).window;
    const auto & cells = access_to::streams(cache)[strm];
    const auto tensors = rings(cache);
    std::vector<token> tokens;
    std::vector<std::vector<uint8_t>> rows(n*tensors.size());
    for (uint32_t i = 0; i < n; i++) {
        uint32_t index;
        io.read(&index, sizeof(index));
        if (index >= idxs.size()) {
            LLAMA_LOG_ERROR("kvforge: the saved state is damaged: an exact copy of token %u of %zu. Save it again\n", index, idxs.size());
            return false;
        }
        tokens.push_back({ i, idxs[index], cells.pos_get(idxs[index]) });
        for (size_t t = 0; t < tensors.size(); t++) {
            auto & row = rows[i*tensors.size() + t];
            row.resize(tensors[t].second);
            io.read(row.data(), row.size());
        }
    }
    if (w.n_slots == 0) {
        return true;
    }
    const auto placed = place(w, w.slots[strm], tokens, from_next(cells, w), false);
    for (const token & t : tokens) {
        const uint32_t slot = placed[t.index];
        for (size_t i = 0; i < tensors.size() && slot != UINT32_MAX; i++) {
            const auto & row = rows[t.index*tensors.size() + i];
            ggml_backend_tensor_set(tensors[i].first, row.data(), strm*tensors[i].first->nb[2] + slot*tensors[i].first->nb[1], row.size());
        }
        if (slot != UINT32_MAX) {
            w.slots[strm][slot] = { t.cell, cells.kvforge_taken(t.cell), t.pos };
        }
    }
    return true;
}

void llama_kvforge_begin(llama_memory_i * memory, ggml_type type_k, ggml_type type_v) {
    if (!memory || !(ggml_kvforge_is(type_k) || ggml_kvforge_is(type_v)) || dynamic_cast<llama_memory_recurrent *>(memory)) {
        return;
    }
    if (caches_of(memory).empty()) {
        throw std::runtime_error(std::string("kvforge: cache types ") + ggml_type_name(type_k) + "/" + ggml_type_name(type_v) +
            " are not for this model, which looks its keys up in ways of its own (sparse attention): choose another type");
    }
    set_window(memory, LLAMA_KVFORGE_WINDOW, LLAMA_KVFORGE_FIRST);
}

bool llama_kvforge_set_window(llama_context * ctx, int32_t n_window, int32_t n_first) {
    try {
        ctx->synchronize(); // the ring may still be read
        set_window(ctx->get_memory(), n_window, n_first);
        access_to::build_graphs_anew(*ctx);
        return true;
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("kvforge: window of %d tokens: %s\n", n_window, e.what());
        return false;
    }
}

uint32_t llama_kvforge_window_used(const llama_context * ctx, llama_seq_id seq) {
    if (seq < 0 || seq >= LLAMA_MAX_SEQ) {
        return 0;
    }
    uint32_t most = 0;
    for (const auto * cache : caches_of(ctx->get_memory())) {
        const window_t & w = access_to::of(*cache).window;
        for (size_t s = 0; s < w.slots.size(); s++) {
            const auto & cells = access_to::streams(*cache)[s];
            most = std::max<uint32_t>(most, std::count_if(w.slots[s].begin(), w.slots[s].end(), [&](const window_t::slot & slot) {
                return holds(slot, cells) && cells.seq_has(slot.cell, seq);
            }));
        }
    }
    return most;
}

void llama_kvforge_window_drop(llama_context * ctx) {
    for (auto * cache : caches_of(ctx->get_memory())) {
        for (auto & slots : access_to::of(*cache).window.slots) {
            std::fill(slots.begin(), slots.end(), window_t::slot());
        }
    }
}
