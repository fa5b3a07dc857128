// Checks that are counted, so that a run that checked nothing is seen.
#pragma once

#include <stdio.h>
#include <stdlib.h>

static int checks_passed, checks_failed;

#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)

static inline int check(int holds, const char * condition, const char * file, int line) {
    if (holds) {
        checks_passed++;
    } else {
        checks_failed++;
        fprintf(stderr, "%s:%d: failed: %s\n", file, line, condition);
    }
    return holds;
}

// What main returns.
static inline int report(void) {
    printf("%d checks passed, %d checks failed\n", checks_passed, checks_failed);
    return checks_failed > 0 || checks_passed == 0;
}

// Standard normal values, the same in every run: twelve uniforms, less six,
// are close enough to Gaussian for a test and need no libm.
static inline float gaussian(unsigned long long * state) {
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
        sum += (double) (*state >> 40) / (double) (1 << 24);
    }
    return (float) sum;
}
