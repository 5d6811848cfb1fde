// SPDX-License-Identifier: Apache-2.0
// A sequence of the store that frees itself.
#pragma once

#include <tessera/error.h>

#include <utility>

#include "runtime/sequence_store.h"

namespace tessera {

class ScopedSequence {
 public:
  static Result<ScopedSequence> create(SequenceStore& store) {
    Result<SequenceId> id = store.create();
    if (!id) return fail(id.error());
    return ScopedSequence(store, *id);
  }
  /// Takes over a sequence that already exists (a fork, a restored snapshot).
  ScopedSequence(SequenceStore& store, SequenceId id) : store_(&store), id_(id) {}

  ScopedSequence(ScopedSequence&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)), id_(other.id_) {}
  ScopedSequence& operator=(ScopedSequence&& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~ScopedSequence() {
    if (store_ != nullptr) store_->destroy(id_);
  }

  SequenceId id() const { return id_; }

 private:
  SequenceStore* store_;
  SequenceId id_;
};

}  // namespace tessera
