// SPDX-License-Identifier: Apache-2.0
// End of a launch: last wide rows and token ids in the slots, wanted rows gathered, nothing else
// touched.
#include "cpu/state_fixture.h"

namespace tessera::test {
namespace {

constexpr int kTokenReach = 2;
constexpr int64_t kAbsorbed = 37;  // earlier tokens of every sequence
constexpr int kWidths[] = {1, 24, 65, 1032};

class FinishOpTest : public OpTest {};

TEST_P(FinishOpTest, StoresLastRowsAndGathersWantedOnes) {
  Random random(21);
  const Launch kLaunches[] = {{{0, 1}}, {{0, 3}, {1, 0}, {2, 1}, {3, 6}}, {{0, 70}, {1, 2}}};
  for (const int width : kWidths)
    for (const Launch& launch : kLaunches)
      for (const ops::Role role : kRoles) {
        SCOPED_TRACE(testing::Message() << "width " << width << " spans " << launch.size());
        const auto columns = static_cast<size_t>(width);
        const ops::RingRef ring = make_ring(kGapBytes, sizeof(int64_t), kTokenReach);
        const size_t wide_offset =
            kGapBytes + ring.entry_bytes * static_cast<size_t>(ring.slots) + kGapBytes;
        std::vector<Sequence> sequences(launch.size());
        for (Sequence& sequence : sequences) {
          sequence.absorbed = kAbsorbed;
          sequence.slot.assign(wide_offset + columns * sizeof(float) + kGapBytes, kPoison);
        }
        std::vector<std::vector<std::byte>> want;
        for (const Sequence& sequence : sequences) want.push_back(sequence.slot);

        const Batch batch(sequences, launch, role);
        const Values wide(random.normals(batch.rows() * columns));
        std::vector<int32_t> ids(batch.rows()), logit_rows;
        for (size_t row = 0; row < ids.size(); ++row) {
          ids[row] = random.below(1 << 20);
          if (row % 3 != 1) logit_rows.push_back(static_cast<int32_t>(row));
        }
        Values selected(logit_rows.size() * columns);
        ops_->finish({.ids = ids.data(),
                      .wide = wide.data(),
                      .width = width,
                      .batch = batch.view(),
                      .token_ring = ring,
                      .wide_offset = wide_offset,
                      .logit_rows = logit_rows.data(),
                      .num_logit_rows = static_cast<int>(logit_rows.size()),
                      .selected = selected.data()});

        for (size_t index = 0; index < launch.size(); ++index) {
          const ops::RowSpan& span = batch.view().spans[index];
          if (span.num_rows == 0) continue;
          const auto begin = static_cast<size_t>(span.row_begin);
          const auto rows = static_cast<size_t>(span.num_rows);
          std::memcpy(want[index].data() + wide_offset, wide.row(begin + rows - 1, columns).data(),
                      columns * sizeof(float));
          for (size_t row = 0; row < rows; ++row) {
            const int64_t id = ids[begin + row];
            const auto position = span.position + static_cast<int64_t>(row);
            std::memcpy(ring.entry(want[index].data(), position), &id, sizeof id);
          }
        }
        for (size_t index = 0; index < launch.size(); ++index)
          ASSERT_TRUE(sequences[index].slot == want[index]) << "sequence " << index;
        ASSERT_TRUE(selected.guards_intact());
        for (size_t entry = 0; entry < logit_rows.size(); ++entry)
          ASSERT_TRUE(same_bits(selected.row(entry, columns),
                                wide.row(static_cast<size_t>(logit_rows[entry]), columns)));
      }
}

INSTANTIATE_TEST_SUITE_P(Cpu, FinishOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
