// TERCET_TARGET("avx2,fma") to TERCET_TARGET_END: functions between them are compiled for that
// instruction set, whatever the rest of the file is compiled for.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// lanes are structs of registers: a call left standing would pass them through memory. The second is for
// lambdas, behind their parameters.
#define TERCET_INLINE inline __attribute__((always_inline))
#define TERCET_INLINED __attribute__((always_inline))

#define TERCET_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TERCET_TARGET(names) \
  TERCET_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define TERCET_TARGET_END TERCET_PRAGMA(clang attribute pop)
#else
#define TERCET_TARGET(names) TERCET_PRAGMA(GCC push_options) TERCET_PRAGMA(GCC target(names))
#define TERCET_TARGET_END TERCET_PRAGMA(GCC pop_options)
#endif
