// SPDX-License-Identifier: Apache-2.0
// What a round's small ops move, and backends that run none.
#include "ops/round.h"

#include <stdexcept>

#include "ops/ops.h"

namespace tessera::ops {
namespace {

[[noreturn]] void no_rounds() { throw std::logic_error("this backend runs no rounds"); }

}  // namespace

RoundState Ops::begin_round(const RoundInputs&) { no_rounds(); }
RoundRows Ops::use_rows(RoundPart, int, int) { no_rounds(); }
void Ops::draw(const DrawArgs&) { no_rounds(); }
void Ops::accept(const AcceptArgs&) { no_rounds(); }
void Ops::take_drafts(const TakeDraftsArgs&) { no_rounds(); }
void Ops::advance(const AdvanceArgs&) { no_rounds(); }
void Ops::end_round() { no_rounds(); }
RoundReport Ops::read_round() { no_rounds(); }

}  // namespace tessera::ops
