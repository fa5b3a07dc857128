// Thresholds for the tree's own tests of quantised types, from the formats'
// specifications.
#pragma once

#include "ggml.h"
#include "ggml-cpu.h"
#include "ggml-kvforge.h"

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

// relative mean squared error that the format has on Gaussian values with the
// encoder in use, and the part of it by which a right implementation may miss it
static inline double kvforge_gaussian_mse(ggml_type type, double * margin) {
    const struct kvf_format_info info = ggml_kvforge_info(type);
    *margin = info.gaussian_mse_margin;
    return ggml_kvforge_reference_encoder() ? info.gaussian_mse : info.gaussian_mse_best;
}

static inline void kvforge_generate_gaussian(uint32_t seed, std::vector<float> & x) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (float & v : x) {
        v = normal(rng);
    }
}

// limit of test-quantize-fns' first measure, rmse/sqrt(n), for n Gaussian values:
// so few of them scatter by some per cent
static inline float kvforge_max_total_error(ggml_type type, size_t n) {
    double margin;
    return (float) std::sqrt(1.1 * kvforge_gaussian_mse(type, &margin) / n);
}

// 1 if the error of a dot product of n pairs, divided by n, is above four of its standard deviations
static inline int kvforge_dot_failed(ggml_type type, float error, size_t n, bool verbose) {
    double margin;
    const double limit = 4*std::sqrt(kvforge_gaussian_mse(type, &margin) / n);
    const bool failed = !(error < limit);
    if (failed || verbose) {
        printf("%5s dot product against its limit:   %s (%f, limit %f)\n", ggml_type_name(type), failed ? "FAILED" : "ok", error, limit);
    }
    return failed;
}

// 1 if encode-then-decode of many Gaussian values misses the specified error, on either side
static inline int kvforge_gaussian_failed(ggml_type type, bool verbose) {
    std::vector<float> x(1 << 17), y(x.size());
    kvforge_generate_gaussian(42, x);
    std::vector<char> bytes(ggml_row_size(type, x.size()));
    ggml_get_type_traits_cpu(type)->from_float(x.data(), bytes.data(), x.size());
    ggml_get_type_traits(type)->to_float(bytes.data(), y.data(), y.size());
    double error = 0, norm = 0;
    for (size_t i = 0; i < x.size(); i++) {
        error += (double) (x[i] - y[i])*(x[i] - y[i]);
        norm  += (double) x[i]*x[i];
    }
    double margin;
    const double want = kvforge_gaussian_mse(type, &margin);
    const bool failed = !(std::fabs(error/norm - want) <= margin*want);
    if (failed || verbose) {
        printf("%5s error on Gaussian values:        %s (%f, specified %f +- %.0f %%)\n",
            ggml_type_name(type), failed ? "FAILED" : "ok", error/norm, want, 100*margin);
    }
    return failed;
}
