// SPDX-License-Identifier: Apache-2.0
// Chains the detokenizer and the stop matcher.
#include <tessera/text_stream.h>
#include <utility>
#include "text/stop_matcher.h"

namespace tessera {

struct TextStream::Impl {
  Detokenizer detokenizer;
  text::StopMatcher stops;
};

TextStream::TextStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;
TextStream::~TextStream() = default;

Result<TextStream> TextStream::create(const Tokenizer& tokenizer,
                                      std::vector<std::string> stop_strings, bool skip_special) {
  auto stops = text::StopMatcher::create(std::move(stop_strings));
  if (!stops) return fail(stops.error());
  return TextStream(
      std::make_unique<Impl>(Impl{Detokenizer(tokenizer, skip_special), *std::move(stops)}));
}

TextStream::Delta TextStream::push(int32_t id) {
  std::string text = impl_->stops.push(impl_->detokenizer.push(id));
  return {std::move(text), impl_->stops.stopped()};
}

TextStream::Delta TextStream::flush() {
  std::string text = impl_->stops.push(impl_->detokenizer.flush());
  text += impl_->stops.flush();
  return {std::move(text), impl_->stops.stopped()};
}

int TextStream::stop_index() const { return impl_->stops.hit(); }

}  // namespace tessera
