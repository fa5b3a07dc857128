// Greedy generation through libllama: contexts, runs, and how runs compare.
#pragma once

#include "check.h"
#include "llama.h"
#include "llama-kvforge.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

enum { CELLS = 512, TOKENS = 32, MOST_SEQUENCES = 3, WINDOW = 32 };

// A model, the types of its cache, and a prompt.
struct subject {
    struct llama_model * model;
    enum ggml_type       type_k, type_v;
    llama_token          prompt[CELLS];
    int                  n_prompt;
};

// Generated tokens, and the logit that each of them won with.
struct run {
    llama_token token[TOKENS];
    float       logit[TOKENS];
};

static inline void give_up(const char * what) {
    fprintf(stderr, "cannot go on: %s\n", what);
    exit(2);
}

// A check that says what it found, whether it holds or not.
__attribute__((format(printf, 2, 3)))
static inline void expect(bool holds, const char * format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    printf("%s %s\n", holds ? "ok  " : "FAIL", text);
    fflush(stdout);
    check(holds, text, __FILE__, __LINE__);
}

static inline struct llama_context_params settings(const struct subject * subject) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx           = CELLS;
    params.n_batch         = CELLS;
    params.n_threads       = 2;
    params.n_threads_batch = 2;
    params.n_seq_max       = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.type_k          = subject->type_k;
    params.type_v          = subject->type_v;
    params.swa_full        = false;
    params.kv_unified      = true;
    return params;
}

// Set for runs whose keys are centred: every context then begins with it.
static const char * calibration;

// Set for runs that keep some tokens exact, as contexts do by themselves.
static bool windowed;

static inline struct llama_context * open_with(const struct subject * subject, struct llama_context_params params) {
    struct llama_context * ctx = llama_init_from_model(subject->model, params);
    if (!ctx) {
        give_up("no context with these types of cache");
    }
    if (calibration && !llama_kvforge_set_calibration(ctx, calibration)) {
        give_up("the calibration does not fit the model");
    }
    if (!windowed && !llama_kvforge_set_window(ctx, 0, 0)) {
        give_up("the window cannot be taken away");
    }
    return ctx;
}

static inline struct llama_context * open_for(const struct subject * subject, uint32_t sequences) {
    struct llama_context_params params = settings(subject);
    params.n_seq_max = sequences;
    return open_with(subject, params);
}

static inline void put(struct llama_batch * batch, llama_token token, llama_pos pos, llama_seq_id seq, bool logits) {
    const int i = batch->n_tokens++;
    batch->token[i]     = token;
    batch->pos[i]       = pos;
    batch->n_seq_id[i]  = 1;
    batch->seq_id[i][0] = seq;
    batch->logits[i]    = logits;
}

// Evaluates tokens at successive positions, from `pos` on.
static inline void feed(struct llama_context * ctx, const llama_token * tokens, int n, llama_pos pos, llama_seq_id seq) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        put(&batch, tokens[i], pos + i, seq, false);
    }
    if (llama_decode(ctx, batch) != 0) {
        give_up("llama_decode failed on a prompt");
    }
    llama_batch_free(batch);
}

// The prompt but for its last token, which `generate` begins with: so every run
// continues with batches of the same shape, wherever its cache came from.
static inline void feed_prompt(struct llama_context * ctx, const struct subject * subject, llama_pos pos, llama_seq_id seq) {
    feed(ctx, subject->prompt, subject->n_prompt - 1, pos, seq);
}

// Continues sequences 0..n at once, from position `pos` on, each with the last
// token of the prompt and then with the likeliest.
static inline void generate_each(struct llama_context * ctx, const struct subject * subject, llama_pos pos, int n, struct run * runs) {
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(subject->model));
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    llama_token next[MOST_SEQUENCES];
    for (int seq = 0; seq < n; seq++) {
        next[seq] = subject->prompt[subject->n_prompt - 1];
    }
    for (int step = 0; step < TOKENS; step++) {
        batch.n_tokens = 0;
        for (int seq = 0; seq < n; seq++) {
            put(&batch, next[seq], pos + step, seq, true);
        }
        if (llama_decode(ctx, batch) != 0) {
            give_up("llama_decode failed while generating");
        }
        for (int seq = 0; seq < n; seq++) {
            const float * logits = llama_get_logits_ith(ctx, seq);
            int best = 0;
            for (int token = 1; token < n_vocab; token++) {
                best = logits[token] > logits[best] ? token : best;
            }
            next[seq] = runs[seq].token[step] = best;
            runs[seq].logit[step] = logits[best];
        }
    }
    llama_batch_free(batch);
}

static inline struct run generate(struct llama_context * ctx, const struct subject * subject, llama_pos pos) {
    struct run run;
    generate_each(ctx, subject, pos, 1, &run);
    return run;
}

// Continues the prompt, whose beginning lies in the cache from position 0 on.
static inline struct run continue_prompt(struct llama_context * ctx, const struct subject * subject) {
    return generate(ctx, subject, subject->n_prompt - 1);
}

// How many tokens two runs begin with alike.
static inline int alike(const struct run * a, const struct run * b) {
    int n = 0;
    while (n < TOKENS && a->token[n] == b->token[n]) {
        n++;
    }
    return n;
}

// How far the logits of these tokens differ at most; infinite if one is no number.
static inline double distance(const struct run * a, const struct run * b) {
    double worst = 0;
    for (int i = 0, n = alike(a, b); i < n; i++) {
        const double difference = fabs((double) a->logit[i] - b->logit[i]);
        worst = isnan(difference) ? INFINITY : fmax(worst, difference);
    }
    return worst;
}

// Set for types so coarse that a sum rounded in another way may change a token:
// then text is judged only where the numbers must be the same.
static bool coarse;

// `run` begins with at least `n` tokens of `expected`, and its logits are numbers.
static inline void expect_alike(const struct run * run, const struct run * expected, int n, const char * what) {
    const int found = alike(run, expected);
    const double moved = distance(run, expected);
    expect((coarse || found >= n) && isfinite(moved), "%s: %d of %d tokens as expected%s, logits moved by at most %.3g", what,
        found, TOKENS, coarse ? " (not judged)" : "", moved);
}

static inline void expect_same(const struct run * run, const struct run * expected, const char * what) {
    expect_alike(run, expected, TOKENS, what);
}

// Tokens that must be as expected where sums are rounded in another way.
enum { AT_LEAST = 16 };

// The same numbers, too: what came out of the same bytes of cache.
static inline void expect_identical(const struct run * run, const struct run * expected, const char * what) {
    expect(memcmp(run, expected, sizeof(*run)) == 0, "%s: the same tokens, and logits to the last bit", what);
}

static inline void expect_other(const struct run * run, const struct run * unwanted, const char * what) {
    expect(alike(run, unwanted) < TOKENS, "control: %s: another text, after %d tokens", what, alike(run, unwanted));
}
