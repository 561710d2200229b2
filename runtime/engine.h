#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan.h"
#include "models/gguf/file.h"
#include "models/tokenizer/tokenizer.h"
#include "runtime/selection.h"
#include "runtime/store/kernel_store.h"

namespace quern {

/// Progress of long work: stage name, done, total.
using Progress = std::function<void(std::string_view stage, uint64_t done, uint64_t total)>;

struct EngineOptions {
  uint32_t threads = 0;  ///< 0: one for each CPU that this process may run on.
  int device = 0;        ///< Which GPU, for plans of one.
  Progress progress;
};

/// Time and counts of a load, for --stats.
struct LoadStats {
  uint32_t kernels_compiled = 0, kernels_loaded = 0;
  double compile_ms = 0, load_kernels_ms = 0, weights_ms = 0;
  uint64_t weight_bytes = 0;
};

class Session;

/// A loaded model: its plan, its kernels ready to call, its weights in place. Immutable after
/// loading and shared by sessions; sessions of one engine take turns on its thread pool.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  /// Gets the plan's kernels from the store (compiling with `compile` where its mode allows),
  /// repacks weights, and checks that the plan belongs to this file (fingerprint). The file must
  /// outlive the engine: it is moved in.
  static std::shared_ptr<Engine> load(gguf::File file, Plan plan, KernelStore& store,
                                      const KernelCompiler& compile, const EngineOptions& options);
  ~Engine();

  const Plan& plan() const;
  const gguf::File& file() const;
  const LoadStats& load_stats() const;
  uint32_t threads() const;
  /// GPU: steps whose values did not fit f16 and were clamped, with how many, since loading.
  std::vector<std::pair<std::string, uint64_t>> saturated() const;
  std::unique_ptr<Session> new_session();

 private:
  friend class Session;
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Which rows' logits a call wants.
enum class OutputRows { last, all, none };

/// One sequence: KV cache, convolution and recurrent state, and how many tokens they hold.
/// A failure inside `feed` leaves the session failed: every later call says so until `reset`.
class Session {
 public:
  ~Session();
  uint32_t position() const;  ///< Tokens fed so far.
  uint32_t capacity() const;  ///< Context length.

  /// Runs tokens through the model in chunks of the plan's size (or `chunk` where it is smaller and
  /// not 0). `start` must equal position(): Error (`usage`) otherwise, for tokens out of range, an
  /// empty list or more tokens than the context has room for; nothing is applied then. Returns
  /// logits: one row of `vocabulary` floats for each wanted token, in order.
  std::vector<float> feed(std::span<const TokenId> tokens, uint32_t start, OutputRows rows,
                          uint32_t chunk = 0);
  /// The same, for the rows (indices into `tokens`, ascending) given; for long prompts with few
  /// rows. The callback gets each row as soon as its chunk is done.
  void feed(std::span<const TokenId> tokens, uint32_t start, std::span<const uint32_t> rows,
            uint32_t chunk,
            const std::function<void(uint32_t row, std::span<const float> logits)>& on_row);

  /// What `select` takes: no candidates where the device gives logits alone.
  SelectionLimits selection_limits() const;
  /// Feeds tokens as `feed` does and gives the best candidates for the token after the last, found
  /// on the device: no logits are copied. Throws Error (`usage`) for requests beyond the limits.
  Candidates select(std::span<const TokenId> tokens, uint32_t start,
                    const SelectionRequest& request, uint32_t chunk = 0);

  void reset();
  /// An independent session in the same state.
  std::unique_ptr<Session> branch() const;
  /// State as bytes (with the plan's fingerprint, position and a digest) and back. `restore` throws
  /// Error
  /// (`failed`) for an image of another plan or a damaged one, and then changes nothing.
  std::vector<std::byte> save() const;
  void restore(std::span<const std::byte> image);

  /// Names of the kernel families and paths that the last feed launched, with counts (tests assert
  /// by it).
  const std::vector<std::pair<std::string, uint32_t>>& last_launches() const;
  void set_progress(Progress progress);

 private:
  friend class Engine;
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quern
