// What kvforge adds to llama.h.
#pragma once

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// Centres the keys of a context: from now on its cache holds each key minus a
// constant of its layer and head, which the softmax does not see and the code
// of the cache type is spared. `path` is a file of `kvforge calibrate`, made for
// this model (in whatever weight type). Any type of K cache will do; the constant
// is the average of the calibrated mean key after RoPE, over the positions of the
// sequences that this context can hold.
//
// The cache must be empty. Returns false, says why in the log and changes nothing
// if it is not, or if the file does not fit, or if the model's attention would
// see the constant (capped scores, sinks), or keeps something other than keys.
//
// A state that is saved then carries the constants. A cache that is empty takes
// over those of a state it loads; one that is not refuses a state with others.
LLAMA_API bool llama_kvforge_set_calibration(struct llama_context * ctx, const char * path);

// Identifies the constants in use; 0 if keys are stored as they are.
LLAMA_API uint64_t llama_kvforge_centre_id(const struct llama_context * ctx);

// The constants of layer `il`, [kv heads][head size], `*n` values in all, in the form
// that keys have in the cache (behind the graph's rotation, where the cache type has
// one); NULL if its keys are stored as they are. A score of a stored key, as
// ggml_attn_score_* gives it, lacks the dot product of its query with them. Valid until
// other constants are set or loaded.
LLAMA_API const float * llama_kvforge_centre_of(const struct llama_context * ctx, int32_t il, size_t * n);

// Lets queries read the newest `n_window` tokens of their sequence exact, from a small
// f16 ring beside the cache, and the `n_first` first ones; 0 and 0 for none. A context
// whose cache is of kvforge's types starts with LLAMA_KVFORGE_WINDOW and LLAMA_KVFORGE_FIRST:
// attention rests on the first tokens when it looks for nothing. Which keys are read
// exact depends on positions alone, not on how tokens are batched. Other cache types
// have no window: the call changes nothing for them and says so in the log.
//
// A negative number leaves what it stands for as it is. May be called at any time; the
// ring starts empty. Returns false, says why in the log and changes nothing if there is
// no memory for it.
//
// A saved state of such a cache holds the ring, too.
#define LLAMA_KVFORGE_WINDOW 32
#define LLAMA_KVFORGE_FIRST  4
LLAMA_API bool llama_kvforge_set_window(struct llama_context * ctx, int32_t n_window, int32_t n_first);

// Tokens of a sequence that can be read exact at the moment.
LLAMA_API uint32_t llama_kvforge_window_used(const struct llama_context * ctx, llama_seq_id seq);

// Empties the ring: queries read the cache until new tokens have come.
LLAMA_API void llama_kvforge_window_drop(struct llama_context * ctx);

// Identifies a model by what a change of its weight type leaves alone: shapes,
// norms and biases.
LLAMA_API uint64_t llama_kvforge_model_id(const struct llama_model * model);

#ifdef __cplusplus
}
#endif
