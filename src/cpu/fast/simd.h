// SPDX-License-Identifier: Apache-2.0
// One source, several instruction sets: GCC compiles a function per level and picks one at start.
#pragma once

// Indirect functions and sanitizer start-up do not mix, and clang needs no second code path here.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TESSERA_SIMD_CLONES [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#else
#define TESSERA_SIMD_CLONES
#endif
