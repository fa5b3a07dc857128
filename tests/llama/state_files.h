// States of a cache in files and in memory: what was saved is loaded, and what
// is not this cache's is refused, with a reason, and leaves nothing behind.
#pragma once

#include "run.h"

#include "ggml-kvforge.h"

struct bytes {
    unsigned char * at;
    size_t          n;
};

// What libllama said of errors since this was last emptied.
static char errors[1 << 14];

static inline void keep_errors(enum ggml_log_level level, const char * text, void * unused) {
    (void) unused;
    static bool error; // a line may come in pieces
    if (level != GGML_LOG_LEVEL_CONT) {
        error = level == GGML_LOG_LEVEL_ERROR;
    }
    if (error) {
        strncat(errors, text, sizeof(errors) - strlen(errors) - 1);
        fputs(text, stderr);
    }
}

// The path is valid until the next call.
static inline const char * state_path(const char * folder, const char * name) {
    static char path[4096];
    snprintf(path, sizeof(path), "%s/%s.state", folder, name);
    return path;
}

static inline struct bytes read_bytes(const char * path) {
    FILE * file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) {
        give_up("a saved state cannot be read");
    }
    struct bytes bytes = { NULL, (size_t) ftell(file) };
    rewind(file);
    bytes.at = malloc(bytes.n);
    if (fread(bytes.at, 1, bytes.n, file) != bytes.n) {
        give_up("a saved state cannot be read");
    }
    fclose(file);
    return bytes;
}

static inline void write_bytes(const char * path, const unsigned char * bytes, size_t n) {
    FILE * file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0) {
        give_up("a state cannot be written");
    }
}

static inline bool load_whole(struct llama_context * ctx, const char * path) {
    static llama_token tokens[CELLS];
    size_t n = 0;
    return llama_state_load_file(ctx, path, tokens, CELLS, &n);
}

static inline bool load_sequence(struct llama_context * ctx, const char * path, llama_seq_id seq) {
    static llama_token tokens[CELLS];
    size_t n = 0;
    return llama_state_seq_load_file(ctx, path, seq, tokens, CELLS, &n) > 0;
}

// Saves the prompt's state into two files: of the whole cache, and of its sequence.
static inline void save(const struct subject * subject, const char * folder) {
    struct llama_context * ctx = open_for(subject, 2);
    feed_prompt(ctx, subject, 0, 0);
    expect(llama_state_save_file(ctx, state_path(folder, "whole"), subject->prompt, subject->n_prompt), "the whole state is saved");
    expect(llama_state_seq_save_file(ctx, state_path(folder, "sequence"), 0, subject->prompt, subject->n_prompt) > 0,
        "the state of a sequence is saved");
    llama_free(ctx);
}

static inline void saved_and_loaded(const struct subject * subject, const struct run * expected, const char * folder) {
    save(subject, folder);

    struct llama_context * ctx = open_for(subject, 2);
    expect(load_whole(ctx, state_path(folder, "whole")), "the whole state is loaded");
    const struct run whole = continue_prompt(ctx, subject);
    expect_identical(&whole, expected, "whole state from a file");
    llama_free(ctx);

    ctx = open_for(subject, 2);
    expect(load_sequence(ctx, state_path(folder, "sequence"), 0), "the state of a sequence is loaded");
    const struct run sequence = continue_prompt(ctx, subject);
    expect_identical(&sequence, expected, "sequence from a file");
    llama_free(ctx);

    struct llama_context * from = open_for(subject, 2);
    feed_prompt(from, subject, 0, 0);
    struct bytes state = { NULL, llama_state_get_size(from) };
    state.at = malloc(state.n);
    expect(llama_state_get_data(from, state.at, state.n) == state.n, "the whole state is copied to memory");
    llama_free(from);
    ctx = open_for(subject, 2);
    expect(llama_state_set_data(ctx, state.at, state.n) == state.n, "the whole state is set from memory");
    const struct run memory = continue_prompt(ctx, subject);
    expect_identical(&memory, expected, "whole state from memory");

    llama_memory_clear(llama_get_memory(ctx), true);
    expect(llama_state_set_data(ctx, state.at, state.n / 2) == 0, "half a state in memory is refused");
    expect(llama_memory_seq_pos_max(llama_get_memory(ctx), 0) == -1, "half a state in memory leaves nothing");
    llama_free(ctx);
    free(state.at);
}

// --- refusals -----------------------------------------------------------------

// Where the tag of a type next stands in a state, from `from` on; its end if nowhere.
static inline size_t find_tag(struct bytes state, enum ggml_type type, size_t from) {
    const ggml_kvforge_state_tag tag = ggml_kvforge_state_tag_of(type);
    for (size_t at = from; at + sizeof(tag) <= state.n; at++) {
        if (memcmp(state.at + at, &tag, sizeof(tag)) == 0) {
            return at;
        }
    }
    return state.n;
}

// The same, but where it stands for the last time.
static inline size_t find_last_tag(struct bytes state, enum ggml_type type) {
    size_t last = state.n;
    for (size_t at = 0; (at = find_tag(state, type, at)) < state.n; at++) {
        last = at;
    }
    return last;
}

// A cache that holds the prompt in sequence 0 does not take the file, whether as
// a whole or as sequence 1, says why, and keeps nothing of it.
static inline void refuse(struct llama_context * ctx, const char * path, const char * why, const char * what) {
    llama_memory_t memory = llama_get_memory(ctx);
    const llama_pos before = llama_memory_seq_pos_max(memory, 0);
    errors[0] = '\0';
    expect(!load_sequence(ctx, path, 1), "%s is refused", what);
    expect(strstr(errors, why) != NULL, "%s is refused with the words \"%s\"", what, why);
    expect(llama_memory_seq_pos_max(memory, 1) == -1 && llama_memory_seq_pos_max(memory, 0) == before,
        "%s leaves nothing, and the other sequence as it was", what);
}

static inline void refuse_whole(struct llama_context * ctx, const char * path, const char * why, const char * what) {
    errors[0] = '\0';
    expect(!load_whole(ctx, path), "whole: %s is refused", what);
    expect(strstr(errors, why) != NULL, "whole: %s is refused with the words \"%s\"", what, why);
    expect(llama_memory_seq_pos_max(llama_get_memory(ctx), 0) == -1, "whole: %s leaves nothing", what);
}

// The state in `path` with one byte of its tags changed at a time, or cut short.
static inline void refuse_changed(
        const struct subject * subject, struct llama_context * ctx, const char * folder, const char * name,
        void (*refuse)(struct llama_context *, const char *, const char *, const char *)) {
    struct bytes state = read_bytes(state_path(folder, name));
    const char * path = state_path(folder, "changed");
    const char * tagged = "the saved state holds", * cut = "the saved state is cut off";
    for (int side = 0; side < 2; side++) {
        const enum ggml_type type = side == 0 ? subject->type_k : subject->type_v;
        if (!ggml_kvforge_is(type)) {
            printf("not run: a state with another tag of %s: it has none\n", ggml_type_name(type));
            continue;
        }
        const size_t tag = side == 0 ? find_tag(state, type, 0) : find_last_tag(state, type);
        if (tag == state.n) {
            expect(false, "%s: no tag of %s found", name, ggml_type_name(type));
            continue;
        }
        const struct { size_t at; const char * what; } changes[] = {
            { 3, "another name" },
            { offsetof(ggml_kvforge_state_tag, layout) + 5, "another layout" },
        };
        for (size_t i = 0; i < 2; i++) {
            char what[64];
            snprintf(what, sizeof(what), "%s of %s", changes[i].what, side == 0 ? "K" : "V");
            state.at[tag + changes[i].at] ^= 1;
            write_bytes(path, state.at, state.n);
            refuse(ctx, path, tagged, what);
            state.at[tag + changes[i].at] ^= 1;
        }
        write_bytes(path, state.at, tag + sizeof(ggml_kvforge_state_tag) / 2);
        refuse(ctx, path, cut, side == 0 ? "a file cut in a tag of K" : "a file cut in a tag of V");
    }
    write_bytes(path, state.at, state.n / 2);
    refuse(ctx, path, cut, "half a file");
    free(state.at);
}

static inline void refused_states(const struct subject * subject, const struct run * expected, const char * folder) {
    struct llama_context * ctx = open_for(subject, 2);
    feed_prompt(ctx, subject, 0, 0);
    refuse_changed(subject, ctx, folder, "sequence", refuse);
    const struct run beside = continue_prompt(ctx, subject);
    expect_same(&beside, expected, "the sequence beside refused ones");

    refuse_changed(subject, ctx, folder, "whole", refuse_whole);
    feed_prompt(ctx, subject, 0, 0);
    const struct run after = continue_prompt(ctx, subject);
    expect_same(&after, expected, "the prompt after refused states");
    llama_free(ctx);

    struct subject other = *subject;
    const bool ours = ggml_kvforge_is(subject->type_k) || ggml_kvforge_is(subject->type_v);
    other.type_k = other.type_v = ours ? GGML_TYPE_F16 : GGML_TYPE_F32;
    ctx = open_for(&other, 2);
    feed_prompt(ctx, &other, 0, 0);
    refuse(ctx, state_path(folder, "sequence"), "mismatched", "a state of other cache types");
    refuse_whole(ctx, state_path(folder, "whole"), "mismatched", "a state of other cache types");
    llama_free(ctx);
}
