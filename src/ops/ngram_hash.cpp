// SPDX-License-Identifier: Apache-2.0
// From token ids to table rows, in arithmetic modulo 2^64 like the reference's int64.
#include "ops/ngram_hash.h"

namespace tessera {
namespace {

/// Product that wraps like the reference's int64.
int64_t wrapping_product(int64_t left, int64_t right) {
  return static_cast<int64_t>(static_cast<uint64_t>(left) * static_cast<uint64_t>(right));
}

int64_t floor_mod(int64_t value, int64_t modulus) {
  const int64_t rest = value % modulus;
  return rest < 0 ? rest + modulus : rest;
}

}  // namespace

void ngram_rows(const NgramHash& hash, std::span<const int32_t> history, int64_t* rows) {
  int64_t mixed = 0;
  bool cut = false;  // a predecessor is the end of a text: everything older counts as that id
  for (int lag = 0; lag < hash.ngram_size; ++lag) {
    const auto back = static_cast<size_t>(lag);
    int32_t token = hash.eos;
    if (!cut && back < history.size()) token = history[history.size() - 1 - back];
    cut = cut || (lag > 0 && token == hash.eos);
    mixed ^= wrapping_product(token, hash.multipliers[back]);
    if (lag == 0) continue;
    const int first_head = (lag - 1) * hash.heads_per_ngram;
    for (int head = first_head; head < first_head + hash.heads_per_ngram; ++head) {
      const auto index = static_cast<size_t>(head);
      rows[index] = floor_mod(mixed, hash.primes[index]) + hash.offsets[index];
    }
  }
}

}  // namespace tessera
