// SPDX-License-Identifier: Apache-2.0
// Measured memory ceilings: what "percent of bandwidth" is a percentage of.
#pragma once

namespace tessera {

/// Bytes per second that `threads` threads read (or copy: bytes read plus bytes written) together,
/// from buffers much larger than the caches. The median of many passes, to be held against the
/// median of what is measured; reading, the better of one stream and four streams per thread. Takes
/// about a second and 256 MiB (a copy: half a second and 512 MiB); throws std::bad_alloc.
double measure_read_bandwidth(int threads);
double measure_copy_bandwidth(int threads);

}  // namespace tessera
