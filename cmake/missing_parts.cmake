# SPDX-License-Identifier: Apache-2.0
# An option of a part that this version lacks stops the configuration instead of being ignored.

# tessera_require_part(OPTION FOLDER WHAT): fails when OPTION is on but FOLDER has no build file.
function(tessera_require_part option folder what)
  if(${option} AND NOT EXISTS "${CMAKE_SOURCE_DIR}/${folder}/CMakeLists.txt")
    message(FATAL_ERROR "${option}=ON: ${what} is not part of this version of Tessera "
                        "(${folder}/CMakeLists.txt does not exist). Configure with -D${option}=OFF.")
  endif()
endfunction()

tessera_require_part(TESSERA_CUDA src/cuda "the CUDA backend")
tessera_require_part(TESSERA_SERVER src/server "the HTTP server")
tessera_require_part(TESSERA_WEB web "the chat page")
tessera_require_part(TESSERA_PYTHON python "the Python binding")
if(NOT TESSERA_ENGINE AND (TESSERA_CLI OR TESSERA_TESTS))
  message(FATAL_ERROR "TESSERA_ENGINE=OFF builds the ops and their benches only: configure with "
                      "-DTESSERA_CLI=OFF -DTESSERA_TESTS=OFF as well.")
endif()
if(TESSERA_FUZZ AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "TESSERA_FUZZ=ON needs clang (libFuzzer), the compiler is "
                      "${CMAKE_CXX_COMPILER_ID}. Use --preset fuzz.")
endif()
