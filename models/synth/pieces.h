#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "models/synth/shapes.h"

namespace quern::synth {

/// Makes the bytes of tensors piece by piece on several threads, a few pieces ahead of whoever
/// takes them, in order. What is in memory is a window of pieces, never a tensor.
class Pieces {
 public:
  /// `tensors` must outlive the object. 0 threads: one for each hardware thread.
  Pieces(const std::vector<SynthTensor>& tensors, uint64_t seed, uint32_t threads);
  ~Pieces();
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  /// The next piece; it stays valid until the next call. A piece never spans two tensors.
  std::span<const std::byte> next();

 private:
  struct Piece {
    size_t tensor;
    uint64_t first_block;
    size_t bytes;
  };
  struct Slot {
    std::vector<std::byte> bytes;
    bool made = false;
  };
  void work();

  const std::vector<SynthTensor>& tensors_;
  std::vector<uint64_t> keys_;
  std::vector<Piece> pieces_;
  std::vector<Slot> slots_;  ///< Piece i is made in slot i modulo their number.
  std::mutex mutex_;
  std::condition_variable made_, freed_;
  size_t claimed_ = 0;  ///< Pieces that a thread has begun.
  size_t given_ = 0;    ///< Pieces that `next` has returned; the last of them is still in use.
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quern::synth
