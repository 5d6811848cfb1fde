// SPDX-License-Identifier: Apache-2.0
// Constants of the hashed n-gram table from the config: primes, offsets, multipliers.
#pragma once

#include "model/config.h"
#include "ops/ngram_hash.h"

namespace tessera {

NgramHash make_ngram_hash(const PleConfig& config, int vocab_size, int ple_index);

}  // namespace tessera
