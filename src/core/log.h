// SPDX-License-Identifier: Apache-2.0
// Where the library's own files find the log seam; the declarations are public.
#pragma once

#include <tessera/log.h>  // IWYU pragma: export
