// SPDX-License-Identifier: Apache-2.0
// Opens cuBLASLt and pins its algorithms. The toolkit's header gives the types, nothing is linked.
#include "cuda/linear/blas.h"

#include <dlfcn.h>

#include <array>
#include <map>
#include <mutex>
#include <stdexcept>

#include "cuda/check.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define TESSERA_HAS_CUBLASLT 1
#else
#define TESSERA_HAS_CUBLASLT 0
#endif

namespace tessera::cuda {

#if TESSERA_HAS_CUBLASLT
namespace {

/// Row count for which algorithms are chosen: a prompt chunk of middling size.
constexpr int kPinnedRows = 4096;
/// A chosen algorithm must also run these: the smallest launches and an odd one.
constexpr std::array kOtherRows = {1, 7, 64, 1000};
constexpr int kCandidates = 16;
constexpr uint32_t kOperandAlignment = 16;

/// The functions in use; the names are those of the library without its prefix.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) algo_check = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algo_get = nullptr;

  /// Empty, or what is missing.
  std::string open();
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

std::string Library::open() {
  // The version of the header first: its enumerations are known to fit.
  const std::string own = std::to_string(CUBLAS_VER_MAJOR);
  const std::string names[] = {"libcublasLt.so." + own,
                               "/usr/local/cuda/lib64/libcublasLt.so." + own, "libcublasLt.so.13",
                               "libcublasLt.so.12"};
  void* library = nullptr;
  for (const std::string& name : names)
    if (library == nullptr) library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "libcublasLt.so is not installed";
  const bool complete = find(library, "cublasLtCreate", create) &&
                        find(library, "cublasLtMatmul", matmul) &&
                        find(library, "cublasLtMatmulDescCreate", desc_create) &&
                        find(library, "cublasLtMatmulDescSetAttribute", desc_set) &&
                        find(library, "cublasLtMatrixLayoutCreate", layout_create) &&
                        find(library, "cublasLtMatrixLayoutSetAttribute", layout_set) &&
                        find(library, "cublasLtMatmulPreferenceCreate", preference_create) &&
                        find(library, "cublasLtMatmulPreferenceDestroy", preference_destroy) &&
                        find(library, "cublasLtMatmulPreferenceSetAttribute", preference_set) &&
                        find(library, "cublasLtMatmulAlgoGetHeuristic", heuristic) &&
                        find(library, "cublasLtMatmulAlgoCheck", algo_check) &&
                        find(library, "cublasLtMatmulAlgoConfigGetAttribute", algo_get);
  return complete ? "" : "libcublasLt.so lacks a function";
}

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLASLt: ") + what + " failed with status " +
                             std::to_string(static_cast<int>(status)));
}

/// Column-major views of the library: y^T [out, rows] = W [in, out]^T x^T [in, rows].
struct Problem {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
  cublasLtMatmulAlgo_t algo{};
  std::string refusal{};
};

}  // namespace

struct PinnedGemm::State {
  Library library;
  cublasLtHandle_t handle = nullptr;
  std::mutex mutex;
  std::map<GemmShape, Problem> problems;

  Problem& problem(const GemmShape& shape) {
    const auto [at, added] = problems.try_emplace(shape);
    if (added) at->second = make(shape);
    return at->second;
  }

  Problem make(const GemmShape& shape) {
    Problem problem;
    check_blas(library.desc_create(&problem.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a description");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_blas(
        library.desc_set(problem.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
        "a description");
    const auto ins = static_cast<uint64_t>(shape.in_features);
    const auto outs = static_cast<uint64_t>(shape.out_features);
    const auto layout = [&](cublasLtMatrixLayout_t& to, cudaDataType_t type, uint64_t rows,
                            uint64_t cols, int64_t stride) {
      check_blas(library.layout_create(&to, type, rows, cols, stride), "a layout");
    };
    layout(problem.weight, CUDA_R_16BF, ins, outs, shape.in_features);
    layout(problem.x, CUDA_R_16BF, ins, kPinnedRows, shape.in_features);
    layout(problem.y, shape.float_output ? CUDA_R_32F : CUDA_R_16BF, outs, kPinnedRows,
           shape.y_stride);
    if (!choose(problem)) problem.refusal = "cuBLASLt has no algorithm without split K";
    return problem;
  }

  void set_rows(Problem& problem, int rows) {
    const auto cols = static_cast<uint64_t>(rows);
    for (cublasLtMatrixLayout_t layout : {problem.x, problem.y})
      check_blas(library.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &cols, sizeof cols),
                 "a layout");
  }

  /// The library's first choice that adds every output in one piece and takes any row count.
  bool choose(Problem& problem) {
    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(library.preference_create(&preference), "a preference");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_blas(library.preference_set(preference, attribute, &value, sizeof value),
                 "a preference");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(attribute, kOperandAlignment);
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
    int found = 0;
    const cublasStatus_t status =
        library.heuristic(handle, problem.desc, problem.weight, problem.x, problem.y, problem.y,
                          preference, kCandidates, results.data(), &found);
    library.preference_destroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS) return false;
    for (int index = 0; index < found; ++index) {
      const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(index)];
      if (result.state != CUBLAS_STATUS_SUCCESS || splits_k(result.algo)) continue;
      if (!takes_any_rows(problem, result.algo)) continue;
      problem.algo = result.algo;
      return true;
    }
    return false;
  }

  bool splits_k(const cublasLtMatmulAlgo_t& algo) const {
    int32_t splits = 0;
    uint32_t scheme = 0;
    size_t written = 0;
    check_blas(
        library.algo_get(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof splits, &written),
        "an algorithm");
    check_blas(library.algo_get(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                sizeof scheme, &written),
               "an algorithm");
    return splits > 1 || scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
  }

  bool takes_any_rows(Problem& problem, const cublasLtMatmulAlgo_t& algo) {
    for (const int rows : kOtherRows) {
      set_rows(problem, rows);
      cublasLtMatmulHeuristicResult_t result{};
      if (library.algo_check(handle, problem.desc, problem.weight, problem.x, problem.y, problem.y,
                             &algo, &result) != CUBLAS_STATUS_SUCCESS ||
          result.workspaceSize > kWorkspaceBytes)
        return false;
    }
    return true;
  }
};

PinnedGemm::PinnedGemm() : state_(std::make_unique<State>()) {
  refusal_ = state_->library.open();
  if (refusal_.empty() && state_->library.create(&state_->handle) != CUBLAS_STATUS_SUCCESS)
    refusal_ = "cuBLASLt does not start on this device";
}

std::string_view PinnedGemm::refusal(const GemmShape& shape) {
  if (!refusal_.empty()) return refusal_;
  const std::lock_guard lock(state_->mutex);
  return state_->problem(shape).refusal;
}

void PinnedGemm::run(const GemmCall& call) {
  const std::lock_guard lock(state_->mutex);
  Problem& problem = state_->problem(call.shape);
  state_->set_rows(problem, call.rows);
  const float one = 1.0F, zero = 0.0F;
  check_blas(state_->library.matmul(state_->handle, problem.desc, &one, call.weight, problem.weight,
                                    call.x, problem.x, &zero, call.y, problem.y, call.y, problem.y,
                                    &problem.algo, call.workspace, kWorkspaceBytes, call.stream),
             "a product");
}

#else

struct PinnedGemm::State {};

PinnedGemm::PinnedGemm() : refusal_("built without the header of cuBLASLt") {}
std::string_view PinnedGemm::refusal(const GemmShape&) { return refusal_; }
void PinnedGemm::run(const GemmCall&) { throw std::logic_error(refusal_); }

#endif

PinnedGemm::~PinnedGemm() = default;

PinnedGemm& PinnedGemm::of_current_device() {
  static std::mutex mutex;
  // Never destroyed: the CUDA runtime may be gone before static objects are.
  static auto* const all = new std::map<int, std::unique_ptr<PinnedGemm>>;
  int device = 0;
  check(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  std::unique_ptr<PinnedGemm>& entry = (*all)[device];
  if (entry == nullptr) entry.reset(new PinnedGemm);
  return *entry;
}

}  // namespace tessera::cuda
