// SPDX-License-Identifier: Apache-2.0
// Address rule of the hashed n-gram table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// Constants of one PLE layer, derived from the config; checkpoint files repeat them and must
/// agree.
struct NgramHash {
  std::vector<int64_t> multipliers{};  // [ngram_size], index 0 belongs to the current token
  std::vector<int64_t> primes{};       // [heads], vocabulary of each head
  std::vector<int64_t> offsets{};      // [heads], running sums of primes
  int64_t num_rows = 0;                // sum of primes, padded to vocab_multiple
  int ngram_size = 0;
  int heads_per_ngram = 0;
  int32_t eos = 0;
  /// Multipliers, primes and offsets one after the other, in the memory of a device backend.
  const int64_t* device_constants = nullptr;

  int heads() const { return static_cast<int>(primes.size()); }
};

/// Table rows of the token `history.back()`; history[i] are the ids up to and including it, oldest
/// first, at most ngram_size of them (fewer at the start of a sequence). Writes heads() values.
void ngram_rows(const NgramHash& hash, std::span<const int32_t> history, int64_t* rows);

}  // namespace tessera
