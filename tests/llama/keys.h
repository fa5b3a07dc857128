// The keys of a cache, as numbers: what a shift does to them is seen there, while
// a model may write the same text with keys that are turned wrongly.
#pragma once

#include "state_files.h"

// Keys of the prompt (but for its last token) in the first layer of the cache,
// decoded: `*n` values. They are read from a saved state, which begins with them.
static float * prompt_keys(struct llama_context * ctx, const struct subject * subject, size_t * n) {
    struct bytes state = { NULL, llama_state_seq_get_size(ctx, 0) };
    state.at = malloc(state.n);
    if (llama_state_seq_get_data(ctx, state.at, state.n, 0) != state.n) {
        give_up("a sequence cannot be copied to memory");
    }
    size_t at = find_tag(state, subject->type_k, false) + sizeof(ggml_kvforge_state_tag);
    uint64_t row;
    if (at + sizeof(row) > state.n) {
        give_up("a state names no type of keys");
    }
    memcpy(&row, state.at + at, sizeof(row));
    at += sizeof(row);
    const size_t rows = subject->n_prompt - 1;
    if (row == 0 || rows > (state.n - at) / row) {
        give_up("a state is too short for its keys");
    }
    const struct ggml_type_traits * traits = ggml_get_type_traits(subject->type_k);
    *n = rows * row / traits->type_size * traits->blck_size;
    float * keys = malloc(*n * sizeof(float));
    traits->to_float(state.at + at, keys, (int64_t) *n);
    free(state.at);
    return keys;
}

// |a - b|^2 / |b|^2
static double relative_error(const float * a, const float * b, size_t n) {
    double error = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double) a[i] - b[i]) * ((double) a[i] - b[i]);
        square += (double) b[i] * b[i];
    }
    return error / square;
}

// Keys evaluated `by` positions further on and shifted back are the keys that are
// evaluated where they belong, but for what coding twice costs; and those that
// nobody shifts are far from them.
static void shifted_keys(const struct subject * subject, int by) {
    if (!ggml_kvforge_is(subject->type_k)) {
        printf("not run: shifted keys as numbers: %s is not ours\n", ggml_type_name(subject->type_k));
        return;
    }
    float * keys[3];
    size_t n = 0;
    for (int i = 0; i < 3; i++) { // where they belong, shifted, not shifted
        struct llama_context * ctx = open_for(subject, 1);
        feed_prompt(ctx, subject, i == 0 ? 0 : by, 0);
        if (i == 1) {
            llama_memory_seq_add(llama_get_memory(ctx), 0, 0, -1, -by);
        }
        // the next batch shifts
        const llama_token last = subject->prompt[subject->n_prompt - 1];
        feed(ctx, &last, 1, subject->n_prompt - 1 + (i == 2 ? by : 0), 0);
        keys[i] = prompt_keys(ctx, subject, &n);
        llama_free(ctx);
    }
    const double shifted = relative_error(keys[1], keys[0], n), unshifted = relative_error(keys[2], keys[0], n);
    expect(shifted < unshifted / 4, "shifted keys: relative squared error %.4f, not shifted %.4f", shifted, unshifted);
    for (int i = 0; i < 3; i++) {
        free(keys[i]);
    }
}
