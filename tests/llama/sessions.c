// A cache that lives: states saved and loaded, sequences copied, prefixes
// reused, positions shifted. Greedy text must be what an undisturbed run gives,
// and a state that is not this cache's must be refused and leave nothing.
//
// Usage: sessions MODEL TYPE_K TYPE_V FOLDER [coarse] [windowed] [CALIBRATION]
// FOLDER: for saved states; CALIBRATION: keys are centred throughout

#include "keys.h"
#include "run.h"
#include "state_files.h"
#include "type_by_name.h"

#include "ggml-kvforge.h"

// Goes on with certainty, so that what a second coding of the keys changes does
// not change the text; and another way if keys are not where they should be.
#define ROUND "for i in range(10):\\n"
static const char TEXT[] = ROUND "    print(i)\\n" ROUND "    print(i)\\n" ROUND "    print(i)\\n" ROUND;

// Tokens that `generate` leaves the cache with, beyond the prompt's.
static void remove_tail(struct llama_context * ctx, const struct subject * subject) {
    expect(llama_memory_seq_rm(llama_get_memory(ctx), 0, subject->n_prompt - 1, -1), "the tail of a sequence can be removed");
}

static struct run plain_run(const struct subject * subject) {
    struct llama_context * ctx = open_for(subject, 1);
    feed_prompt(ctx, subject, 0, 0);
    const struct run expected = continue_prompt(ctx, subject);
    expect(isfinite(expected.logit[0]) && isfinite(expected.logit[TOKENS - 1]), "an undisturbed run gives numbers");

    remove_tail(ctx, subject);
    const struct run reused = continue_prompt(ctx, subject);
    if (windowed) { // copies of the tokens before have gone to make room for others
        expect_alike(&reused, &expected, AT_LEAST, "prefix reused");
    } else {
        expect_identical(&reused, &expected, "prefix reused");
    }

    llama_memory_clear(llama_get_memory(ctx), true);
    const struct run without = continue_prompt(ctx, subject);
    expect_other(&without, &expected, "with an empty cache");
    llama_free(ctx);
    return expected;
}

static void copied_sequences(const struct subject * subject, const struct run * expected, bool unified, int at_least) {
    struct llama_context_params params = settings(subject);
    params.n_seq_max  = MOST_SEQUENCES;
    params.kv_unified = unified;
    struct llama_context * ctx = open_with(subject, params);
    feed_prompt(ctx, subject, 0, 0);
    for (llama_seq_id seq = 1; seq < MOST_SEQUENCES; seq++) {
        llama_memory_seq_cp(llama_get_memory(ctx), 0, seq, -1, -1);
    }
    struct run runs[MOST_SEQUENCES];
    generate_each(ctx, subject, subject->n_prompt - 1, MOST_SEQUENCES, runs);
    for (llama_seq_id seq = 0; seq < MOST_SEQUENCES; seq++) {
        char what[64];
        snprintf(what, sizeof(what), "%s, copied sequence %d", unified ? "one buffer" : "a buffer each", seq);
        expect_alike(&runs[seq], expected, at_least, what);
    }
    llama_free(ctx);
}

// Other prompts come and go, and leave holes, before the prompt comes again.
static void churn(const struct subject * subject, const struct run * expected) {
    struct llama_context * ctx = open_for(subject, 2);
    llama_memory_t memory = llama_get_memory(ctx);
    unsigned long long state = 7;
    for (int round = 0; round < 8; round++) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        const int n = 5 + (int) (state >> 33) % 120;
        llama_token tokens[128];
        for (int i = 0; i < n; i++) {
            tokens[i] = subject->prompt[(i * 7 + round) % subject->n_prompt];
        }
        const llama_seq_id seq = round % 2;
        llama_memory_seq_rm(memory, seq, -1, -1);
        feed(ctx, tokens, n, 0, seq);
        if (seq == 1) {
            llama_memory_seq_rm(memory, seq, n / 3, n - 2);
        }
    }
    llama_memory_seq_rm(memory, 0, -1, -1);
    feed_prompt(ctx, subject, 0, 0);
    const struct run run = continue_prompt(ctx, subject);
    expect_same(&run, expected, "after other prompts came and went");
    llama_free(ctx);
}

// Evaluated elsewhere and shifted back. Keys are coded twice, so the text may
// leave the expected one, but not soon.
static void shifted(const struct subject * subject, const struct run * expected) {
    enum { BY = 100 };
    struct llama_context * ctx = open_for(subject, 1);
    llama_memory_t memory = llama_get_memory(ctx);
    if (!llama_memory_can_shift(memory)) {
        printf("not run: K-shift: a cache of %s keys on this model cannot shift\n", ggml_type_name(subject->type_k));
        llama_free(ctx);
        return;
    }
    for (int by = -BY; by <= BY; by += 2 * BY) {
        llama_memory_clear(memory, true);
        feed_prompt(ctx, subject, by < 0 ? -by : 0, 0);
        llama_memory_seq_add(memory, 0, 0, -1, by);
        const struct run run = generate(ctx, subject, subject->n_prompt - 1 + (by < 0 ? 0 : by));
        expect_alike(&run, expected, AT_LEAST, by < 0 ? "shifted back by 100" : "shifted on by 100");
    }
    shifted_keys(subject, BY);
    if (coarse || llama_model_n_swa(subject->model) > 0) {
        printf("not run: text without a shift: a model with a window may find its way by content alone\n");
        llama_free(ctx);
        return;
    }
    // as if the shift had changed no key but the last
    llama_memory_clear(memory, true);
    feed_prompt(ctx, subject, 0, 0);
    llama_memory_seq_add(memory, 0, subject->n_prompt - 2, -1, BY);
    const struct run unshifted = generate(ctx, subject, subject->n_prompt - 1 + BY);
    expect(alike(&unshifted, expected) < AT_LEAST, "control: not shifted: another text, after %d tokens", alike(&unshifted, expected));
    llama_free(ctx);
}

// Size of a head, by the model's own description; 0 if it does not say.
static int head_size(const struct llama_model * model) {
    char architecture[64], key[128], value[32];
    if (llama_model_meta_val_str(model, "general.architecture", architecture, sizeof(architecture)) < 0) {
        return 0;
    }
    snprintf(key, sizeof(key), "%s.attention.key_length", architecture);
    if (llama_model_meta_val_str(model, key, value, sizeof(value)) > 0) {
        return atoi(value);
    }
    return llama_model_n_embd(model) / llama_model_n_head(model);
}

// A format that keeps only what scores need must not be decoded and coded again.
static void keys_only(const struct subject * subject) {
    const enum ggml_type type = type_by_name("qjl1_256");
    const int head = head_size(subject->model);
    if (head == 0 || head % ggml_blck_size(type) != 0) {
        printf("not run: qjl1_256 cannot shift: it does not fit this model's heads of %d\n", head);
        return;
    }
    struct subject other = *subject;
    other.type_k = type;
    struct llama_context * ctx = open_for(&other, 1);
    expect(!llama_memory_can_shift(llama_get_memory(ctx)), "a cache of qjl1_256 keys says that it cannot shift");
    llama_free(ctx);
}

// The model; with a window that is shorter than the prompt, if there is one for it
// to shorten: a model of another architecture does not know the key.
static struct llama_model * load(const char * path, bool short_window) {
    struct llama_model_kv_override overrides[2] = { { .tag = LLAMA_KV_OVERRIDE_TYPE_INT }, { .key = "" } };
    snprintf(overrides[0].key, sizeof(overrides[0].key), "gemma3.attention.sliding_window");
    overrides[0].val_i64 = WINDOW;
    struct llama_model_params params = llama_model_default_params();
    params.kv_overrides = short_window ? overrides : NULL;
    struct llama_model * model = llama_model_load_from_file(path, params);
    if (!model) {
        give_up("the model cannot be loaded");
    }
    return model;
}

// A sliding window whose cache forgets what it has left behind. It is saved
// without what it forgot, and so lies elsewhere when it is loaded: sums are then
// rounded in another way, and the text need not be the same for ever.
static void sliding_window(const struct subject * given, const char * path, const char * folder) {
    if (llama_model_n_swa(given->model) <= 0) {
        printf("not run: sliding window: this model has none\n");
        return;
    }
    struct subject subject = *given;
    subject.model = load(path, true);
    expect(llama_model_n_swa(subject.model) == WINDOW, "the window is %d tokens", WINDOW);
    while (subject.n_prompt < 300) { // longer than the cache of the window
        memcpy(subject.prompt + subject.n_prompt, given->prompt, given->n_prompt * sizeof(llama_token));
        subject.n_prompt += given->n_prompt;
    }
    struct llama_context_params params = settings(&subject);
    params.n_ubatch = WINDOW;
    params.swa_full = true;
    struct llama_context * full = open_with(&subject, params);
    feed_prompt(full, &subject, 0, 0);
    expect(llama_memory_seq_pos_min(llama_get_memory(full), 0) == 0, "a full cache keeps every position");
    const struct run expected = continue_prompt(full, &subject);
    llama_free(full);

    params.swa_full = false;
    struct llama_context * window = open_with(&subject, params);
    feed_prompt(window, &subject, 0, 0);
    const llama_pos first = llama_memory_seq_pos_min(llama_get_memory(window), 0);
    expect(first > 0, "the window's cache has forgotten positions before %d", first);
    const char * file = state_path(folder, "window");
    expect(llama_state_save_file(window, file, subject.prompt, subject.n_prompt), "the state of a window is saved");
    const struct run run = continue_prompt(window, &subject);
    expect_alike(&run, &expected, AT_LEAST, "sliding window");
    remove_tail(window, &subject);
    const struct run reused = continue_prompt(window, &subject);
    expect_alike(&reused, &run, AT_LEAST, "sliding window, prefix reused");
    llama_free(window);

    struct llama_context * loaded = open_with(&subject, params);
    expect(load_whole(loaded, file), "the state of a window is loaded");
    const struct run again = continue_prompt(loaded, &subject);
    expect_alike(&again, &run, AT_LEAST, "sliding window, from a file");
    llama_free(loaded);

    copied_sequences(&subject, &expected, true, AT_LEAST);
    llama_model_free(subject.model);
}

int main(int argc, char ** argv) {
    int n = 5;
    coarse   = n < argc && strcmp(argv[n], "coarse") == 0 && n++;
    windowed = n < argc && strcmp(argv[n], "windowed") == 0 && n++;
    calibration = n < argc ? argv[n++] : NULL;
    if (argc < 5 || argc != n) {
        fprintf(stderr, "usage: sessions MODEL TYPE_K TYPE_V FOLDER [coarse] [windowed] [CALIBRATION]\n");
        return 2;
    }
    llama_log_set(keep_errors, NULL);
    llama_backend_init();
    ggml_backend_load_all();

    struct subject subject = { .type_k = type_by_name(argv[2]), .type_v = type_by_name(argv[3]) };
    subject.model = load(argv[1], false);
    const struct llama_vocab * vocab = llama_model_get_vocab(subject.model);
    subject.n_prompt = llama_tokenize(vocab, TEXT, sizeof(TEXT) - 1, subject.prompt, CELLS, true, false);
    if (subject.n_prompt <= 0 || subject.n_prompt + TOKENS > CELLS / MOST_SEQUENCES) {
        give_up("the prompt does not fit into a third of the cache");
    }

    const struct run expected = plain_run(&subject);
    copied_sequences(&subject, &expected, true, TOKENS);
    copied_sequences(&subject, &expected, false, TOKENS);
    churn(&subject, &expected);
    saved_and_loaded(&subject, &expected, argv[4]);
    refused_states(&subject, &expected, argv[4]);
    shifted(&subject, &expected);
    keys_only(&subject);
    sliding_window(&subject, argv[1], argv[4]);

    llama_model_free(subject.model);
    llama_backend_free();
    return report();
}
