// SPDX-License-Identifier: Apache-2.0
// The reference outputs of a trained model (reference.json): greedy texts, retrieval, perplexity.
#pragma once

#include <tessera/error.h>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct ReferenceCase {
  std::string name{};
  std::string prompt_text{};
  std::vector<int32_t> prompt{};  // empty when only the text is given
  std::vector<int32_t> output{};
  std::string output_key{};          // what the file calls them
  std::vector<double> margin{};      // best minus second logit per output token; empty: not known
  std::vector<bool> first_drafts{};  // whether the draft layer predicts token i + 2, per token but
                                     // the last; empty: not known
  std::string want{};                // the right answer where it is known
  bool reference_right = false;      // the reference itself gives `want`
  bool retrieval = false;            // a needle case
  bool compare_ids = false;          // token by token, else only the answer
};

struct ReferenceText {
  std::string name{};
  std::string text{};
  int tokens = 0;    // of the text, at least 2; the first one is not scored
  double nll = 0.0;  // mean
};

struct ReferenceFile {
  std::string source{};
  std::vector<ReferenceCase> cases{};
  std::vector<ReferenceText> texts{};
};

/// Ids are int32 and not negative; whether the model has them is not known here.
/// Errors: kCorruptFile with the key.
Result<ReferenceFile> parse_reference_file(std::string_view json, const std::string& where);

}  // namespace tessera
