#include "models/synth/pieces.h"

#include <algorithm>
#include <system_error>

#include "models/quant/quant_type.h"
#include "models/synth/values.h"

namespace quern::synth {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

}  // namespace

Pieces::Pieces(const std::vector<SynthTensor>& tensors, uint64_t seed, uint32_t threads)
    : tensors_(tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    keys_.push_back(tensor_key(seed, tensors[i].name));
    const size_t block = quant_traits(tensors[i].type).block_bytes;
    const uint64_t step = kPieceBytes / block / piece_alignment * piece_alignment;
    const uint64_t blocks = tensors[i].bytes() / block;
    for (uint64_t first = 0; first < blocks; first += step) {
      pieces_.push_back({i, first, std::min(step, blocks - first) * block});
    }
  }
  const uint32_t workers =
      threads > 0 ? threads : std::max(1U, std::thread::hardware_concurrency());
  // Two for each worker: one being made while another waits to be taken.
  slots_.resize(size_t{2} * workers + 1);
  for (Slot& slot : slots_) slot.bytes.resize(kPieceBytes);
  try {
    for (uint32_t i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // as many threads as the system gives are enough
    if (threads_.empty()) throw;
  }
}

Pieces::~Pieces() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  freed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pieces::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    // The piece before the last one given is free; the last one is still being read.
    freed_.wait(lock, [&] {
      return stopped_ || claimed_ == pieces_.size() || claimed_ + 1 < given_ + slots_.size();
    });
    if (stopped_ || claimed_ == pieces_.size()) return;
    const size_t index = claimed_++;
    Slot& slot = slots_[index % slots_.size()];
    lock.unlock();
    const Piece& piece = pieces_[index];
    fill_blocks(tensors_[piece.tensor], keys_[piece.tensor], piece.first_block,
                std::span(slot.bytes).first(piece.bytes));
    lock.lock();
    slot.made = true;
    made_.notify_one();
  }
}

std::span<const std::byte> Pieces::next() {
  std::unique_lock lock(mutex_);
  const size_t index = given_++;
  freed_.notify_one();
  Slot& slot = slots_[index % slots_.size()];
  made_.wait(lock, [&] { return slot.made; });
  slot.made = false;
  return std::span(slot.bytes).first(pieces_[index].bytes);
}

}  // namespace quern::synth
