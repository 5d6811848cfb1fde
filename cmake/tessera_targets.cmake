# SPDX-License-Identifier: Apache-2.0
# One way to declare a library, a test and a fuzz target, so that flags are set in one place.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(TESSERA_FAST_BUILD)
  find_program(TESSERA_CCACHE ccache)
  find_program(TESSERA_MOLD mold)
  if(TESSERA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${TESSERA_CCACHE}")
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${TESSERA_CCACHE}")
  endif()
  if(TESSERA_MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
endif()

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g -D_GLIBCXX_ASSERTIONS")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS")

add_library(tessera_flags INTERFACE)
# `#pragma omp simd` only: threads come from core/parallel.h. CUDA sources have flags of their own.
target_compile_options(tessera_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;-Werror;-fopenmp-simd>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: std::string concatenation warns about overlapping copies that cannot happen.
  target_compile_options(tessera_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Clang builds the fuzz targets only. std::stable_sort of libstdc++ 12 uses what it has itself
  # deprecated, and a loop that clang cannot vectorise is no error there.
  target_compile_options(tessera_flags INTERFACE -Wno-deprecated-declarations -Wno-pass-failed)
endif()
target_include_directories(tessera_flags INTERFACE "${CMAKE_SOURCE_DIR}/src" "${CMAKE_SOURCE_DIR}/include")
if(TESSERA_SANITIZE)
  target_compile_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE} -fno-sanitize-recover=all)
  # GCC's manual: a sanitizer's own code gives this warning false positives.
  target_compile_options(tessera_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_link_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE})
endif()

if(TESSERA_STATIC)
  target_link_options(tessera_flags INTERFACE -static-libstdc++ -static-libgcc)
endif()

if(TESSERA_FUZZ)
  # Coverage feedback from every library, not only from the target's own file.
  target_compile_options(tessera_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# tessera_library(NAME SOURCES a.cpp ... LIBS other ...)
function(tessera_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC tessera_flags ${ARG_LIBS})
endfunction()

# tessera_test(NAME LABELS unit [golden slow gpu server] SOURCES a.cpp ... LIBS ...)
# A GoogleTest binary registered as one CTest test. Working directory: the source tree.
function(tessera_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE tessera_flags ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# tessera_fuzz(NAME SOURCES a.cpp LIBS ...): a libFuzzer binary; seeds live in fuzz/corpus/<name>.
function(tessera_fuzz name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE tessera_flags ${ARG_LIBS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
