// The keys of a cache, as numbers: what a shift does to them is seen there, while
// a model may write the same text with keys that are turned wrongly.
#pragma once

#include "state_files.h"

// A copy of the state of sequence 0.
static inline struct bytes sequence_state(struct llama_context * ctx) {
    struct bytes state = { NULL, llama_state_seq_get_size(ctx, 0) };
    state.at = malloc(state.n);
    if (llama_state_seq_get_data(ctx, state.at, state.n, 0) != state.n) {
        give_up("a sequence cannot be copied to memory");
    }
    return state;
}

// The prompt's rows (but for its last token's) of the tensor behind the tag at
// `tag`, decoded: `*n` values.
static inline float * rows_of(struct bytes state, size_t tag, const struct subject * subject, size_t * n) {
    const size_t at = tag + sizeof(ggml_kvforge_state_tag);
    const size_t rows = subject->n_prompt - 1;
    uint64_t row = 0;
    if (at + sizeof(row) <= state.n) {
        memcpy(&row, state.at + at, sizeof(row));
    }
    if (row == 0 || rows > (state.n - at - sizeof(row)) / row) {
        give_up("a state is too short for its rows");
    }
    const struct ggml_type_traits * traits = ggml_get_type_traits(subject->type_k);
    *n = rows * row / traits->type_size * traits->blck_size;
    float * values = malloc(*n * sizeof(float));
    traits->to_float(state.at + at + sizeof(row), values, (int64_t) *n);
    return values;
}

// |a - b|^2 / |b|^2
static inline double relative_error(const float * a, const float * b, size_t n) {
    double error = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double) a[i] - b[i]) * ((double) a[i] - b[i]);
        square += (double) b[i] * b[i];
    }
    return error / square;
}

// Keys evaluated `by` positions further on and shifted back are the keys that are
// evaluated where they belong, but for what coding costs; and those that nobody
// shifts are far from them. Seen in the tensor in which the latter is most so.
static inline void shifted_keys(const struct subject * subject, int by) {
    if (!ggml_kvforge_is(subject->type_k)) {
        printf("not run: shifted keys as numbers: %s is not ours\n", ggml_type_name(subject->type_k));
        return;
    }
    struct bytes states[3]; // evaluated where they belong, shifted, not shifted
    for (int i = 0; i < 3; i++) {
        struct llama_context * ctx = open_for(subject, 1);
        llama_kvforge_set_window(ctx, 0, 0); // a shift loses copies: states would differ in length
        feed_prompt(ctx, subject, i == 0 ? 0 : by, 0);
        if (i == 1) {
            llama_memory_seq_add(llama_get_memory(ctx), 0, 0, -1, -by);
        }
        // the next batch shifts
        const llama_token last = subject->prompt[subject->n_prompt - 1];
        feed(ctx, &last, 1, subject->n_prompt - 1 + (i == 2 ? by : 0), 0);
        states[i] = sequence_state(ctx);
        llama_free(ctx);
    }
    double shifted = 0, unshifted = 0;
    for (size_t tag = 0; (tag = find_tag(states[0], subject->type_k, tag)) < states[0].n; tag++) {
        float * values[3];
        size_t n = 0;
        for (int i = 0; i < 3; i++) {
            values[i] = rows_of(states[i], tag, subject, &n);
        }
        const double error = relative_error(values[2], values[0], n);
        if (error > unshifted) {
            unshifted = error;
            shifted = relative_error(values[1], values[0], n);
        }
        for (int i = 0; i < 3; i++) {
            free(values[i]);
        }
    }
    expect(shifted < unshifted / 4, "shifted keys: relative squared error %.4f, not shifted %.4f", shifted, unshifted);
    for (int i = 0; i < 3; i++) {
        free(states[i].at);
    }
}
