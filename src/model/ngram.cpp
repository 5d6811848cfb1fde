// SPDX-License-Identifier: Apache-2.0
// Derivation of the hash constants of the n-gram table.
#include "model/ngram.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera {
namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15U;  // splitmix64's increment
constexpr uint64_t kSeedStep = 10007;             // between PLE layers

bool is_prime(int64_t value) {
  if (value < 2) return false;
  for (int64_t divisor = 2; divisor * divisor <= value; ++divisor) {
    if (value % divisor == 0) return false;
  }
  return true;
}

/// `count` primes in ascending order, after skipping the first `skip` primes that are >= base.
std::vector<int64_t> primes_from(int64_t base, int skip, int count) {
  std::vector<int64_t> primes;
  int seen = 0;
  for (int64_t candidate = base; std::cmp_less(primes.size(), count); ++candidate) {
    if (!is_prime(candidate)) continue;
    if (seen >= skip) primes.push_back(candidate);
    ++seen;
  }
  return primes;
}

uint64_t splitmix64(uint64_t value) {
  value += kGamma;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

/// Odd, and small enough that multiplier * id stays below 2^63 for every id of the vocabulary.
std::vector<int64_t> make_multipliers(const PleConfig& config, int vocab_size, int ple_index) {
  const uint64_t largest = std::numeric_limits<int64_t>::max();
  const uint64_t half_bound =
      std::max<uint64_t>(1, largest / static_cast<uint64_t>(vocab_size) / 2);
  const uint64_t base = config.seed + kSeedStep * static_cast<uint64_t>(ple_index);
  std::vector<int64_t> multipliers;
  for (int lag = 0; lag < config.ngram_size; ++lag) {
    const uint64_t draw = splitmix64(base + kGamma * static_cast<uint64_t>(lag + 1));
    multipliers.push_back(static_cast<int64_t>(2 * (draw % half_bound) + 1));
  }
  return multipliers;
}

}  // namespace

NgramHash make_ngram_hash(const PleConfig& config, int vocab_size, int ple_index) {
  NgramHash hash;
  hash.ngram_size = config.ngram_size;
  hash.heads_per_ngram = config.heads_per_ngram;
  hash.eos = config.hash_eos;
  hash.multipliers = make_multipliers(config, vocab_size, ple_index);
  hash.primes = primes_from(config.vocab_base, ple_index * config.heads(), config.heads());
  int64_t total = 0;
  for (const int64_t prime : hash.primes) {
    hash.offsets.push_back(total);
    total += prime;
  }
  const int64_t multiple = config.vocab_multiple;
  hash.num_rows = (total + multiple - 1) / multiple * multiple;
  return hash;
}

}  // namespace tessera
